package seeds

import (
	"fmt"
	"testing"

	"github.com/pgoutbox/outbox/internal/testdb"
)

// Every system delivers what its author's writers commit, in the order that the documents promise, as it trickles in,
// in a burst and from a backlog, with one relay and with two, and with relays that are killed. make order does the same
// with 100,000 messages.
func TestEverySystemKeepsItsOrder(t *testing.T) {
	t.Parallel()
	shapes := []Case{
		{Workload: Trickle, Messages: 300, Rate: 150, Relays: 1},
		{Workload: Burst, Messages: 600, Relays: 2},
		{Workload: Burst, Messages: 600, Relays: 1, Kills: 2},
		{Workload: Backlog, Messages: 600, Relays: 2, Kills: 2, Delivery: "{batch: 50, max_in_flight: 100}"},
	}
	for _, system := range Systems() {
		for _, c := range shapes {
			c.System = system
			// a reader of offsets, or of the log, repeats what stood behind a message that waited
			if c.Delivery != "" && system.Groups < 2 && !system.Log {
				c.Repeats = 100
				if system.WholeTransactions {
					c.Repeats = 4 * 200
				}
			}
			t.Run(fmt.Sprint(c), func(t *testing.T) {
				t.Parallel()
				c.run(t, testdb.New(t))
			})
		}
	}
}
