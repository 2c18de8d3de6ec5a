package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
)

func TestAFaultThatIsPressedOnThePageIsSeenOnIt(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	needPostgres(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out, progress await.Buffer
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, Config{JSON: true, Rate: 50, Stdout: &out, Stderr: &progress}) }()
	page := ""
	await.Until(t, "the demo delivers, and has said where the page is", func() bool {
		_, text, found := strings.Cut(out.String(), "the page is at ")
		page, _, _ = strings.Cut(text, `"`)
		return found && strings.Contains(out.String(), "first_delivered")
	})
	read := func() string {
		answer, err := http.Get(page)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v", answer.Status, err)
		}
		return string(text)
	}
	if text := read(); !strings.Contains(text, "Break it") || !strings.Contains(text, "broker down") {
		t.Errorf("the page has no faults to press:\n%s", text)
	}
	answer, err := http.PostForm(page+"press", url.Values{"button": {"broker"}})
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	await.Until(t, "the page says that the broker does not answer", func() bool {
		return strings.Contains(read(), "the broker does not answer")
	})
	if !strings.Contains(out.String(), "broker_down") {
		t.Error("the terminal says nothing of it")
	}
	r, err := http.NewRequestWithContext(ctx, "GET", page, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "evil.example"
	if answer, err = http.DefaultClient.Do(r); err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("a name of another site that leads here is answered with %s", answer.Status)
	}
	stop()
	if err := <-ended; !errors.Is(err, ErrInterrupted) && !errors.Is(err, context.Canceled) {
		t.Errorf("the demo ended with %v\n%s", err, progress.String())
	}
}
