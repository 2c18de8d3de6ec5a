package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/internal/brokers"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped"
	"github.com/pgoutbox/outbox/relay/replication"
)

// Probed is what a look at the database, a destination's source or its broker found.
type Probed struct {
	Database string // its name, if there are several
	What     string // "database", "source of NAME", or "destination NAME"
	Err      error  // nil: it can be used, as far as can be told without a message
	Untried  string // what can't be told so
}

const unsent = "it answers; topics and rights to write show with the first message"

// Probe connects to the databases and to every broker as Run would, and delivers nothing. It tries what is read, with
// all rights that this takes, and takes back what it did. It is called in place of Run; other relays may run.
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
	var found []Probed
	var looks []func() (untried string, err error)
	add := func(what string, look func() (string, error)) {
		found, looks = append(found, Probed{What: what}), append(looks, look)
	}
	add("database", func() (string, error) {
		if !u.watch.ofOutbox() {
			return "", nil
		}
		return "", u.checkDatabase(ctx)
	})
	recorded := sync.OnceValue(func() []brokers.Broker { return u.recorded(ctx) })
	shared := sync.OnceValue(func() map[string]error { return u.sharedTables(ctx) })
	for _, p := range u.parts {
		if p.group > 0 {
			continue
		}
		if probe := u.sourceProbe(p.destination); probe != nil {
			add("source of "+p.destination.Name, func() (string, error) {
				untried, err := probe(ctx)
				return untried, errors.Join(err, shared()[p.destination.Name])
			})
		}
		if pinger, ok := relay.As[relay.Pinger](p.broker); ok {
			add("destination "+p.destination.Name, func() (string, error) {
				// A relay has a file open while it runs, and this is not that relay.
				if err := pinger.Ping(ctx); err != nil && !errors.Is(err, jsonl.ErrLocked) {
					return "", err
				}
				return unsent, p.recognize(ctx, recorded)
			})
		}
	}
	var asking sync.WaitGroup
	for i, look := range looks {
		asking.Go(func() { found[i].Untried, found[i].Err = look() })
	}
	asking.Wait()
	return found
}

// sharedTables are the faults of destinations that would record what was delivered in one table, by destination. The
// server tells which table a name means: one has several, with a schema and without.
func (u *unit) sharedTables(ctx context.Context) map[string]error {
	type record struct{ destination, table string }
	var records []record
	for _, p := range u.parts {
		if p.group > 0 || p.destination.Source == nil {
			continue
		}
		if table, _ := p.destination.Source.Records(); table != "" {
			records = append(records, record{p.destination.Name, table})
		}
	}
	if len(records) < 2 {
		return nil
	}
	conn, err := connect.Open(ctx, u.conn, u.Origin)
	if err != nil {
		return nil // the look at the database tells that
	}
	defer connect.Close(conn)
	faults, first := make(map[string]error), make(map[uint32]record)
	for _, r := range records {
		var oid *uint32
		if name, err := mapping.ParseTableName(r.table); err == nil {
			err = conn.QueryRow(ctx, "SELECT to_regclass($1)::oid", name.String()).Scan(&oid)
			if err != nil {
				u.logger.Debug("it isn't known which table a destination has", "table", r.table, "error", err)
			}
		}
		if oid == nil {
			continue // the source's own look tells why
		}
		if other, twice := first[*oid]; twice {
			faults[r.destination] = fmt.Errorf("destination %s records in table %s, which is %s, what it has delivered; %s",
				other.destination, other.table, r.table, config.OnceOnly)
			continue
		}
		first[*oid] = r
	}
	return faults
}

// sourceProbe returns what tries a destination's source, nil if the look at the database is all there is to it.
func (u *unit) sourceProbe(c config.Destination) func(context.Context) (untried string, err error) {
	source, err := OpenSource(u.conn, u.cfg.Name, nil, c, 0, u.logger)
	if err != nil {
		return func(context.Context) (string, error) { return "", err }
	}
	switch s := source.(type) {
	case *mapped.Source:
		return func(ctx context.Context) (string, error) {
			untried, err := s.Probe(ctx)
			if c.Source.Purge != nil {
				err = errors.Join(err, u.probePurge(ctx, c))
			}
			return untried, err
		}
	case *replication.Source:
		return func(ctx context.Context) (string, error) { return "", s.Probe(ctx) }
	}
	return nil
}

func (u *unit) probePurge(ctx context.Context, c config.Destination) error {
	p, err := newPurge(u.conn, c, u.logger)
	if err != nil {
		return err
	}
	return p.Probe(ctx)
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
