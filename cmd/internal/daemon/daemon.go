// Package daemon runs what a configuration says: for each database a relay for each shard group of each destination,
// retention and notifications; around them health, metrics and the API.
package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"reflect"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/console"
	"github.com/pgoutbox/outbox/relay"
)

// Database is one to deliver from.
type Database struct {
	// Name is the one in the configuration.
	Name string

	// Origin says where the address of the database was found, for errors.
	Origin string

	Conn *pgx.ConnConfig

	// Config is valid, as package load returns it. What it says of the process is the same in all.
	Config config.Config
}

// same reports whether nothing that concerns the database differs.
func (db Database) same(other Database) bool {
	a, b := db.Config, other.Config
	return reflect.DeepEqual([]any{a.Database, a.Retention, a.Notify, a.Destinations},
		[]any{b.Database, b.Retention, b.Notify, b.Destinations})
}

// Daemon delivers what one configuration says, from each of its databases. It has no global state, so several may run
// in one process.
type Daemon struct {
	options  Options
	logger   *slog.Logger
	cfg      config.Config // for what concerns the process
	registry *prometheus.Registry
	process  *process
	traces   *traces
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

// Options is what a Daemon needs beside its configuration.
type Options struct {
	// Several means that the configuration has a list of databases: one that can't be used is tried until it can, where
	// a single one that can't be used at the start ends Run.
	Several bool

	// Stdout gets the messages of destinations with the broker stdout.
	Stdout io.Writer

	// Version and Revision are those of the program.
	Version, Revision string

	// Logger is required.
	Logger *slog.Logger
}

// New makes a Daemon. It connects to nothing, and reports all faults together. There is at least one database.
func New(databases []Database, options Options) (*Daemon, error) {
	d := &Daemon{options: options, logger: options.Logger, cfg: databases[0].Config, registry: prometheus.NewRegistry(), wanted: databases,
		reloads: make(chan reload), done: make(chan struct{})}
	d.process = newProcess(newBook(d.registry, ""), options)
	d.gate.Store(newGate(d.cfg.HTTP))
	d.clients.Logger = relay.Bounded(d.logger)
	var faults []error
	for _, db := range databases {
		u, err := newUnit(db, d.registry, &d.clients, options)
		if err != nil {
			faults = append(faults, d.about(db, err))
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

// about names the database of an error, if there are several.
func (d *Daemon) about(db Database, err error) error {
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

// Run delivers until ctx ends or every part has given up. The order of its end: relays drain and give
// their leases back; then health and metrics end; then the name is free again. It runs once.
func (d *Daemon) Run(ctx context.Context) (err error) {
	defer close(d.done)
	defer func() { d.release() }()
	if d.traces, err = d.openTraces(ctx); err != nil {
		return err
	}
	defer d.traces.close()
	alone := d.units[0]
	if alone.watch.outbox && !d.options.Several {
		if err := alone.checkDatabase(ctx); err != nil {
			return err
		}
	}
	listener, err := d.listen()
	if err != nil {
		return err
	}
	if alone.watch.outbox && !d.options.Several {
		err = alone.register(ctx)
	}
	aside, endAside := context.WithCancel(context.WithoutCancel(ctx))
	var besides sync.WaitGroup
	defer besides.Wait()
	defer endAside()
	for _, u := range d.units {
		if err == nil {
			err = d.equip(aside, u, listener != nil)
		}
	}
	if err != nil {
		if listener != nil {
			_ = listener.Close() // no request has been served
		}
		return err
	}
	if listener != nil {
		d.route()
		besides.Go(func() { d.serveHTTP(aside, listener) })
	}

	destinations := 0
	for _, db := range d.wanted {
		destinations += len(db.Config.Destinations)
	}
	d.logger.Info("relay started", "relay", d.cfg.Name, "version", d.options.Version, "databases", len(d.wanted),
		"destinations", destinations, "http", d.cfg.HTTP.Listen, "pid", os.Getpid())
	besides.Go(func() { supervised(aside, os.Getenv) }) // its watchdog while it drains, too
	announce := context.AfterFunc(ctx, func() { d.logger.Info("draining; a second signal ends at once", "relay", d.cfg.Name) })
	defer announce()
	err = d.deliver(ctx, aside)
	d.logger.Info("relay stopped", "relay", d.cfg.Name)
	return err
}

// listen opens the port, nil if there is none.
func (d *Daemon) listen() (net.Listener, error) {
	if d.cfg.HTTP.Listen == "" {
		return nil, nil
	}
	listener, err := listen(d.cfg.HTTP.Listen)
	if err != nil {
		return nil, err
	}
	if d.exposed = public(listener.Addr()); d.exposed {
		if exposed := d.cfg.HTTP.Exposed(); exposed != "" {
			_ = listener.Close() // no request has been served
			return nil, fmt.Errorf("http.listen is %s: %s", d.cfg.HTTP.Listen, exposed)
		}
		d.logger.Warn("health and metrics can be read from other machines, without authentication", "address", listener.Addr().String())
	}
	if secure := d.cfg.HTTP.TLS.Config(); secure != nil {
		listener = tls.NewListener(listener, secure)
	}
	return listener, nil
}

// equip gives a unit what is the process's, and an API of its own.
func (d *Daemon) equip(ctx context.Context, u *unit, served bool) (err error) {
	u.traces, u.served = d.traces, served
	if served && d.cfg.HTTP.API {
		if u.api, u.closePools, err = u.openAPI(ctx,
			func(r *http.Request) (rest.Caller, error) { return d.gate.Load().within(u.Name, r) }); err != nil {
			return err
		}
		options := console.Options{API: u.api, Report: u.watch.amended, History: u.watch.history}
		if d.options.Several {
			options.Name, options.Databases = u.Name, d.databases
		}
		u.page, err = console.New(options)
	}
	return err
}

// databases are those that are served, for each other's consoles.
func (d *Daemon) databases() (list []console.Database) {
	for _, u := range *d.routed.Load() {
		db := console.Database{Name: u.Name}
		if db.Report, db.Age = u.watch.glance(); u.page != nil {
			db.Path = "../../" + u.Name + "/console/" // from "databases" of another's
		}
		list = append(list, db)
	}
	return list
}

// deliver runs the units, and others in their place when the configuration changes, until ctx has ended and they have,
// or all have given up.
func (d *Daemon) deliver(ctx, aside context.Context) error {
	type outcome struct {
		unit *unit
		err  error
	}
	ended := make(chan outcome)
	running := 0
	start := func(u *unit) {
		own, stop := context.WithCancel(ctx)
		u.stop = stop
		running++
		go func() { ended <- outcome{u, u.run(own)} }()
	}
	for _, u := range d.units {
		start(u)
	}
	errs := make(map[*unit]error)
	for running > 0 {
		select {
		case o := <-ended:
			running--
			o.unit.stop()
			o.unit.stop = nil
			if errs[o.unit] = o.err; ctx.Err() == nil && o.unit.ending {
				d.change(aside, start)
			}
		case r := <-d.reloads:
			d.wanted, d.failed = r.databases, nil
			d.change(aside, start)
			close(r.taken)
		}
	}
	all := []error{d.failed}
	for _, u := range d.units {
		all = append(all, errs[u])
	}
	return errors.Join(all...)
}
