package daemon

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/pgoutbox/outbox/cmd/internal/telemetry"
	"github.com/pgoutbox/outbox/oteloutbox"
)

// Run delivers until ctx ends or every part has given up. The order of its end: relays drain and give
// their leases back; then health and metrics end; then the name is free again. It runs once.
func (d *Daemon) Run(ctx context.Context) (err error) {
	defer close(d.done)
	defer func() { d.release() }()
	if d.traces, err = d.openTraces(ctx); err != nil {
		return err
	}
	defer d.traces.close()
	var alone *unit // on whose database nobody else's delivery depends
	if !d.options.Several && d.member == nil && d.units[0].watch.ofOutbox() {
		alone = d.units[0]
		if err := alone.checkDatabase(ctx); err != nil {
			return err
		}
	}
	listener, err := d.listen()
	if err != nil {
		return err
	}
	if alone != nil {
		err = alone.register(ctx)
	}
	background, endBackground := context.WithCancel(context.WithoutCancel(ctx))
	var workers sync.WaitGroup
	defer workers.Wait()
	defer endBackground()
	for _, u := range d.units {
		if err == nil {
			err = d.connect(background, u, listener != nil)
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
		workers.Go(func() { d.serveHTTP(background, listener) })
	}

	destinations := 0
	for _, db := range d.wanted {
		destinations += len(db.Config.Destinations)
	}
	d.logger.Info("relay started", "relay", d.cfg.Name, "version", d.options.Version, "databases", len(d.wanted),
		"destinations", destinations, "http", d.cfg.HTTP.Listen, "pid", os.Getpid())
	workers.Go(func() { supervised(background, os.Getenv) }) // its watchdog while it drains, too
	announce := context.AfterFunc(ctx, func() { d.logger.Info("draining; a second signal ends at once", "relay", d.cfg.Name) })
	defer announce()
	err = d.deliver(d.serving(ctx, background, &workers), background)
	d.logger.Info("relay stopped", "relay", d.cfg.Name)
	return err
}

// serving returns the context in which units run. A member of a fleet first hands over what it has when ctx ends.
func (d *Daemon) serving(ctx, background context.Context, workers *sync.WaitGroup) context.Context {
	if d.member == nil {
		return ctx
	}
	workers.Go(func() { d.member.run(background) })
	serving, stop := context.WithCancel(background)
	workers.Go(func() {
		defer stop()
		select {
		case <-ctx.Done():
			d.member.leave()
		case <-background.Done():
		}
	})
	return serving
}

// place tells the member of the fleet which units there are.
func (d *Daemon) place() {
	if d.member != nil {
		d.member.serve(d.units, d.wanted)
	}
}

// deliver runs the units, and others in their place when the configuration changes, until ctx has ended and they have,
// or all have given up.
func (d *Daemon) deliver(ctx, background context.Context) error {
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
	d.place()
	errs := make(map[*unit]error)
	for running > 0 || d.awaits() && ctx.Err() == nil {
		var over <-chan struct{}
		if running == 0 {
			over = ctx.Done()
		}
		select {
		case <-over:
		case o := <-ended:
			running--
			o.unit.stop()
			o.unit.stop = nil
			if errs[o.unit] = o.err; ctx.Err() == nil && o.unit.ending {
				d.change(background, start)
				d.place()
			}
		case r := <-d.reloads:
			d.wanted, d.failed = r.databases, nil
			d.change(background, start)
			d.place()
			close(r.taken)
		}
	}
	all := []error{d.failed}
	for _, u := range d.units {
		all = append(all, errs[u])
	}
	return errors.Join(all...)
}

// awaits reports whether there is no database yet, or none any more, and one may be discovered.
func (d *Daemon) awaits() bool { return d.options.Discovery != nil && len(d.units) == 0 }

func (d *Daemon) openTraces(ctx context.Context) (*traces, error) {
	cfg := telemetry.Config{
		Endpoint: d.cfg.Telemetry.Endpoint, Authorization: d.cfg.Telemetry.Authorization.Text(),
		Instance: d.cfg.Name, Version: d.options.Version, Logger: d.logger,
		Observe: func(o telemetry.Outcome, n int) { d.process.spans.WithLabelValues(string(o)).Add(float64(n)) },
	}
	wanted, err := telemetry.Wanted(cfg, os.Getenv)
	if !wanted || err != nil {
		return nil, err
	}
	for _, o := range telemetry.Outcomes() {
		cfg.Observe(o, 0) // counters that are there before the first span
	}
	exporter, err := telemetry.New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &traces{exporter, oteloutbox.New(exporter.Provider()), d.process.spans}, nil
}
