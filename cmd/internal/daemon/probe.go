package daemon

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/relay"
)

// Probed is what a look at the database or a destination's broker found.
type Probed struct {
	Database string // its name, if there are several
	What     string // "database", or "destination NAME"
	Err      error  // nil: it can be used, as far as can be told without a message
}

// Probe connects to the databases and to every broker as Run would, and delivers nothing. It is called in place of Run.
func (d *Daemon) Probe(ctx context.Context) (found []Probed) {
	defer d.release()
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	of := make([][]Probed, len(d.units))
	var asking sync.WaitGroup
	for i, u := range d.units {
		asking.Go(func() {
			of[i] = u.probe(ctx)
			for n := range of[i] {
				if d.options.Several {
					of[i][n].Database = u.Name
				}
			}
		})
	}
	asking.Wait()
	return slices.Concat(of...)
}

func (u *unit) probe(ctx context.Context) []Probed {
	found := []Probed{{What: "database"}}
	var pingers []relay.Pinger
	for _, p := range u.parts {
		if pinger, ok := relay.As[relay.Pinger](p.broker); ok && p.group == 0 {
			found = append(found, Probed{What: "destination " + p.destination.Name})
			pingers = append(pingers, pinger)
		}
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		if u.watch.outbox {
			found[0].Err = u.checkDatabase(ctx)
		}
	})
	for i, pinger := range pingers {
		asking.Go(func() {
			// A relay has a file open while it runs, and this is not that relay.
			if err := pinger.Ping(ctx); !errors.Is(err, jsonl.ErrLocked) {
				found[i+1].Err = err
			}
		})
	}
	asking.Wait()
	return found
}
