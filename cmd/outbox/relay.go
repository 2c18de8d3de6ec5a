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

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/daemon"
	"github.com/pgoutbox/outbox/cmd/internal/discover"
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
			err = a.relay(cmd.Context(), loaded, sets)
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

func (a *app) relay(ctx context.Context, loaded *load.Loaded, sets []string) error {
	a.logger = a.Logger(loaded.Config.Log, &a.level)
	sources := a.Sources(loaded, a.logger)
	sources.Look(ctx)
	cfg := loaded.Config.With(sources.Entries())
	a.limitMemory(cfg)
	d, err := a.daemon(cfg, sources)
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
	t := &takeover{app: a, daemon: d, sources: sources, loaded: loaded, sets: sets}
	reloading.Go(func() { t.reloads(ctx, hangups) })
	reloading.Go(func() { sources.Run(ctx, t.discovered) })
	if slices.ContainsFunc(configured(cfg), func(d config.Destination) bool { return d.Broker.Stdout != nil }) {
		signal.Ignore(syscall.SIGPIPE) // a reader that goes away is an outage, not the end
	}
	return d.Run(ctx)
}

// daemon makes one. sources are where databases are looked for while it runs, nil if they are not.
func (a *app) daemon(cfg config.Config, sources *discover.Sources) (*daemon.Daemon, error) {
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
	options := daemon.Options{
		Several: cfg.Several(), Stdout: a.Stdout, Version: b.Version, Revision: b.Revision, Home: home, Logger: a.logger, Process: cfg,
	}
	switch {
	case sources != nil && cfg.Several():
		options.Discovery = sources.Status
	case len(databases) == 0:
		options.Discovery = func() []discover.Status { return nil } // it is not run
	}
	d, err := daemon.New(databases, options)
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
