// Package daemon runs what a configuration says: a relay for each shard group of each destination, retention, health, metrics
// and notifications beside them.
package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/console"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/around"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/schema"
)

// Daemon delivers what one configuration says. It has no global state, so several may run in one process, each with a
// database of its own.
type Daemon struct {
	cfg     config.Config
	conn    *pgx.ConnConfig
	options Options
	logger  *slog.Logger

	registration *polling.Registration

	retention *polling.Retention // nil if this relay leaves it to others

	metrics *metrics
	watch   *watch
	brokers []relay.Broker
	parts   []part

	selection  *selection
	unselected *polling.Unselected
	notify     *notifications
	traces     *traces
}

// part is one shard group of one destination.
type part struct {
	group       int
	destination config.Destination
	broker      *config.Opened
	selects     func(*outbox.Message) bool // nil: everything
	logger      *slog.Logger               // of the destination
}

// Options is what a Daemon needs beside its configuration.
type Options struct {
	// Origin says where the address of the database was found, for errors.
	Origin string

	// Stdout gets the messages of destinations with the broker stdout.
	Stdout io.Writer

	// Version and Revision are those of the program.
	Version, Revision string

	// Logger is required.
	Logger *slog.Logger
}

// New makes a Daemon. cfg is valid, as [config.Load] returns it. New connects to nothing, and reports all faults together.
func New(conn *pgx.ConnConfig, cfg config.Config, options Options) (*Daemon, error) {
	d := &Daemon{cfg: cfg, conn: conn, options: options, logger: options.Logger}
	if err := d.assemble(); err != nil {
		d.closeBrokers()
		return nil, err
	}
	return d, nil
}

func (d *Daemon) assemble() error {
	monitor := d.conn.Copy()
	monitor.RuntimeParams["application_name"] = "outbox monitor " + d.cfg.Name
	connect := func(ctx context.Context) (*pgx.Conn, error) { return connect.Open(ctx, monitor, "the configuration") }
	d.metrics = newMetrics(d.options)
	d.watch = newWatch(d.cfg.Name, d.metrics, d.logger, connect)
	newStates(d.metrics.book, func() map[string]admin.Verdict { return d.watch.health().Destinations })

	if d.cfg.Retention.Enabled && readsOutbox(d.cfg) {
		retention, err := polling.NewRetention(d.conn, polling.RetentionConfig{
			Interval: d.cfg.Retention.Interval, Observe: d.metrics.retention, Logger: d.logger})
		if err != nil {
			return err
		}
		d.retention = retention
	}

	d.notify = newNotifications(d.cfg, d.metrics, d.logger)
	d.unselected = polling.NewUnselected(d.conn, d.cfg.Name, d.logger)
	d.selection = newSelection(d.cfg, d.metrics.unselected, d.unselected.Note, d.logger)
	var faults []error
	for i, destination := range d.cfg.Destinations {
		rules, err := destination.Table().Parse()
		if err != nil {
			faults = append(faults, fmt.Errorf("destination %s: route: %w", destination.Name, err))
			continue
		}
		logger := relay.Bounded(d.logger) // for all groups, and what they read and send with
		var shared *config.Opened         // by all groups, unless it is coupled to one
		for group := range destination.ShardGroups {
			p := part{group: group, destination: destination, broker: shared, selects: d.selection.of(i, rules), logger: logger}
			if shared == nil {
				p.broker, err = destination.Open(config.Opening{Stdout: d.options.Stdout, Group: group, Logger: logger.With("destination", destination.Name)})
				if err != nil {
					faults = append(faults, fmt.Errorf("destination %s: %w", destination.Name, err))
					break
				}
				d.brokers = append(d.brokers, p.broker)
				if p.broker.Coupled == nil {
					shared = p.broker
				}
			}
			d.parts = append(d.parts, p)
			d.watch.starting(destination.Name, group, destination.Source == nil)
		}
	}
	return errors.Join(faults...)
}

func (d *Daemon) closeBrokers() {
	for _, b := range d.brokers {
		if err := b.Close(); err != nil {
			d.logger.Warn("broker closed badly", "error", err)
		}
	}
}

