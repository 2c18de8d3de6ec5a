package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/relay"
)

// Probed is what a look at the database or a destination's broker found.
type Probed struct {
	What string // "database", or "destination NAME"
	Err  error  // nil: it can be used, as far as can be told without a message
}

// Probe connects to the database and to every broker as Run would, and delivers nothing. It is called in place of Run.
func (d *Daemon) Probe(ctx context.Context) []Probed {
	defer d.closeBrokers()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	found := []Probed{{What: "database"}}
	var pingers []relay.Pinger
	for _, p := range d.parts {
		if pinger, ok := p.broker.Broker.(relay.Pinger); ok && p.group == 0 {
			found = append(found, Probed{What: "destination " + p.destination.Name})
			pingers = append(pingers, pinger)
		}
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		if readsOutbox(d.cfg) {
			found[0].Err = d.checkDatabase(ctx)
		}
	})
	for i, pinger := range pingers {
		asking.Go(func() { found[i+1].Err = pinger.Ping(ctx) })
	}
	asking.Wait()
	return found
}
