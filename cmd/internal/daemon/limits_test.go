package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/cmd/internal/bounds"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// Six databases need three sessions each to deliver, and eight are allowed.
func TestWithFewerSessionsThanItsDatabasesNeedARelayIsSlowerAndLosesNothing(t *testing.T) {
	t.Parallel()
	const databases, rounds = 6, 1
	var dbs []testdb.DB
	var list []Database
	for i := range databases {
		db := installed(t)
		dbs = append(dbs, db)
		list = append(list, from(fmt.Sprint("db", i), db.Config(), func(c *config.Config) {
			c.Limits.ConnectionsPerServer = bounds.LeastConnections
		}))
	}
	m := deliverFrom(t, list...)
	most := 0
	for round := range rounds {
		for i, db := range dbs {
			m.write(db, fmt.Sprintf("topic-%d-%d", i, round))
		}
		await.Until(t, "all have come", func() bool {
			for _, s := range m.d.options.limits.connections.Servers() {
				most = max(most, s.Open)
			}
			m.out.mu.Lock()
			defer m.out.mu.Unlock()
			for i := range dbs {
				if !strings.Contains(m.out.text.String(), fmt.Sprintf(`"topic-%d-%d"`, i, round)) {
					return false
				}
			}
			return true
		})
	}
	var sessions int
	if err := dbs[0].Connect().QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE application_name LIKE 'outbox %relay' AND datname = ANY ($1)`, names(dbs)).Scan(&sessions); err != nil {
		t.Fatal(err)
	}
	if most != bounds.LeastConnections || sessions > most {
		t.Errorf("%d sessions by our count, %d by the server's; the bound is %d", most, sessions, bounds.LeastConnections)
	}
	_, metrics := m.get("/metrics")
	for _, part := range []string{`outbox_limit{limit="connections_per_server"} 8`, `outbox_server_sessions{server="`, `outbox_server_sessions_yielded_total{server="`} {
		if !strings.Contains(metrics, part) {
			t.Errorf("no %s in\n%s", part, metrics)
		}
	}
}

func names(dbs []testdb.DB) (list []string) {
	for _, db := range dbs {
		list = append(list, db.Config().Database)
	}
	return list
}

func TestTheBoundOnSessionsIsNamedWhereItIsTheReason(t *testing.T) {
	t.Parallel()
	db := installed(t)
	all := bounds.NewConnections(1)
	cfg := db.Config()
	cfg.DialFunc = all.Client(nil).Dial(cfg.DialFunc)
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), await.Expiry(time.Second))
	defer cancel()
	if _, err := connect.Open(soon, cfg, "the test"); err == nil || !strings.Contains(err.Error(), "limits.connections_per_server") {
		t.Errorf("%v", err)
	}
	connect.Close(conn)
	if conn, err = connect.Open(t.Context(), cfg, "the test"); err != nil {
		t.Fatalf("a closed session is still counted: %v", err)
	}
	connect.Close(conn)
}

// pages is a source of pages without an end.
type pages struct {
	relay.Source
	acquired atomic.Int32
	more     bool
}

func (p *pages) Acquire(context.Context) (relay.Session, error) {
	p.acquired.Add(1)
	return &pagesSession{source: p}, nil
}

type pagesSession struct {
	relay.Session
	source *pages
}

func (s *pagesSession) Next(context.Context, int) (relay.Batch, error) {
	return relay.Batch{Deliveries: make([]relay.Delivery, 10), More: s.source.more}, nil
}

func (s *pagesSession) Close(context.Context) error { return nil }

func TestWhatIsInFlightIsGivenBackWhenItIsSettledAndWhenItsSessionEnds(t *testing.T) {
	t.Parallel()
	l := newLimits(config.Limits{InFlight: 20, CatchUps: 1})
	source := &limited{Source: &pages{}, turns: l.turns, server: "one", memory: l.memory, share: l.memory.Share(nil)}
	session, err := source.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var batches []relay.Batch
	for range 2 {
		batch, err := session.Next(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		batches = append(batches, batch)
	}
	full, err := session.Next(t.Context(), 10)
	if err != nil || len(full.Deliveries) > 0 || full.Full == nil || !strings.Contains(full.Full.Error(), "limits.in_flight") {
		t.Fatalf("beyond the bound: %v %v", full, err)
	}
	batches[0].Recycle()
	if batch, err := session.Next(t.Context(), 10); err != nil || len(batch.Deliveries) != 10 {
		t.Fatalf("there is room: %v %v", batch, err)
	}
	if err := session.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if use := l.memory.Use(); use.Used != (bounds.Amount{}) || use.Waiting != 0 {
		t.Errorf("left: %+v", use)
	}
}

func TestSessionsThatHaveMuchToReadTakeTurns(t *testing.T) {
	t.Parallel()
	l := newLimits(config.Limits{CatchUps: 1})
	open := func(more bool) relay.Session {
		source := &limited{Source: &pages{more: more}, turns: l.turns, server: "one", memory: l.memory, share: l.memory.Share(nil)}
		session, err := source.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return session
	}
	behind := open(true)
	if _, err := behind.Next(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if use := l.turns.Use(); use[0].Having != 1 {
		t.Fatalf("%+v", use)
	}
	var others sync.WaitGroup
	for range 3 {
		others.Go(func() {
			session := open(false)
			if _, err := session.Next(t.Context(), 10); err != nil {
				t.Error(err)
			}
			if _, err := session.Next(t.Context(), 10); err != nil { // it has caught up, and needs no turn
				t.Error(err)
			}
		})
	}
	others.Wait()
	if err := behind.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if use := l.turns.Use(); use[0].Having != 0 || use[0].Waiting != 0 || use[0].Waited == 0 {
		t.Errorf("%+v", use)
	}
}

func TestWhoYieldsWhileACallHangsGoesOnWhenItHasReturned(t *testing.T) {
	t.Parallel()
	c, yields := &calls{}, newYielding()
	c.add(1)
	done := make(chan error, 1)
	ctx, stop := yields.until(t.Context())
	defer stop()
	go func() { done <- c.wait(ctx) }()
	yields.ask()
	if err := <-done; !errors.Is(err, context.Canceled) || !errors.Is(context.Cause(ctx), errYield) {
		t.Errorf("%v %v", err, context.Cause(ctx))
	}
	go func() { done <- c.wait(t.Context()) }()
	c.add(-1)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A database where nothing has piled up gives its turn to the next one at once, and doesn't wait for a message.
func TestTheTurnOfADatabaseWhereNothingHasPiledUpEnds(t *testing.T) {
	t.Parallel()
	db := installed(t)
	m := deliverFrom(t, from("one", db.Config(), func(c *config.Config) { c.Limits.CatchUps = 1 }))
	await.Until(t, "it flows, and has no turn", func() bool {
		use := m.d.options.limits.turns.Use()
		_, verdict := m.get("/databases/one/readyz")
		return len(use) == 1 && use[0].Having == 0 && strings.Contains(verdict, "flowing")
	})
	m.send(db, "first")
}

// What a destination has in flight while its broker is away, and then while it is paused, is most of the bound.
func TestADestinationThatIsPausedHoldsUpNoOtherThoughMemoryIsShort(t *testing.T) {
	t.Parallel()
	const messages = 1500
	db := installed(t)
	m := deliverFrom(t, from("db", db.Config(), func(c *config.Config) {
		c.Limits.InFlightBytes = 1 << 20
		away := fields.Default[config.Destination]()
		away.Name = "away"
		away.Broker.Redis = new(fields.Default[brokers.Redis]())
		away.Broker.Redis.Addresses = []string{"127.0.0.1:1"}
		c.Destinations = append(c.Destinations, away)
	}))
	conn := db.Connect()
	write := func(topic string) {
		if _, err := conn.Exec(t.Context(), `INSERT INTO outbox.messages (topic, key, payload)
			SELECT $1, 'k' || i, convert_to(repeat('x', 2000), 'UTF8') FROM generate_series(1, $2::int) i`, topic, messages); err != nil {
			t.Fatal(err)
		}
	}
	delivered := func(topic string) bool {
		m.out.mu.Lock()
		defer m.out.mu.Unlock()
		return strings.Count(m.out.text.String(), `"`+topic+`"`) == messages
	}
	write("before")
	await.Until(t, "one destination has all, and the other has some in flight", func() bool {
		return delivered("before") && m.d.options.limits.memory.Use().Used.Messages > 0
	})
	away := admin.Target{Destination: "away"}
	if _, err := admin.Pause(t.Context(), conn, away, admin.ControlOptions{}, admin.Action{Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	write("after")
	await.Until(t, "one destination has all, though the other is paused", func() bool { return delivered("after") })
	var n int64
	err := conn.QueryRow(t.Context(), "SELECT coalesce(sum(delivered), 0) FROM outbox.cursors WHERE destination = 'away'").Scan(&n)
	if err != nil || n != 0 {
		t.Errorf("the one that is away has delivered %d: %v", n, err)
	}
}
