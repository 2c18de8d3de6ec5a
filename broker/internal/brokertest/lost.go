package brokertest

import (
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
