package brokers

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/transport"
	records "github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// section is what the file says of one kind of broker. Defaults and checks are those of the adapter that it opens; a
// field that has another name there carries it in its tag field.
type section interface {
	// open makes the broker, or reports all faults of the section together, by the names of the adapter's fields. It
	// connects to nothing: a broker that is down is an outage of its destination, and no reason not to start.
	open(o Opening) (relay.Broker, error)
}

// sharing is a section whose client may keep connections and nothing that belongs to one destination.
type sharing interface {
	shares() bool
}

// Opening is what a broker gets beside its section.
type Opening struct {
	Stdout io.Writer
	Group  int // for a broker that each shard group has for itself
	Logger *slog.Logger
	Pool   *Pool // nil: the destination has a client of its own

	// The rest is the destination's, which sets it itself.
	Name   string
	Groups int            // shard groups
	Weight int            // its share of a client that others use as well; 0 is 1
	Format records.Format // nil: payloads as they are
}

// Coupled is the side of a broker that is coupled to a source.
type Coupled interface {
	Source(relay.Source) relay.Source
}

// configure gives an adapter's configuration what its section and the destination say. cfg is a pointer; faults are of
// the field TLS.
func (o Opening) configure(cfg, section any, security transport.TLS, faults *settings.Faults) {
	fields.Assign(cfg, section)
	fields.Assign(cfg, struct {
		Format records.Format
		TLS    *tls.Config
		Logger *slog.Logger
	}{o.Format, security.Config(faults), o.Logger})
}

// withFaults returns the broker that an adapter has made, or its faults together with those that were found before.
func withFaults(broker relay.Broker, err error, faults *settings.Faults) (relay.Broker, error) {
	faults.Add("", err)
	all := faults.Err()
	if all == nil {
		return broker, nil
	}
	if err == nil {
		all = errors.Join(all, broker.Close())
	}
	return nil, all
}
