package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/schema"
)

func (a *app) relayCommand() *cobra.Command {
	var sets []string
	var name string
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Deliver messages to the destinations of outbox.yaml, until told to stop",
		Long: `Delivers every committed message to every destination that wants it. Any number of relays may run: one owns
each destination (or each of its shard groups), the others stand by and take over.

SIGTERM and SIGINT end it in good order: it takes nothing new in, waits for what is in flight, settles it
and gives its leases back; a second signal ends it at once. A destination that can't be reached is tried
until it can, and holds up no other. A destination that gives up for good (policy "stop") leaves the others
running; the exit code is 1 in the end.

Health and metrics are at http.listen (default 127.0.0.1:9187): /livez, /readyz, /metrics.`,
		Example: `  outbox relay --config outbox.yaml
  outbox relay --set http.listen= --set log.level=debug

  # the least that outbox.yaml may say
  destinations:
    - name: events
      broker: {kafka: {brokers: ["localhost:9092"]}}`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if name != "" {
				sets = append(sets, "name="+name)
			}
			loaded, err := a.load(config.Input{}, sets)
			if err != nil {
				return err
			}
			a.limitGarbage(loaded.Config)
			err = a.relay(cmd.Context(), loaded.Config)
			if cmd.Context().Err() != nil && errors.Is(err, context.Canceled) {
				return nil // told to stop before it had begun
			}
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of this relay: an instance that restarts under its name takes its leases back at once (default: the host's name)")
	setFlag(cmd, &sets)
	return cmd
}

// limitGarbage collects earlier than Go does by default: what a relay keeps is bounded by max_in_flight and
// max_in_flight_bytes, it allocates little, and so memory costs more than the time of collecting. The limit is a soft
// one: twice the bytes that may be in flight, 1 KiB for each message, and 25 MiB for everything else. With 8 less,
// messages of 1,000 bytes reach it, and collecting costs more than all the rest. Whoever sets GOGC or GOMEMLIMIT knows better.
func (a *app) limitGarbage(cfg config.Config) {
	if a.getenv("GOGC") != "" || a.getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := int64(25 << 20)
	for _, d := range cfg.Destinations {
		group := 2*int64(d.Delivery.MaxInFlightBytes) + 1<<10*int64(d.Delivery.MaxInFlight)
		if kafka := d.Broker.Kafka; kafka != nil && kafka.ExactlyOnce {
			group += 10 << 20 // it takes turns with four producers, which keep their buffers
		}
		limit += group * int64(d.ShardGroups)
	}
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(limit)
}

func (a *app) relay(ctx context.Context, cfg config.Config) error {
	logger := a.newLogger(cfg.Log)
	at := address{cfg.Database.URL.Text(), "database.url"}
	if path, _ := a.configPath(); a.databaseURL != "" {
		at.origin = "--database-url"
	} else if path == "" {
		at.origin = "the environment"
	}
	conn, err := a.parse(at)
	if err != nil {
		return err
	}
	if readsOutbox(cfg) {
		if err := checkDatabase(ctx, conn, at.origin); err != nil {
			return err
		}
	}
	d := &daemon{cfg: cfg, conn: conn, stdout: a.stdout, logger: logger}
	if err := d.assemble(); err != nil {
		return err
	}
	defer d.closeBrokers()
	return d.run(ctx)
}

// checkDatabase refuses what no waiting cures, while somebody still looks at the terminal.
func checkDatabase(ctx context.Context, cfg *pgx.ConnConfig, origin string) error {
	conn, err := dial(ctx, cfg, origin)
	if err != nil {
		return err
	}
	defer disconnect(conn)
	state, err := schema.Status(ctx, conn)
	if err != nil {
		return err
	}
	if state.Standby {
		return fmt.Errorf("PostgreSQL at %s:%d is a hot standby, from which messages would be lost: connect to the primary "+
			"(with several hosts in the URL, add target_session_attrs=read-write)", cfg.Host, cfg.Port)
	}
	return schema.Check(ctx, conn)
}

// daemon is a running "outbox relay".
type daemon struct {
	cfg    config.Config
	conn   *pgx.ConnConfig
	stdout io.Writer
	logger *slog.Logger

	registration *polling.Registration

	retention *polling.Retention // nil if this relay leaves it to others

	metrics *metrics
	watch   *watch
	brokers []relay.Broker
	parts   []part

	selection  *selection
	unselected *polling.Unselected
	notify     *notifications
}

// part is one shard group of one destination.
type part struct {
	group       int
	destination config.Destination
	broker      *config.Opened
	selects     func(*outbox.Message) bool // nil: everything
}

// assemble makes everything that can be wrong before anything runs.
func (d *daemon) assemble() error {
	monitor := d.conn.Copy()
	monitor.RuntimeParams["application_name"] = "outbox monitor " + d.cfg.Name
	connect := func(ctx context.Context) (*pgx.Conn, error) { return dial(ctx, monitor, "the configuration") }
	var names []string
	for _, destination := range d.cfg.Destinations {
		if destination.Source == nil {
			names = append(names, destination.Name)
		}
	}
	d.metrics = newMetrics()
	d.watch = newWatch(names, d.metrics, d.logger, connect)

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
		var shared *config.Opened // by all groups, unless it is coupled to one
		for group := range destination.ShardGroups {
			p := part{group: group, destination: destination, broker: shared, selects: d.selection.of(i, rules)}
			if shared == nil {
				p.broker, err = destination.Open(config.Opening{Stdout: d.stdout, Group: group, Logger: d.logger.With("destination", destination.Name)})
				if err != nil {
					faults = append(faults, fmt.Errorf("destination %s: %w", destination.Name, err))
					break
				}
				if destination.Broker.Stdout != nil {
					signal.Ignore(syscall.SIGPIPE) // a reader that goes away is an outage, not the end
				}
				d.brokers = append(d.brokers, p.broker)
				if p.broker.Coupled == nil {
					shared = p.broker
				}
			}
			d.parts = append(d.parts, p)
		}
	}
	if len(faults) > 0 {
		d.closeBrokers()
		return coded{errors.Join(faults...), exitConfig}
	}
	return nil
}

