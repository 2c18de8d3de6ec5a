package daemon

import (
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/relay"
)

// paced bounds what a destination with a rate limit reads ahead: a batch is a tenth of a second's worth, so
// that a call doesn't last, and everything in flight can be sent in half of the time that a shutdown waits.
func paced(d config.Destination) relay.Config {
	c := d.Engine()
	if c.Rate == 0 {
		return c
	}
	c.Batch = min(c.Batch, max(1, int(c.Rate/10)))
	inTime := int(c.Rate * (d.DrainTimeout / 2).Seconds())
	c.MaxInFlight = max(2*c.Batch, min(c.MaxInFlight, inTime))
	return c
}