// Run delivers until ctx ends or every part has given up. The order of its end: relays drain and give
// their leases back; then health and metrics end; then the name is free again. It runs once.
func (d *Daemon) Run(ctx context.Context) (err error) {
	defer d.closeBrokers()
	if d.traces, err = d.openTraces(ctx); err != nil {
		return err
	}
	defer d.traces.close()
	fromOutbox := readsOutbox(d.cfg)
	if fromOutbox {
		if err := d.checkDatabase(ctx); err != nil {
			return err
		}
	}
	var listener net.Listener
	if d.cfg.HTTP.Listen != "" {
		if listener, err = listen(d.cfg.HTTP.Listen); err != nil {
			return err
		}
		if public(listener.Addr()) {
			if exposed := d.cfg.HTTP.Exposed(); exposed != "" {
				_ = listener.Close() // no request has been served
				return fmt.Errorf("http.listen is %s: %s", d.cfg.HTTP.Listen, exposed)
			}
			d.logger.Warn("health and metrics can be read from other machines, without authentication", "address", listener.Addr().String())
		}
		if secure := d.cfg.HTTP.TLS.Config(); secure != nil {
			listener = tls.NewListener(listener, secure)
		}
	}

	if fromOutbox {
		if d.registration, err = d.register(ctx); err != nil {
			if listener != nil {
				_ = listener.Close() // no request has been served
			}
			return err
		}
		defer d.registration.Close()
	}

	closePools := func() {}
	defer func() { closePools() }() // when nothing is served any more
	aside, endAside := context.WithCancel(context.WithoutCancel(ctx))
	var besides sync.WaitGroup
	defer besides.Wait()
	defer endAside()
	if listener != nil {
		var api *rest.API
		var page *console.Console
		if d.cfg.HTTP.API && fromOutbox {
			api, closePools, err = d.api(aside)
			if err == nil {
				page, err = console.New(console.Options{API: api, Report: d.watch.amended, History: d.watch.history})
			}
			if err != nil {
				_ = listener.Close() // no request has been served
				return err
			}
		}
		besides.Go(func() { serveHTTP(aside, listener, d.watch, d.metrics, api, page, d.logger) })
	}
	if listener != nil && fromOutbox {
		besides.Go(func() { d.watch.run(aside) })
	}
	besides.Go(func() { d.notify.run(aside) })
	for _, c := range d.cfg.Destinations {
		if c.Source != nil && c.Source.Purge != nil {
			besides.Go(func() { d.purge(aside, c) })
		}
	}
	if d.retention != nil {
		besides.Go(func() { _ = d.retention.Run(aside) }) // it ends with aside, and reports its errors as they come
	}

	if err := releaseProgram(); err != nil {
		d.logger.Debug("the program's pages stay in memory", "error", err)
	}
	d.logger.Info("relay started", "relay", d.cfg.Name, "version", d.options.Version, "destinations", len(d.cfg.Destinations),
		"database", d.conn.Database, "http", d.cfg.HTTP.Listen, "pid", os.Getpid())
	besides.Go(func() { supervised(aside, os.Getenv) }) // its watchdog while it drains, too
	announce := context.AfterFunc(ctx, func() { d.logger.Info("draining; a second signal ends at once", "relay", d.cfg.Name) })
	defer announce()
	err = d.deliver(ctx)
	_ = d.unselected.Close() // it is in the log
	d.logger.Info("relay stopped", "relay", d.cfg.Name)
	return err
}

// register takes the name of this relay.
func (d *Daemon) register(ctx context.Context) (*polling.Registration, error) {
	return polling.Register(ctx, d.conn, d.cfg.Name, polling.RegistrationConfig{
		Version: d.options.Version,
		Lease:   d.longestLease(),
		Logger:  d.logger,
	})
}

// longestLease is for how long a silent namesake must be believed to deliver.
func (d *Daemon) longestLease() (longest time.Duration) {
	for _, c := range d.cfg.Destinations {
		longest = max(longest, c.Lease)
	}
	return longest
}

// deliver runs every part, and returns what they ended with when all have.
func (d *Daemon) deliver(ctx context.Context) error {
	var running sync.WaitGroup
	errs := make([]error, len(d.parts))
	for i, p := range d.parts {
		running.Go(func() {
			errs[i] = d.runPart(ctx, p)
			if errs[i] == nil {
				return
			}
			d.notify.stopped(p.destination.Name, errs[i])
			d.watch.note(p.destination.Name, p.group, relay.StateStopped, errs[i])
			d.logger.Error("destination given up; others go on", "destination", p.destination.Name, "shard_group", p.group, "error", errs[i])
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

func (d *Daemon) runPart(ctx context.Context, p part) error {
	c := p.destination
	logger := p.logger
	if c.ShardGroups > 1 {
		logger = logger.With("shard_group", p.group)
	}
	source, err := OpenSource(d.conn, d.cfg.Name, d.registration, c, p.group, logger)
	if err != nil {
		return err
	}
	if p.broker.Coupled != nil {
		source = p.broker.Coupled.Source(source)
	}
	broker := p.broker.Broker
	if s, ok := source.(partitioned); ok {
		broker = s.Broker(broker)
	}
	engine := paced(c)
	engine.Select, engine.Stripes, engine.Logger = p.selects, p.broker.Calls, logger
	engine.Observer = d.traces.observer(c, d.notify.observer(c.Name, d.watch.history.Observer(c.Name,
		d.metrics.observer(c.Name, p.group, func(state relay.State, err error) { d.watch.note(c.Name, p.group, state, err) }))))
	inFlight := d.metrics.inFlight.WithLabelValues(c.Name)
	r, err := relay.New(source, around.InFlight(broker, func(n int) { inFlight.Add(float64(n)) }), engine)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// checkDatabase refuses what no waiting cures, while somebody still looks at the terminal.
func (d *Daemon) checkDatabase(ctx context.Context) error {
	conn, err := connect.Open(ctx, d.conn, d.options.Origin)
	if err != nil {
		return err
	}
	defer connect.Close(conn)
	state, err := schema.Status(ctx, conn)
	if err != nil {
		return err
	}
	if state.Standby {
		return fmt.Errorf("PostgreSQL at %s:%d is a hot standby, from which messages would be lost: connect to the primary "+
			"(with several hosts in the URL, add target_session_attrs=read-write)", d.conn.Host, d.conn.Port)
	}
	return schema.Check(ctx, conn)
}
