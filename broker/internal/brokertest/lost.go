package brokertest

import (
	"errors"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// LoseAnswers publishes batch over p, which loses the answers, until the first outcome says so and stored finds batch
// in the server: on a slow machine b may give up earlier. What is in before opens the connection each time.
func LoseAnswers(t testing.TB, b Publisher, p *testnet.Proxy, before, batch []*outbox.Message, says string, stored func() bool) {
	t.Helper()
	await.Until(t, "answers that are lost, of messages that are stored", func() bool {
		Deliver(Patient(t), t, b, before)
		p.SwallowAnswers(true)
		errs := b.Publish(Patient(t), batch)
		p.SwallowAnswers(false)
		CheckOutcomes(t, batch, errs)
		if len(errs) != len(batch) || !outbox.IsUnavailable(errs[0]) {
			t.Fatalf("outcomes %v", errs)
		}
		return strings.Contains(errs[0].Error(), says) && stored()
	})
}

// CutAnswers publishes batch over p, which cuts connections when an answer comes, and then until all is accepted. It
// requires that the first outcomes are unknown, and that read, what before and batch have brought to the server, lacks
// nothing and has each key in its order. It returns how many came twice.
func CutAnswers(t testing.TB, b Publisher, p *testnet.Proxy, before, batch []*outbox.Message,
	read func() ([]outbox.Message, error)) (repeats int) {
	t.Helper()
	Deliver(Patient(t), t, b, before) // finds the topic
	p.CutAnswers(true)
	errs := b.Publish(Patient(t), batch)
	p.CutAnswers(false)
	CheckOutcomes(t, batch, errs)
	for i, err := range errs {
		if !outbox.IsUnavailable(err) && !errors.Is(err, outbox.ErrSkipped) {
			t.Errorf("message %d without an answer: %v", i, err)
		}
	}
	Deliver(Patient(t), t, b, batch)
	got, err := read()
	if err != nil {
		t.Fatal(err)
	}
	all := append(before, batch...)
	if repeats = CheckOrder(t, all, got); len(got)-repeats != len(all) {
		t.Errorf("%d messages arrived, want %d", len(got)-repeats, len(all))
	}
	return repeats
}
