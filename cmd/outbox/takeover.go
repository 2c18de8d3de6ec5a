package main

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/daemon"
	"github.com/pgoutbox/outbox/cmd/internal/discover"
)

// takeover gives a relay that runs another configuration, and other databases as they are discovered.
type takeover struct {
	*app
	daemon  *daemon.Daemon
	sources *discover.Sources
	sets    []string

	mu     sync.Mutex // one at a time
	loaded *load.Loaded
}

// settling is how long a configuration is kept before the next one replaces it. A database whose settings changed
// begins again: with each signal of many it would do nothing else.
const settling = 2 * time.Second

// reloads reads the configuration again with each SIGHUP, until ctx ends. One that is at fault changes nothing. Signals
// that come while one settles are one.
func (t *takeover) reloads(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		done := daemon.Reloading(os.Getenv)
		err := t.reload()
		if done(err); err != nil {
			t.logger.Error("the configuration is not taken over; all goes on as before", "error", err)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(settling):
		}
	}
}

func (t *takeover) reload() error {
	loaded, err := t.Load(load.Input{}, t.sets)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sources.Configure(loaded)
	databases, err := t.take(loaded)
	if err != nil {
		t.sources.Configure(t.loaded)
		return err
	}
	t.loaded = loaded
	_ = t.level.UnmarshalText([]byte(loaded.Config.Log.Level)) // the configuration allows no other
	t.logger.Info("configuration read again", "databases", databases)
	return nil
}

// discovered takes over what the sources have now.
func (t *takeover) discovered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.take(t.loaded); err != nil {
		t.logger.Error("the databases that were discovered are not taken over; all goes on as before", "error", err)
	}
}

// take gives the relay the databases of a configuration and of the sources, and returns how many they are.
func (t *takeover) take(loaded *load.Loaded) (int, error) {
	cfg := loaded.Config.With(t.sources.Entries())
	databases, err := t.databases(cfg)
	if err == nil {
		err = t.daemon.Reload(cfg, databases)
	}
	if err == nil {
		t.limitMemory(cfg)
	}
	return len(databases), err
}
