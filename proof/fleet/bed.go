package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig"
)

// bed is what the fleet runs on.
type bed struct {
	options
	dir      string
	rng      *rand.Rand
	clusters []*servers.Postgres
	sources  []*source
	receiver *httptest.Server
	home     string // the URL of its database
	relays   []*rig.Relay

	faults []happened
}

// source is a database, with what has come from it. It is a target of the rig, without a broker of its own.
type source struct {
	rig.Target
	name    string
	cluster int
	url     string
	load    *rig.Load

	mu  sync.Mutex
	got []arrival
}

// arrival is one message that came.
type arrival struct {
	check.ID
	at time.Time
}

func (b *bed) open(ctx context.Context) (err error) {
	b.receiver = httptest.NewServer(http.HandlerFunc(b.receive))
	if b.binary == "" {
		if b.binary, err = rig.Build(ctx, b.dir); err != nil {
			return err
		}
	}
	each := b.databases/b.options.clusters + 1
	for range b.options.clusters {
		pg, err := servers.StartPostgres(ctx, servers.PostgresConfig{Settings: map[string]string{
			"max_connections": fmt.Sprint(100 + each*(10+3*b.processes)), "shared_buffers": "64MB"}})
		if err != nil {
			return err
		}
		b.clusters = append(b.clusters, pg)
	}
	for i := range b.databases {
		s := &source{name: fmt.Sprintf("db%d", i), cluster: i % b.options.clusters}
		if s.url, err = b.database(ctx, b.clusters[s.cluster]); err != nil {
			return err
		}
		s.load, err = rig.NewLoad(ctx, rig.LoadConfig{URL: s.url, Topic: "orders", Keys: 5, Writers: 2, Seed: b.seed + uint64(i),
			Size: 100, Rate: b.rate / b.databases})
		if err != nil {
			return err
		}
		b.sources = append(b.sources, s)
	}
	if b.home, err = b.database(ctx, b.clusters[0]); err != nil {
		return err
	}
	home, err := rig.NewLoad(ctx, rig.LoadConfig{URL: b.home, Keys: 1}) // for its schema
	if err != nil {
		return err
	}
	home.Close()
	for i := range b.processes {
		config, err := b.config(rig.RelayName(i))
		if err != nil {
			return err
		}
		relay, err := rig.StartRelay(b.binary, b.dir, rig.RelayName(i), config)
		if err != nil {
			return err
		}
		b.relays = append(b.relays, relay)
	}
	for _, relay := range b.relays {
		if err := relay.Up(ctx, time.Minute); err != nil {
			return err
		}
	}
	for _, s := range b.sources {
		s.load.Start()
	}
	return nil
}

func (b *bed) database(ctx context.Context, pg *servers.Postgres) (url string, err error) {
	name, err := pg.CreateDatabase(ctx)
	return pg.URL(name), err
}

func (b *bed) config(name string) (string, error) {
	address, err := rig.FreeAddress()
	if err != nil {
		return "", err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "name: %s\nhttp: {listen: %q}\nfleet: {home: {url: %q}}\ndatabases:\n", name, address, b.home)
	for i, s := range b.sources {
		fmt.Fprintf(&text, "  - {name: %s, database: {url: %q}, destinations: [{name: web, broker: {http: "+
			"{url: \"%s/%d\", allow_networks: [127.0.0.0/8]}}}]}\n", s.name, s.url, b.receiver.URL, i)
	}
	return text.String(), nil
}

// receive notes which message has come from which database.
func (b *bed) receive(w http.ResponseWriter, r *http.Request) {
	var i int
	body, err := io.ReadAll(r.Body)
	if err == nil {
		_, err = fmt.Sscanf(r.URL.Path, "/%d", &i)
	}
	id, decodes := check.Decode(rig.Unwrap(body))
	if err = errors.Join(err, decodes); err != nil || i >= len(b.sources) {
		http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	s := b.sources[i]
	s.mu.Lock()
	s.got = append(s.got, arrival{id, time.Now()})
	s.mu.Unlock()
}

func (b *bed) stop() error {
	var errs []error
	for _, relay := range b.relays {
		errs = append(errs, relay.Stop(time.Minute))
	}
	return errors.Join(errs...)
}

func (b *bed) close() error {
	var errs []error
	for _, relay := range b.relays {
		errs = append(errs, relay.Kill())
	}
	for _, s := range b.sources {
		s.load.Close()
	}
	if b.receiver != nil {
		b.receiver.CloseClientConnections()
		b.receiver.Close()
	}
	for _, pg := range b.clusters {
		errs = append(errs, pg.Close())
	}
	if b.dir != "" {
		errs = append(errs, os.RemoveAll(b.dir))
	}
	return errors.Join(errs...)
}

// Read reads what has come, from the beginning.
func (s *source) Read(context.Context) (rig.Reader, error) { return &reader{source: s}, nil }

type reader struct {
	source *source
	next   int
}

func (r *reader) Next(ctx context.Context) (payloads [][]byte, err error) {
	if end, _ := r.AtEnd(ctx); end {
		return nil, rig.Pause(ctx, 50*time.Millisecond)
	}
	r.source.mu.Lock()
	defer r.source.mu.Unlock()
	for _, a := range r.source.got[r.next:] {
		payloads = append(payloads, check.Encode(nil, a.Key, a.Seq, 0))
	}
	r.next = len(r.source.got)
	return payloads, nil
}

func (r *reader) AtEnd(context.Context) (bool, error) {
	r.source.mu.Lock()
	defer r.source.mu.Unlock()
	return r.next == len(r.source.got), nil
}

func (r *reader) Close() {}
