package lanes

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/internal/settings"
)

func engine(t *testing.T, log slog.Handler) *Engine {
	t.Helper()
	var faults settings.Faults
	e := New(&faults, &consume.Config{}, slog.New(log), func(context.Context, *outbox.Message) error { return nil }, Abilities{})
	if err := faults.Err(); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestAConsumersLinesAreBounded(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	e := engine(t, slog.NewTextHandler(&text, nil))
	for range 1000 {
		e.log(slog.LevelWarn, "message failed", &Delivery{Message: outbox.Message{ID: outbox.NewID(), Topic: "t"}}, errors.New("no"))
	}
	settings.Flush(e.cfg.Logger)
	if n := strings.Count(text.String(), "\n"); n != settings.LogLines+1 || !strings.Contains(text.String(), "more=988") {
		t.Errorf("%d lines:\n%s", n, &text)
	}
}

func TestAnOutcomeThatTheServerWasNotToldIsLogged(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	e := engine(t, slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g := e.Group()
	g.Add(&Delivery{Message: outbox.Message{ID: outbox.NewID(), Topic: "t"}, Source: "orders@7",
		Settle: func(consume.Outcome, time.Duration) error { return errors.New("connection lost") }})
	g.Drain()
	for _, part := range []string{"level=DEBUG", "was not told", "source=orders@7", `"connection lost"`} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("the log lacks %s:\n%s", part, &text)
		}
	}
	if n := g.Held(); n != 0 {
		t.Errorf("%d messages are held", n)
	}
}
