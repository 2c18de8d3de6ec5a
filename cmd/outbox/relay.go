package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/daemon"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/session"
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
and gives its leases back; a second signal ends it at once. SIGHUP makes it read
the configuration again; what it can't take over is named in the log. A destination that can't be reached is tried
until it can, and holds up no other. A destination that gives up for good (policy "stop") leaves the others
running; the exit code is 1 in the end.

Health and metrics are at http.listen (default 127.0.0.1:9187): /livez; /readyz (this process can do its work);
/healthz/destinations (they deliver: the verdict of outbox status); /metrics.`,
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
			loaded, err := a.Load(load.Input{}, sets)
			if err != nil {
				return err
			}
			a.limitMemory(loaded.Config)
			err = a.relay(cmd.Context(), loaded.Config, sets)
			if cmd.Context().Err() != nil && errors.Is(err, context.Canceled) {
				return nil // told to stop before it had begun
			}
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "name of this relay: an instance that restarts under its name takes its "+
		"leases back at once (default: the host's name)")
	session.SetFlag(cmd, &sets)
	return cmd
}

// limitMemory makes Go collect garbage earlier when a relay has more memory than it needs: what it keeps is bounded by
// max_in_flight and max_in_flight_bytes. The limit is a soft one: twice the bytes that may be in flight, 1 KiB for each
// message, and 25 MiB for everything else. With 8 less, messages of 1,000 bytes reach it, and collecting costs more
// than all the rest. Below the limit garbage is collected as usual (GOGC=100): at 50, as much memory was used, and
// messages cost a sixth more of the relay's processor, those of 10 kB a quarter. GOMEMLIMIT has precedence.
func (a *app) limitMemory(cfg config.Config) {
	if a.Getenv("GOMEMLIMIT") != "" {
		return
	}
	limit := int64(25 << 20)
	for _, d := range configured(cfg) {
		group := 2*int64(d.Delivery.MaxInFlightBytes) + 1<<10*int64(d.Delivery.MaxInFlight)
		if kafka := d.Broker.Kafka; kafka != nil && kafka.ExactlyOnce {
			group += 10 << 20 // it takes turns with four producers, which keep their buffers
		}
		limit += group * int64(d.ShardGroups)
	}
	debug.SetMemoryLimit(limit)
}

// configured are those of all databases.
func configured(cfg config.Config) (all []config.Destination) {
	for _, one := range cfg.All() {
		all = append(all, one.Destinations...)
	}
	return all
}

func (a *app) relay(ctx context.Context, cfg config.Config, sets []string) error {
	d, err := a.daemon(cfg)
	if err != nil {
		return err
	}
	var reloading sync.WaitGroup
	defer reloading.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	reloading.Go(func() { a.reloads(ctx, hangups, d, sets) })
	if slices.ContainsFunc(configured(cfg), func(d config.Destination) bool { return d.Broker.Stdout != nil }) {
		signal.Ignore(syscall.SIGPIPE) // a reader that goes away is an outage, not the end
	}
	return d.Run(ctx)
}

func (a *app) daemon(cfg config.Config) (*daemon.Daemon, error) {
	databases, err := a.databases(cfg)
	if err != nil {
		return nil, err
	}
	b := thisBuild()
	home, err := a.home(cfg)
	if err != nil {
		return nil, err
	}
	a.logger = a.Logger(cfg.Log, &a.level)
	d, err := daemon.New(databases, daemon.Options{
		Several: cfg.Several(), Stdout: a.Stdout, Version: b.Version, Revision: b.Revision, Home: home, Logger: a.logger,
	})
	if err != nil {
		return nil, exit.With(exit.Config, err)
	}
	return d, nil
}

// home is the address of the fleet's home, nil if the configuration has none.
func (a *app) home(cfg config.Config) (*pgx.ConnConfig, error) {
	if cfg.Fleet == nil || cfg.Fleet.Home.URL.Empty() {
		return nil, nil
	}
	return a.Parse(session.Address{URL: cfg.Fleet.Home.URL.Text(), Origin: "fleet.home.url"})
}

// databases are those of the configuration.
func (a *app) databases(cfg config.Config) (list []daemon.Database, err error) {
	for _, one := range cfg.All() {
		at := session.Address{URL: one.Database.URL.Text(), Origin: "database.url"}
		if path := a.ConfigPath(); cfg.Several() {
			at.Origin = "database.url of " + one.Name
		} else if a.DatabaseURL != "" {
			at.Origin = "--database-url"
		} else if path == "" {
			at.Origin = "the environment"
		}
		conn, err := a.Parse(at)
		if err != nil {
			return nil, err
		}
		list = append(list, daemon.Database{Name: one.Name, Origin: at.Origin, Conn: conn, Config: one.Config})
	}
	return list, nil
}

// settling is how long a configuration is kept before the next one replaces it. A database whose settings changed
// begins again: with each signal of many it would do nothing else.
const settling = 2 * time.Second

// reloads reads the configuration again with each SIGHUP, until ctx ends. One that is at fault changes nothing. Signals
// that come while one settles are one.
func (a *app) reloads(ctx context.Context, hangups <-chan os.Signal, d *daemon.Daemon, sets []string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		done := daemon.Reloading(os.Getenv)
		err := a.reload(d, sets)
		if done(err); err != nil {
			a.logger.Error("the configuration is not taken over; all goes on as before", "error", err)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settling):
		}
	}
}

func (a *app) reload(d *daemon.Daemon, sets []string) error {
	loaded, err := a.Load(load.Input{}, sets)
	if err != nil {
		return err
	}
	databases, err := a.databases(loaded.Config)
	if err == nil {
		err = d.Reload(databases)
	}
	if err != nil {
		return err
	}
	_ = a.level.UnmarshalText([]byte(loaded.Config.Log.Level)) // the configuration allows no other
	a.logger.Info("configuration read again", "databases", len(databases))
	return nil
}
