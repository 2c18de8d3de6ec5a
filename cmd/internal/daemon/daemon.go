// Package daemon runs what a configuration says: for each database a relay for each shard group of each destination,
// retention and notifications; around them health, metrics and the API.
package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/relay"
)

// Daemon delivers what one configuration says, from each of its databases. It has no global state, so several may run
// in one process.
type Daemon struct {
	options  Options
	logger   *slog.Logger
	cfg      config.Config // for what concerns the process
	registry *prometheus.Registry
	process  *process
	sums     *sums
	traces   *traces
	member   *member // nil: there is no fleet
	gate     atomic.Pointer[gate]
	handler  atomic.Pointer[http.Handler]
	routed   atomic.Pointer[[]*unit] // those that handler serves
	exposed  bool                    // others than this machine reach the port

	wanted  []Database
	units   []*unit // in the order of wanted; one that gave up is among them
	failed  error   // why a unit could not be made again
	clients brokers.Pool
	reloads chan reload
	done    chan struct{}
}

// New makes a Daemon. It connects to nothing, and reports all faults together. There is at least one database, unless
// they are discovered.
func New(databases []Database, options Options) (*Daemon, error) {
	cfg := options.Process
	if options.Discovery == nil {
		cfg = databases[0].Config
	}
	d := &Daemon{options: options, logger: options.Logger, cfg: cfg, registry: prometheus.NewRegistry(), wanted: databases,
		reloads: make(chan reload), done: make(chan struct{})}
	d.options.limits = newLimits(d.cfg.Limits)
	options = d.options
	d.process = newProcess(newBook(d.registry, ""), options, &d.clients)
	newFindings(newBook(d.registry, ""), options.Discovery)
	d.sums = newSums(newBook(d.registry, ""), d.cfg.HTTP.Metrics.Worst, func() []*unit { return *d.routed.Load() })
	d.gate.Store(newGate(d.cfg.HTTP))
	d.clients.Logger = relay.Bounded(d.logger)
	var err error
	if d.member, err = newMember(d.cfg, newBook(d.registry, ""), options); err != nil {
		return nil, err
	}
	if d.member != nil {
		d.options.placed, d.options.starting = true, make(chan struct{}, beginAtOnce)
	}
	var faults []error
	for _, db := range databases {
		u, err := newUnit(db, d.metricsOf(db.Name), &d.clients, d.options)
		if err != nil {
			faults = append(faults, d.withDatabase(db, err))
			continue
		}
		d.units = append(d.units, u)
	}
	if err := errors.Join(faults...); err != nil {
		d.release()
		return nil, err
	}
	return d, nil
}

// withDatabase names the database of an error, if there are several.
func (d *Daemon) withDatabase(db Database, err error) error {
	if d.options.Several {
		return fmt.Errorf("database %s: %w", db.Name, err)
	}
	return err
}

func (d *Daemon) release() {
	for _, u := range d.units {
		u.release()
	}
}

// reload is another configuration for a Daemon that runs.
type reload struct {
	databases []Database
	taken     chan struct{}
}
