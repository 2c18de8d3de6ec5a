package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/console"
	"github.com/pgoutbox/outbox/internal/dial"
)

// challenge has browsers ask who they are used by.
const challenge = `Basic realm="outbox", charset="UTF-8"`

// openAPI makes the API, with connections of its own: few, and none while it isn't asked. closePools closes them.
func (u *unit) openAPI(ctx context.Context, access func(*http.Request) (rest.Caller, error)) (api *rest.API, closePools func(), err error) {
	closePools = func() {}
	defer func() {
		if err != nil {
			closePools()
			closePools = func() {}
		}
	}()
	cfg := u.cfg.HTTP
	operators, err := pool(ctx, u.aside(), "outbox api "+u.cfg.Name)
	if err != nil {
		return nil, closePools, fmt.Errorf("the API's connections to the database: %w", err)
	}
	closePools = operators.Close
	options := rest.Options{DB: operators, Access: access, Challenge: challenge, Logger: u.logger}
	if viewers := u.cfg.Database.ViewerURL; !viewers.Empty() {
		viewer, err := pgx.ParseConfig(viewers.Text())
		if err != nil { // its text may have a piece of a password
			return nil, closePools, errors.New("database.viewer_url can't be used as a database URL such as postgres://user:password@host:5432/database")
		}
		viewer.RuntimeParams["client_encoding"] = "UTF8"
		viewer.DialFunc = u.sessions.DialAside(viewer.DialFunc)
		viewers, err := pool(ctx, viewer, "outbox viewer "+u.cfg.Name)
		if err != nil {
			return nil, closePools, fmt.Errorf("the API's connections for viewers: %w", err)
		}
		options.ViewerDB = viewers
		closePools = func() {
			operators.Close()
			viewers.Close()
		}
	}
	if len(cfg.Mask) > 0 {
		if options.Mask, err = rest.Mask(cfg.Mask); err != nil {
			return nil, closePools, fmt.Errorf("http.mask: %w", err)
		}
	}
	options.MaskHeader = rest.MaskHeaders(cfg.MaskHeaders)
	api, err = rest.New(options)
	return api, closePools, err
}

func pool(ctx context.Context, conn *pgx.ConnConfig, name string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(conn.ConnString())
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig = conn.Copy()
	cfg.ConnConfig.RuntimeParams["application_name"] = name
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	cfg.AfterConnect = dial.Operate
	cfg.MaxConns, cfg.MinConns, cfg.MaxConnIdleTime = 4, 0, time.Minute
	return pgxpool.NewWithConfig(ctx, cfg)
}

// connect gives a unit the process's traces, and opens its API.
func (d *Daemon) connect(ctx context.Context, u *unit, served bool) (err error) {
	u.traces, u.served = d.traces, served
	if served && d.cfg.HTTP.API {
		if u.api, u.closePools, err = u.openAPI(ctx,
			func(r *http.Request) (rest.Caller, error) { return d.gate.Load().within(u.Name, r) }); err != nil {
			return err
		}
		options := console.Options{API: u.api, Report: u.watch.current, History: u.watch.history}
		if d.options.Several {
			options.Name, options.Databases = u.Name, d.databases
		}
		u.page, err = console.New(options)
	}
	return err
}

// databases are those that are served, for each other's consoles.
func (d *Daemon) databases() (list []console.Database) {
	var members map[string]string
	if d.member != nil {
		members = d.member.owners()
	}
	for _, u := range *d.routed.Load() {
		db := console.Database{Name: u.Name, Report: &health.Report{}, Elsewhere: u.watch.elsewhere(),
			Member: members[u.Name]}
		if !db.Elsewhere {
			db.Report, db.Age = u.watch.summary()
		}
		if u.page != nil {
			db.Path = "../../" + u.Name + "/console/" // from "databases" of another's
		}
		list = append(list, db)
	}
	return list
}
