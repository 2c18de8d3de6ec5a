package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pgoutbox/outbox/cmd/internal/rig"
	"github.com/pgoutbox/outbox/internal/servers"
)

// site is a set of servers that serves one run after the other. Relays come through proxies; writers and
// whoever looks go to the servers themselves.
type site struct {
	dir     string
	storage *storage // of the brokers; nil where none can be mounted

	pg    *servers.Postgres
	stale []*servers.Postgres // primaries that were replaced
	nats  *servers.NATS
	kafka *servers.Kafka

	toPG, toNATS, toKafka *rig.Proxy
}

// openSite starts everything, some 5 s.
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
	if s.storage, err = mountStorage(filepath.Join(s.dir, "storage")); err != nil {
		return s, err
	}
	for _, p := range []**rig.Proxy{&s.toPG, &s.toNATS, &s.toKafka} {
		if *p, err = rig.StartProxy(); err != nil {
			return s, err
		}
	}
	if err = s.startPostgres(ctx); err != nil {
		return s, err
	}
	if s.nats, err = servers.StartNATS(ctx, servers.NATSConfig{Storage: s.storage.folder("nats")}); err != nil {
		return s, err
	}
	s.toNATS.Forward(s.nats.Addr())
	s.kafka, err = servers.StartKafka(ctx, servers.KafkaConfig{Front: s.toKafka.Addr(), Storage: s.storage.folder("kafka"),
		Settings: map[string]string{"auto.create.topics.enable": "false", "log.segment.bytes": "4194304"}})
	if err != nil {
		return s, err
	}
	s.toKafka.Forward(s.kafka.Behind())
	return s, nil
}

func (s *site) startPostgres(ctx context.Context) (err error) {
	if s.pg, err = servers.StartPostgres(ctx, servers.PostgresConfig{}); err != nil {
		return err
	}
	s.toPG.Forward(s.pg.Addr())
	return nil
}

// promote makes a standby the primary for everybody who comes from now on.
func (s *site) promote(ctx context.Context, standby *servers.Postgres) error {
	if err := standby.Promote(ctx); err != nil {
		return err
	}
	s.stale = append(s.stale, s.pg)
	s.pg = standby
	s.toPG.Forward(s.pg.Addr())
	return nil
}

// heal undoes what a run may have left behind: everything runs and answers.
func (s *site) heal(ctx context.Context) error {
	for _, p := range []*rig.Proxy{s.toPG, s.toNATS, s.toKafka} {
		p.Heal()
	}
	var errs []error
	if err := s.storage.free(); err != nil {
		errs = append(errs, err)
	}
	if len(s.stale) > 0 {
		for _, p := range append(s.stale, s.pg) {
			errs = append(errs, p.Close())
		}
		s.stale = nil
		errs = append(errs, s.startPostgres(ctx))
	}
	for _, server := range []*servers.Server{&s.pg.Server, &s.nats.Server, &s.kafka.Server} {
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
		return nil // it goes with the cluster
	}
	return s.pg.DropDatabase(ctx, name)
}

// relayURL is the database as relays reach it.
func (s *site) relayURL(database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable&connect_timeout=3", s.toPG.Addr(), database)
}

// close ends everything that was started.
func (s *site) close() error {
	var errs []error
	for _, p := range append(s.stale, s.pg) {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	if s.nats != nil {
		errs = append(errs, s.nats.Close())
	}
	if s.kafka != nil {
		errs = append(errs, s.kafka.Close())
	}
	for _, p := range []*rig.Proxy{s.toPG, s.toNATS, s.toKafka} {
		if p != nil {
			p.Close()
		}
	}
	errs = append(errs, s.storage.unmount())
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}