func (d *daemon) closeBrokers() {
	for _, b := range d.brokers {
		if err := b.Close(); err != nil {
			d.logger.Warn("broker closed badly", "error", err)
		}
	}
}

// run delivers until ctx ends or every part has given up. The order of its end: relays drain and give
// their leases back; then health and metrics end; then the name is free again.
func (d *daemon) run(ctx context.Context) (err error) {
	var listener net.Listener
	if d.cfg.HTTP.Listen != "" {
		if listener, err = listen(d.cfg.HTTP.Listen); err != nil {
			return err
		}
		if public(listener.Addr()) {
			d.logger.Warn("health and metrics can be read from other machines, without authentication", "address", listener.Addr().String())
		}
	}

	fromOutbox := readsOutbox(d.cfg)
	if fromOutbox {
		if d.registration, err = d.register(ctx); err != nil {
			if listener != nil {
				_ = listener.Close() // no request has been served
			}
			return err
		}
		defer d.registration.Close()
	}

	aside, endAside := context.WithCancel(context.WithoutCancel(ctx))
	var besides sync.WaitGroup
	defer besides.Wait()
	defer endAside()
	if listener != nil {
		besides.Go(func() { serveHTTP(aside, listener, d.cfg.Name, d.watch, d.metrics, d.logger) })
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
	d.logger.Info("relay started", "relay", d.cfg.Name, "version", thisBuild().Version, "destinations", len(d.cfg.Destinations),
		"database", d.conn.Database, "http", d.cfg.HTTP.Listen, "pid", os.Getpid())
	announce := context.AfterFunc(ctx, func() { d.logger.Info("draining; a second signal ends at once", "relay", d.cfg.Name) })
	defer announce()
	err = d.deliver(ctx)
	_ = d.unselected.Close() // it is in the log
	d.logger.Info("relay stopped", "relay", d.cfg.Name)
	return err
}

// register takes the name of this relay.
func (d *daemon) register(ctx context.Context) (*polling.Registration, error) {
	return polling.Register(ctx, d.conn, d.cfg.Name, polling.RegistrationConfig{
		Version: thisBuild().Version,
		Lease:   d.longestLease(),
		Logger:  d.logger,
	})
}

// longestLease is for how long a silent namesake must be believed to deliver.
func (d *daemon) longestLease() (longest time.Duration) {
	for _, c := range d.cfg.Destinations {
		longest = max(longest, c.Lease)
	}
	return longest
}

// deliver runs every part, and returns what they ended with when all have.
func (d *daemon) deliver(ctx context.Context) error {
	var running sync.WaitGroup
	errs := make([]error, len(d.parts))
	for i, p := range d.parts {
		running.Go(func() {
			errs[i] = d.runPart(ctx, p)
			if errs[i] == nil {
				return
			}
			d.notify.stopped(p.destination.Name, errs[i])
			d.note(p, relay.StateStopped, errs[i])
			d.logger.Error("destination given up; others go on", "destination", p.destination.Name, "shard_group", p.group, "error", errs[i])
		})
	}
	running.Wait()
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil })...)
}

func (d *daemon) runPart(ctx context.Context, p part) error {
	c := p.destination
	logger := d.logger
	if c.ShardGroups > 1 {
		logger = logger.With("shard_group", p.group)
	}
	source, err := d.openSource(c, p.group, logger)
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
	engine.Observer = d.notify.observer(c.Name,
		d.metrics.observer(c.Name, p.group, func(state relay.State, err error) { d.note(p, state, err) }))
	r, err := relay.New(source, broker, engine)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// note passes on what is done with a table of a destination's own. Those that read the outbox have it in their cursors.
func (d *daemon) note(p part, state relay.State, err error) {
	if p.destination.Source != nil {
		d.noteTable(p.destination.Name, state, err)
	}
}
