package lanes

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/internal/settings"
)

func TestAConsumersLinesAreBounded(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	e, err := New(consume.Config{Logger: slog.New(slog.NewTextHandler(&text, nil))},
		func(context.Context, *outbox.Message) error { return nil }, Abilities{})
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		e.log(slog.LevelWarn, "message failed", &Delivery{Message: outbox.Message{ID: outbox.NewID(), Topic: "t"}}, errors.New("no"))
	}
	settings.Flush(e.Config().Logger)
	if n := strings.Count(text.String(), "\n"); n != settings.LogLines+1 || !strings.Contains(text.String(), "more=988") {
		t.Errorf("%d lines:\n%s", n, &text)
	}
}
