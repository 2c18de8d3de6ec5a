package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/relay/registration"
	"github.com/pgoutbox/outbox/relay/retention"
)

// relaySettings are the settings of a relay. Everything else has its default.
type relaySettings struct {
	Name        string
	DatabaseURL string
	Database    string // overrides the one in DatabaseURL
	NATS        string // its URL
}

// runRelay runs a relay with the settings in a file, as a process of its own, until ctx ends.
func runRelay(ctx context.Context, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var s relaySettings
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	conn, err := pgx.ParseConfig(s.DatabaseURL)
	if err != nil {
		return err
	}
	conn.Database = s.Database
	registration, err := registration.Register(ctx, conn, s.Name, registration.Config{Version: "demo", Logger: logger})
	if err != nil {
		return err
	}
	defer registration.Close()
	source, err := polling.NewSnapshot(conn, destination, polling.SnapshotConfig{Registration: registration, Logger: logger})
	if err != nil {
		return err
	}
	retention, err := retention.New(conn, retention.Config{Logger: logger})
	if err != nil {
		return err
	}
	broker, err := nats.New(s.NATS, nats.Config{Stream: stream})
	if err != nil {
		return err
	}
	defer broker.Close()
	r, err := relay.New(source, broker, relay.Config{Name: destination, Logger: logger})
	if err != nil {
		return err
	}
	aside, end := context.WithCancel(context.WithoutCancel(ctx))
	var emptying sync.WaitGroup
	emptying.Go(func() { _ = retention.Run(aside) }) // it ends with aside, and logs its errors
	defer emptying.Wait()
	defer end()
	return r.Run(ctx)
}
