package daemon

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/internal/brokers"
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
	var parts []part
	for _, p := range u.parts {
		if _, ok := relay.As[relay.Pinger](p.broker); ok && p.group == 0 {
			found = append(found, Probed{What: "destination " + p.destination.Name})
			parts = append(parts, p)
		}
	}
	recorded := sync.OnceValue(func() []brokers.Broker { return u.recorded(ctx) })
	var asking sync.WaitGroup
	asking.Go(func() {
		if u.watch.outbox {
			found[0].Err = u.checkDatabase(ctx)
		}
	})
	for i, p := range parts {
		asking.Go(func() {
			pinger, _ := relay.As[relay.Pinger](p.broker)
			// A relay has a file open while it runs, and this is not that relay.
			if err := pinger.Ping(ctx); err != nil && !errors.Is(err, jsonl.ErrLocked) {
				found[i+1].Err = err
				return
			}
			found[i+1].Err = p.recognize(ctx, recorded)
		})
	}
	asking.Wait()
	return found
}

// recognize returns an error if a relay would refuse the part's broker, because the destination has another one.
func (p *part) recognize(ctx context.Context, recorded func() []brokers.Broker) error {
	identifier, ok := relay.As[relay.Identifier](p.broker)
	if !ok {
		return nil
	}
	names, err := identifier.Identity(ctx)
	if err != nil {
		return nil // a relay delivers to a broker that can't say which one it is
	}
	for _, b := range recorded() {
		if b.Destination == p.destination.Name {
			return b.Refuse(names)
		}
	}
	return nil
}

// recorded are the brokers of the destinations. That a database can't be read is told of it.
func (u *unit) recorded(ctx context.Context) []brokers.Broker {
	conn, err := connect.Open(ctx, u.conn, u.Origin)
	if err != nil {
		return nil
	}
	defer connect.Close(conn)
	list, err := brokers.Read(ctx, conn)
	if err != nil {
		u.logger.Debug("it isn't known which brokers the destinations have", "error", err)
	}
	return list
}
