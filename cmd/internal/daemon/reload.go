package daemon

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config"
)

// Reload takes over what another configuration says of the databases, and of who may use the API. A database whose
// settings are others drains and begins again with these; one that isn't named any more ends; the rest goes on
// untouched. next is what it says of the process: settings that need a restart are logged and keep their values.
// databases are as for [New]. It returns when that is begun, or Run has ended; on an error nothing has changed.
func (d *Daemon) Reload(next config.Config, databases []Database) error {
	if exposed := next.HTTP.Exposed(); d.exposed && exposed != "" {
		return errors.New("http.users: " + exposed)
	}
	if fixed := d.fixed(next, len(databases)); len(fixed) > 0 {
		d.logger.Warn("settings that a running relay can't change are others, and are used when it is started again",
			"settings", strings.Join(fixed, ", "))
	}
	for i := range databases { // the process's stay those that it began with
		c := &databases[i].Config
		c.Name, c.HTTP, c.Telemetry, c.Log, c.Fleet = d.cfg.Name, d.cfg.HTTP, d.cfg.Telemetry, d.cfg.Log, d.cfg.Fleet
		c.Limits = d.cfg.Limits
	}
	r := reload{databases, make(chan struct{})}
	select {
	case d.reloads <- r:
		d.gate.Store(newGate(next.HTTP))
		<-r.taken
	case <-d.done:
	}
	return nil
}

// fixed names the settings that differ and can't be changed.
func (d *Daemon) fixed(next config.Config, databases int) (names []string) {
	old, new := d.cfg, next
	old.HTTP.Users, new.HTTP.Users, old.HTTP.Proxy, new.HTTP.Proxy = nil, nil, nil, nil
	for _, s := range []struct {
		name     string
		old, new any
	}{{"name", old.Name, new.Name}, {"http", old.HTTP, new.HTTP}, {"telemetry", old.Telemetry, new.Telemetry},
		{"limits", old.Limits, new.Limits}, {"fleet", old.Fleet, new.Fleet}, {"log.format", old.Log.Format, new.Log.Format},
		{"databases in place of database", d.options.Several, d.options.Several || databases > 1}} {
		if !reflect.DeepEqual(s.old, s.new) {
			names = append(names, s.name)
		}
	}
	return names
}

// is reports whether u delivers what db says.
func (u *unit) is(db Database) bool { return u.Name == db.Name && u.same(db) }

// change ends the units that are not wanted as they are, and starts those that are missing. Where one has yet to end,
// it is called again when that has.
func (d *Daemon) change(ctx context.Context, start func(*unit)) {
	of := make(map[string]*unit)
	var over []*unit
	for _, u := range d.units {
		switch {
		case !u.ending && slices.ContainsFunc(d.wanted, u.is):
			of[u.Name] = u
		case u.stop != nil:
			of[u.Name] = u
			if u.ending {
				break
			}
			u.logger.Info("the database's configuration changed: draining", "relay", d.cfg.Name)
			u.ending = true
			u.stop()
		default:
			over = append(over, u)
		}
	}
	d.units = slices.DeleteFunc(d.units, func(u *unit) bool { return slices.Contains(over, u) })
	d.route()
	for _, u := range over { // nothing leads to it any more
		u.release()
	}
	names := make([]string, 0, len(d.wanted))
	d.units = nil
	for _, db := range d.wanted {
		names = append(names, db.Name)
		u := of[db.Name]
		if u == nil {
			u = d.begin(ctx, db, start)
		}
		if u != nil {
			d.units = append(d.units, u)
		}
	}
	for name, u := range of {
		if !slices.Contains(names, name) {
			d.units = append(d.units, u) // it drains
		}
	}
	d.route()
}

// begin makes and starts a unit, nil if that can't be.
func (d *Daemon) begin(ctx context.Context, db Database, start func(*unit)) *unit {
	options := d.options
	options.Logger = d.logger
	u, err := newUnit(db, d.metricsOf(db.Name), &d.clients, options)
	if err == nil {
		if err = d.connect(ctx, u, d.cfg.HTTP.Listen != ""); err != nil {
			u.release()
		}
	}
	if err != nil {
		d.logger.Error("a database can't be delivered from", slog.String("database", db.Name), "error", err)
		d.failed = err // it is what Run ends with, if nothing is left
		return nil
	}
	start(u)
	return u
}
