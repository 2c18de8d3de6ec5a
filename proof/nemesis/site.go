package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/proof/rig"
)

// site is a set of servers that serves one run after the other. Relays connect through proxies; writers and observers
// connect to the servers themselves.
type site struct {
	dir     string
	storage *storage // of the brokers; nil if none can be mounted
	pgDisk  *storage // of PostgreSQL; nil likewise

	pg    *servers.Postgres
	stale []*servers.Postgres // primaries that were replaced
	nats  *servers.NATS
	kafka *servers.Kafka

	// Poolers in front of PostgreSQL: one pools sessions, for a relay, and one pools transactions, for writers. nil if
	// there is no PgBouncer.
	sessions, transactions *servers.PgBouncer

	// Relays connect through toPG, with or without a pooler; the writers' pooler connects through fromPooler, which
	// breaks nothing.
	toPG, fromPooler, toNATS, toKafka *testnet.Proxy
}

// openSite starts everything, which takes some 5 s.
func openSite(ctx context.Context) (s *site, err error) {
	s = &site{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "outbox-nemesis-site-"); err != nil {
		return s, err
	}
	if err = os.Chmod(s.dir, 0o755); err != nil { // root's PostgreSQL runs as another user
		return s, err
	}
	if s.storage, err = mountStorage(filepath.Join(s.dir, "storage"), "nats", "kafka"); err != nil {
		return s, err
	}
	if s.pgDisk, err = mountStorage(filepath.Join(s.dir, "pgdisk")); err != nil {
		return s, err
	}
	for _, p := range []**testnet.Proxy{&s.toPG, &s.fromPooler, &s.toNATS, &s.toKafka} {
		if *p, err = testnet.StartProxy(); err != nil {
			return s, err
		}
	}
	if err = s.startPostgres(ctx); err != nil {
		return s, err
	}
	if err = s.startPoolers(ctx); err != nil {
		return s, err
	}
	if s.nats, err = servers.StartNATS(ctx, servers.NATSConfig{Storage: s.storage.folder("nats")}); err != nil {
		return s, err
	}
	s.toNATS.Forward(s.nats.Addr())
	s.kafka, err = servers.StartKafka(ctx, servers.KafkaConfig{Front: s.toKafka.Addr(), Storage: s.storage.folder("kafka"),
		Settings: map[string]string{
			"auto.create.topics.enable": "false", "log.segment.bytes": "4194304",
			"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found": "true",
		}})
	if err != nil {
		return s, err
	}
	s.toKafka.Forward(s.kafka.Behind())
	return s, nil
}

func (s *site) proxies() []*testnet.Proxy {
	return []*testnet.Proxy{s.toPG, s.fromPooler, s.toNATS, s.toKafka}
}

// startPoolers does nothing if there is no PgBouncer.
func (s *site) startPoolers(ctx context.Context) (err error) {
	s.sessions, err = servers.StartPgBouncer(ctx,
		servers.PgBouncerConfig{Server: s.toPG.Addr(), Settings: map[string]string{"pool_mode": "session"}})
	if errors.Is(err, servers.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	s.transactions, err = servers.StartPgBouncer(ctx, servers.PgBouncerConfig{Server: s.fromPooler.Addr()})
	return err
}

func (s *site) startPostgres(ctx context.Context) (err error) {
	config := servers.PostgresConfig{Storage: s.pgDisk.folder(""),
		Settings: map[string]string{"max_wal_size": "96MB", "min_wal_size": "32MB"}}
	if s.pg, err = servers.StartPostgres(ctx, config); err != nil {
		return err
	}
	s.forward()
	return nil
}

// forward directs new connections to the primary.
func (s *site) forward() {
	s.toPG.Forward(s.pg.Addr())
	s.fromPooler.Forward(s.pg.Addr())
}

// reviveDatabase returns when PostgreSQL answers. It restarts a server that has given up, as an operator would.
func (s *site) reviveDatabase(ctx context.Context) error {
	return rig.Until(ctx, drainWithin, 20*time.Millisecond, "PostgreSQL answers", func() (answers bool, err error) {
		if !s.pg.Running() {
			err = s.pg.Restart(ctx)
		}
		asking, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn, refused := pgx.Connect(asking, s.pg.URL("postgres"))
		if refused == nil {
			refused = conn.Close(asking)
		}
		return refused == nil, err
	})
}

// promote makes a standby the primary for new connections.
func (s *site) promote(ctx context.Context, standby *servers.Postgres) error {
	if err := standby.Promote(ctx); err != nil {
		return err
	}
	s.stale = append(s.stale, s.pg)
	s.pg = standby
	s.forward()
	return nil
}

// can reports whether a fault can be had here.
func (s *site) can(f fault) bool {
	return (!f.disk || s.storage != nil && s.pgDisk != nil) && (!f.pooler || s.transactions != nil)
}

// lacks returns what can't be had here, "" if nothing.
func (s *site) lacks() string {
	var lacking []string
	if s.storage == nil || s.pgDisk == nil {
		lacking = append(lacking, "no disk gets full (that takes root on Linux)")
	}
	if s.transactions == nil {
		lacking = append(lacking, "no client uses a pooler (PgBouncer is not installed)")
	}
	return strings.Join(lacking, "; ")
}

// heal repairs what a run may have left: everything runs and answers.
func (s *site) heal(ctx context.Context) error {
	for _, p := range s.proxies() {
		p.Heal()
	}
	var errs []error
	errs = append(errs, s.storage.free(), s.pgDisk.free())
	if len(s.stale) > 0 {
		for _, p := range append(s.stale, s.pg) {
			errs = append(errs, p.Close())
		}
		s.stale = nil
		errs = append(errs, s.startPostgres(ctx))
	}
	all := []*servers.Server{&s.pg.Server, &s.nats.Server, &s.kafka.Server}
	if s.transactions != nil {
		all = append(all, &s.sessions.Server, &s.transactions.Server)
	}
	for _, server := range all {
		errs = append(errs, server.Thaw())
		if !server.Running() {
			errs = append(errs, server.Restart(ctx))
		}
	}
	return errors.Join(errs...)
}

// database creates an empty database and returns its name.
func (s *site) database(ctx context.Context) (string, error) { return s.pg.CreateDatabase(ctx) }

func (s *site) dropDatabase(ctx context.Context, name string) error {
	if len(s.stale) > 0 {
		return nil // it is deleted with the cluster
	}
	return s.pg.DropDatabase(ctx, name)
}

// relayURL is the database's address for a relay, pooled or not.
func (s *site) relayURL(database string, pooled bool) string {
	addr := s.toPG.Addr()
	if pooled && s.sessions != nil {
		addr = s.sessions.Addr()
	}
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable&connect_timeout=3", addr, database)
}

// writerURL is the database's address for writers.
func (s *site) writerURL(database string, pooled bool) string {
	if pooled && s.transactions != nil {
		return s.transactions.URL(database)
	}
	return s.pg.URL(database)
}

// close ends everything that was started.
func (s *site) close() error {
	var errs []error
	for _, p := range append(s.stale, s.pg) {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	for _, b := range []*servers.PgBouncer{s.sessions, s.transactions} {
		if b != nil {
			errs = append(errs, b.Close())
		}
	}
	if s.nats != nil {
		errs = append(errs, s.nats.Close())
	}
	if s.kafka != nil {
		errs = append(errs, s.kafka.Close())
	}
	for _, p := range s.proxies() {
		if p != nil {
			p.Close()
		}
	}
	errs = append(errs, s.storage.unmount(), s.pgDisk.unmount())
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}
