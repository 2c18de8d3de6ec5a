package outbox_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/schema"
)

func TestMain(m *testing.M) { servers.Main(m) }

func onMajors(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	servers.OnMajors(t, func(t *testing.T, config servers.PostgresConfig) { test(t, database(t, config)) })
}

// database returns the URL of a fresh database with the outbox in it.
func database(t testing.TB, config ...servers.PostgresConfig) string {
	t.Helper()
	return testdb.Installed(t, config...).URL
}

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	return connectMode(t, url, pgx.QueryExecModeCacheStatement)
}

func connectMode(t testing.TB, url string, mode pgx.QueryExecMode) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = mode
	return connectConfig(t, config)
}

func connectConfig(t testing.TB, config *pgx.ConnConfig) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func connectPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func openSQL(t testing.TB, url string, mode pgx.QueryExecMode) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = mode
	db := stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// inTx commits what fn does.
func inTx(t testing.TB, conn *pgx.Conn, fn func(tx pgx.Tx) error) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), conn, fn); err != nil {
		t.Fatal(err)
	}
}

// stored reads the table in the order of ids, which is its order within a transaction.
func stored(t testing.TB, q interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}) []outbox.Message {
	t.Helper()
	rows, err := q.Query(t.Context(), `
		SELECT message_id::text, topic, key, aggregate_type, aggregate_id, event_type, payload, content_type, headers, deliver_at, created_at, id
		FROM outbox.messages ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m outbox.Message, err error) {
		var id string
		var key, aggregateType, aggregateID, eventType, contentType *string
		var headers map[string]string
		var deliverAt *time.Time
		err = row.Scan(&id, &m.Topic, &key, &aggregateType, &aggregateID,
			&eventType, &m.Payload, &contentType, &headers, &deliverAt, &m.CreatedAt, &m.Position)
		if err != nil {
			return m, err
		}
		for _, field := range []struct {
			to   *string
			from *string
		}{{&m.Key, key}, {&m.AggregateType, aggregateType}, {&m.AggregateID,
			aggregateID}, {&m.EventType, eventType}, {&m.ContentType, contentType}} {
			if field.from != nil {
				if *field.from == "" {
					return m, errors.New("an empty text was stored, not NULL")
				}
				*field.to = *field.from
			}
		}
		for _, name := range slices.Sorted(func(yield func(string) bool) {
			for name := range headers {
				if !yield(name) {
					return
				}
			}
		}) {
			m.Headers = append(m.Headers, outbox.Header{Name: name, Value: headers[name]})
		}
		if deliverAt != nil {
			m.DeliverAt = deliverAt.UTC()
		}
		m.ID, err = outbox.ParseID(id)
		return m, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// everyKindOfMessage has a message for each thing that an encoding can get wrong.
func everyKindOfMessage() []outbox.Message {
	allBytes := make([]byte, 256)
	for i := range allBytes {
		allBytes[i] = byte(i)
	}
	awkward := `a"b\c'd{e,f}$g NULL ü漢🙂` + "\t\x01\x7f"
	return []outbox.Message{
		{Topic: "bare"},
		{Topic: "empty-payload", Payload: []byte{}},
		{Topic: "binary", Payload: allBytes},
		{Topic: "large", Payload: bytes.Repeat([]byte{0, 0xff}, outbox.MaxPayloadBytes/2)},
		{
			ID: outbox.ID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, Topic: "full-ü漢", Key: "key" + awkward,
			AggregateType: "type" + awkward, AggregateID: "id" + awkward, EventType: "event" + awkward, ContentType: "content" + awkward,
			Payload: []byte(`{"a":1}`), Headers: []outbox.Header{{Name: "a!#$%&'*+-.^_`|~Z0", Value: awkward},
				{Name: "b", Value: ""}, {Name: "c", Value: "</&>"}},
			DeliverAt: time.Date(2031, 2, 3, 4, 5, 6, 789012000, time.UTC),
		},
		{Topic: "early", DeliverAt: time.Date(1970, 1, 1, 0, 0, 0, 1000, time.UTC)},
		{Topic: "zone", DeliverAt: time.Date(2031, 2, 3, 4, 5, 6, 0, time.FixedZone("", 5*3600+1800))},
		{Topic: "late", DeliverAt: time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC)},
		{Topic: "null-word", Key: "NULL", AggregateID: "null", Payload: []byte("NULL")},
	}
}

// requireStored compares everything that a writer decides.
func requireStored(t *testing.T, got []outbox.Message, ids []outbox.ID, want []outbox.Message) {
	t.Helper()
	if len(got) != len(want) || len(ids) != len(want) {
		t.Fatalf("%d rows and %d ids for %d messages", len(got), len(ids), len(want))
	}
	for i := range want {
		g, w := got[i], want[i]
		if g.ID != ids[i] || (!w.ID.IsZero() && g.ID != w.ID) || g.ID.IsZero() {
			t.Errorf("%s: id %s, returned %s, given %s", w.Topic, g.ID, ids[i], w.ID)
		}
		if g.Topic != w.Topic || g.Key != w.Key || g.AggregateType != w.AggregateType || g.AggregateID != w.AggregateID ||
			g.EventType != w.EventType || g.ContentType != w.ContentType || !slices.Equal(g.Headers, w.Headers) {
			t.Errorf("got  %+v\nwant %+v", g, w)
		}
		if (g.Payload == nil) != (w.Payload == nil) || !bytes.Equal(g.Payload, w.Payload) {
			t.Errorf("%s: a payload of %d bytes (NULL: %t) came back with %d (NULL: %t)",
				w.Topic, len(w.Payload), w.Payload == nil, len(g.Payload), g.Payload == nil)
		}
		if !g.DeliverAt.Equal(w.DeliverAt) {
			t.Errorf("%s: deliver at %v, want %v", w.Topic, g.DeliverAt, w.DeliverAt)
		}
		if g.CreatedAt.IsZero() {
			t.Errorf("%s: no creation time", w.Topic)
		}
	}
}

func modes() []pgx.QueryExecMode {
	return []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
}

// ways are all the ways to write several messages in one transaction.
func ways(mode pgx.QueryExecMode) map[string]func(t *testing.T, url string, msgs []outbox.Message) []outbox.ID {
	var w outbox.Writer
	return map[string]func(t *testing.T, url string, msgs []outbox.Message) []outbox.ID{
		"one by one": func(t *testing.T, url string, msgs []outbox.Message) (ids []outbox.ID) {
			inTx(t, connectMode(t, url, mode), func(tx pgx.Tx) error {
				for _, m := range msgs {
					id, err := w.Write(t.Context(), tx, m)
					if err != nil {
						return fmt.Errorf("%s: %w", m.Topic, err)
					}
					ids = append(ids, id...)
				}
				return nil
			})
			return ids
		},
		"at once": func(t *testing.T, url string, msgs []outbox.Message) (ids []outbox.ID) {
			inTx(t, connectMode(t, url, mode), func(tx pgx.Tx) (err error) {
				ids, err = w.Write(t.Context(), tx, msgs...)
				return err
			})
			return ids
		},
		"database/sql one by one": func(t *testing.T, url string, msgs []outbox.Message) (ids []outbox.ID) {
			tx, err := openSQL(t, url, mode).BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range msgs {
				id, err := w.WriteSQL(t.Context(), tx, m)
				if err != nil {
					t.Fatalf("%s: %v", m.Topic, err)
				}
				ids = append(ids, id...)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			return ids
		},
		"database/sql at once": func(t *testing.T, url string, msgs []outbox.Message) []outbox.ID {
			tx, err := openSQL(t, url, mode).BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			ids, err := w.WriteSQL(t.Context(), tx, msgs...)
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			return ids
		},
		"copy": func(t *testing.T, url string, msgs []outbox.Message) (ids []outbox.ID) {
			msgs = slices.Clone(msgs)
			for i := range msgs {
				if msgs[i].ID.IsZero() {
					msgs[i].ID = outbox.NewID()
				}
				ids = append(ids, msgs[i].ID)
			}
			inTx(t, connectMode(t, url, mode), func(tx pgx.Tx) error {
				n, err := w.Copy(t.Context(), tx, each(msgs))
				if err == nil && int(n) != len(msgs) {
					t.Errorf("copied %d of %d", n, len(msgs))
				}
				return err
			})
			return ids
		},
	}
}

func each(msgs []outbox.Message) iter.Seq2[outbox.Message, error] {
	return func(yield func(outbox.Message, error) bool) {
		for _, m := range msgs {
			if !yield(m, nil) {
				return
			}
		}
	}
}

func TestEveryFieldComesBackFromEveryWayOfWritingInEveryQueryMode(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, url string) {
		reader := connect(t, url)
		for _, mode := range modes() {
			for name, write := range ways(mode) {
				t.Run(fmt.Sprintf("%s, %s", name, mode), func(t *testing.T) {
					msgs := everyKindOfMessage()
					ids := write(t, url, msgs)
					requireStored(t, stored(t, reader), ids, msgs)
					if _, err := reader.Exec(t.Context(), `TRUNCATE outbox.messages`); err != nil {
						t.Fatal(err)
					}
				})
			}
		}
	})
}

func TestRowsOfACallStandInTheOrderOfItsMessages(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		msgs := make([]outbox.Message, 20_000)
		for i := range msgs {
			msgs[i] = outbox.Message{Topic: "t", Key: fmt.Sprint((i * 7919) % len(msgs))}
		}
		var w outbox.Writer
		var ids []outbox.ID
		inTx(t, conn, func(tx pgx.Tx) (err error) {
			ids, err = w.Write(t.Context(), tx, msgs...)
			return err
		})
		requireStored(t, stored(t, conn), ids, msgs)
	})
}

func TestAllRowsOfATransactionHaveItsXidDrawnBeforeTheirIDs(t *testing.T) {
	t.Parallel()
	url := database(t)
	conn := connect(t, url)
	var w outbox.Writer
	inTx(t, conn, func(tx pgx.Tx) error {
		if _, err := w.Write(t.Context(), tx, outbox.Message{Topic: "a"}, outbox.Message{Topic: "b"}); err != nil {
			return err
		}
		var same bool
		err := tx.QueryRow(t.Context(), `SELECT count(*) = 2 AND bool_and(xid = pg_current_xact_id()) FROM outbox.messages`).Scan(&same)
		if err == nil && !same {
			t.Error("rows have another xid than their transaction")
		}
		return err
	})
}

func TestRolledBackMessagesAreGoneAndThoseBeforeASavepointStay(t *testing.T) {
	t.Parallel()
	conn := connect(t, database(t))
	var w outbox.Writer
	undo := errors.New("undo")
	write := func(tx pgx.Tx, topic string) {
		t.Helper()
		if _, err := w.Write(t.Context(), tx, outbox.Message{Topic: topic}, outbox.Message{Topic: topic}); err != nil {
			t.Fatal(err)
		}
	}
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		write(tx, "never")
		return undo
	})
	if !errors.Is(err, undo) || len(stored(t, conn)) != 0 {
		t.Fatalf("after the rollback there are %v: %v", stored(t, conn), err)
	}
	inTx(t, conn, func(tx pgx.Tx) error {
		write(tx, "outer")
		err := pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
			write(tx, "undone")
			return undo
		})
		if !errors.Is(err, undo) {
			return err
		}
		return pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
			write(tx, "inner")
			return nil
		})
	})
	var topics []string
	for _, m := range stored(t, conn) {
		topics = append(topics, m.Topic)
	}
	if want := []string{"outer", "outer", "inner", "inner"}; !slices.Equal(topics, want) {
		t.Fatalf("got %v, want %v", topics, want)
	}
}

func TestACallIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	url := database(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement,
		pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		config, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		config.DefaultQueryExecMode = mode
		var trips turns
		config.DialFunc = trips.dial
		conn := connectConfig(t, config)
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var w outbox.Writer
		for _, n := range []int{1, 2, 1000} {
			msgs := slices.Repeat([]outbox.Message{{Topic: "t", Payload: make([]byte, 100)}}, n)
			for _, first := range []bool{true, false} { // the first prepares
				before := trips.n.Load()
				if _, err := w.Write(t.Context(), tx, msgs...); err != nil {
					t.Fatal(err)
				}
				if took := trips.n.Load() - before; took != 1 && !first {
					t.Errorf("%s: %d messages took %d round trips", mode, n, took)
				}
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// turns counts how often a connection changes from reading to writing.
type turns struct {
	n       atomic.Int64
	writing atomic.Bool
}

func (c *turns) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return turnsConn{conn, c}, err
}

type turnsConn struct {
	net.Conn
	turns *turns
}

func (c turnsConn) Write(b []byte) (int, error) {
	if !c.turns.writing.Swap(true) {
		c.turns.n.Add(1)
	}
	return c.Conn.Write(b)
}

func (c turnsConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.turns.writing.Store(false)
	}
	return n, err
}

func TestOneWriterServesManyTransactions(t *testing.T) {
	t.Parallel()
	url := database(t)
	pool := connectPool(t, url)
	var w outbox.Writer
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				err := w.InTx(t.Context(), pool, func(tx pgx.Tx) error {
					if _, err := w.Write(t.Context(), tx, outbox.Message{Topic: "t"}); err != nil {
						return err
					}
					_, err := w.Write(t.Context(), tx, outbox.Message{Topic: "t"}, outbox.Message{Topic: "t"})
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	seen := map[outbox.ID]bool{}
	for _, m := range stored(t, pool) {
		seen[m.ID] = true
	}
	if len(seen) != 8*50*3 {
		t.Fatalf("%d messages, want %d", len(seen), 8*50*3)
	}
}

func TestTheRelayIsWokenAfterACommitOnly(t *testing.T) {
	t.Parallel()
	conn := connect(t, database(t))
	woken := 0
	w, err := outbox.NewWriter(outbox.WriterConfig{Wake: func() {
		woken++
		if conn.PgConn().TxStatus() != 'I' {
			t.Error("woken inside the transaction")
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	write := func(tx pgx.Tx) error {
		_, err := w.Write(t.Context(), tx, outbox.Message{Topic: "t"})
		return err
	}
	if err := w.InTx(t.Context(), conn, write); err != nil || woken != 1 {
		t.Fatalf("woken %d times: %v", woken, err)
	}
	undo := errors.New("undo")
	err = w.InTx(t.Context(), conn, func(tx pgx.Tx) error { return errors.Join(write(tx), undo) })
	if !errors.Is(err, undo) || woken != 1 || len(stored(t, conn)) != 1 {
		t.Fatalf("after a rollback: woken %d times: %v", woken, err)
	}
	inTx(t, conn, write)
	w.Committed()
	if woken != 2 {
		t.Fatalf("woken %d times", woken)
	}
	new(outbox.Writer).Committed() // wakes nobody
}

func TestTheTraceContextIsStoredUnlessGiven(t *testing.T) {
	t.Parallel()
	conn := connect(t, database(t))
	type key struct{}
	w, err := outbox.NewWriter(outbox.WriterConfig{Trace: func(ctx context.Context, _ *outbox.Message) (string, string, func(error)) {
		parent, _ := ctx.Value(key{}).(string)
		return parent, "s=1", nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithValue(t.Context(), key{}, "00-trace")
	many := make([]outbox.Header, outbox.MaxHeaders)
	for i := range many {
		many[i] = outbox.Header{Name: fmt.Sprintf("h%02d", i), Value: "v"}
	}
	added := []outbox.Header{{Name: "traceparent", Value: "00-trace"}, {Name: "tracestate", Value: "s=1"}}
	cases := []struct {
		name       string
		ctx        context.Context
		have, want []outbox.Header
	}{
		{"added", ctx, nil, added},
		{"added to others", ctx, []outbox.Header{{Name: "a", Value: "b"}}, append([]outbox.Header{{Name: "a", Value: "b"}}, added...)},
		{"no trace", t.Context(), nil, nil},
		{"given", ctx, []outbox.Header{{Name: "traceparent", Value: "mine"}}, []outbox.Header{{Name: "traceparent", Value: "mine"}}},
		{"malformed", context.WithValue(ctx, key{}, "00\r\nInjected: x"), nil, nil},
		{"no room", ctx, many, many},
	}
	inTx(t, conn, func(tx pgx.Tx) error {
		for _, c := range cases {
			if _, err := w.Write(c.ctx, tx, outbox.Message{Topic: "t", Headers: c.have}); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if _, err := w.Copy(c.ctx, tx, each([]outbox.Message{{Topic: "t", Headers: c.have}})); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
		return nil
	})
	for i, m := range stored(t, conn) {
		if c := cases[i/2]; !slices.Equal(m.Headers, c.want) {
			t.Errorf("%s: %v, want %v", c.name, m.Headers, c.want)
		}
	}
}

func TestWritingNothingSendsNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t)) // without the schema: a statement would fail
	var w outbox.Writer
	inTx(t, conn, func(tx pgx.Tx) error {
		ids, err := w.Write(t.Context(), tx)
		if len(ids) != 0 {
			t.Errorf("ids of nothing: %v", ids)
		}
		return err
	})
}

func TestErrorsOfTheDatabaseSayWhatToDo(t *testing.T) {
	t.Parallel()
	m := outbox.Message{Topic: "t"}
	var w outbox.Writer

	t.Run("no schema", func(t *testing.T) {
		t.Parallel()
		url := servers.TestDatabase(t)
		conn, db := connect(t, url), openSQL(t, url, pgx.QueryExecModeCacheStatement)
		for name, write := range map[string]func() error{
			"Write": func() error {
				return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { _, err := w.Write(t.Context(), tx, m); return err })
			},
			"Write several": func() error {
				return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error { _, err := w.Write(t.Context(), tx, m, m); return err })
			},
			"Copy": func() error {
				return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
					_, err := w.Copy(t.Context(), tx, each([]outbox.Message{m}))
					return err
				})
			},
			"WriteSQL": func() error {
				tx, err := db.Begin()
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback()
				_, err = w.WriteSQL(t.Context(), tx, m)
				return err
			},
		} {
			if err := write(); !errors.Is(err, schema.ErrMissing) || !strings.Contains(err.Error(), "outbox migrate up") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})

	t.Run("no rights", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, database(t))
		for role, write := range map[string]func(context.Context, pgx.Tx, ...outbox.Message) ([]outbox.ID, error){
			"writer": w.Write, "emitter": w.Emit} {
			err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE pg_read_all_settings`); err != nil {
					t.Fatal(err)
				}
				_, err := write(t.Context(), tx, m)
				return err
			})
			if !errors.Is(err, schema.ErrForbidden) || !strings.Contains(err.Error(), "outbox migrate grants --apply --"+role+" ROLE") {
				t.Errorf("%s: %v", role, err)
			}
		}
	})

	t.Run("no transaction", func(t *testing.T) {
		t.Parallel()
		_, first := w.Write(t.Context(), nil, m)
		_, second := w.WriteSQL(t.Context(), nil, m)
		_, third := w.Copy(t.Context(), nil, each(nil))
		for _, err := range []error{first, second, third} {
			if err == nil || !strings.Contains(err.Error(), "tx is nil") {
				t.Error(err)
			}
		}
	})

	t.Run("finished transaction", func(t *testing.T) {
		t.Parallel()
		url := database(t)
		tx, err := connect(t, url).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		sqlTx, err := openSQL(t, url, pgx.QueryExecModeExec).Begin()
		if err != nil {
			t.Fatal(err)
		}
		if err := sqlTx.Rollback(); err != nil {
			t.Fatal(err)
		}
		_, first := w.Write(t.Context(), tx, m)
		_, second := w.WriteSQL(t.Context(), sqlTx, m)
		_, third := w.Copy(t.Context(), tx, each([]outbox.Message{m}))
		for _, err := range []error{first, second, third} {
			if err == nil || !strings.Contains(err.Error(), "already committed or rolled back") {
				t.Error(err)
			}
		}
	})

	t.Run("failed and read-only transactions", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, database(t))
		for _, c := range []struct{ before, want string }{
			{`SELECT 1/0`, "an earlier statement of the transaction failed"},
			{`SET TRANSACTION READ ONLY`, "read-only"},
		} {
			err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				_, _ = tx.Exec(t.Context(), c.before)
				_, err := w.Write(t.Context(), tx, m)
				return err
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.before, err)
			}
		}
	})
}

func TestAFaultInTheSequenceEndsACopyWithItsError(t *testing.T) {
	t.Parallel()
	conn := connect(t, database(t))
	var w outbox.Writer
	copyAll := func(seq iter.Seq2[outbox.Message, error]) (err error) {
		return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			n, err := w.Copy(t.Context(), tx, seq)
			if err != nil && n != 0 {
				t.Errorf("copied %d and failed", n)
			}
			return err
		})
	}
	sequence := func(last outbox.Message, fault error) iter.Seq2[outbox.Message, error] {
		return func(yield func(outbox.Message, error) bool) {
			for range 3 {
				if !yield(outbox.Message{Topic: "t"}, nil) {
					return
				}
			}
			yield(last, fault)
		}
	}
	if err := copyAll(sequence(outbox.Message{}, io.ErrUnexpectedEOF)); !errors.Is(err, io.ErrUnexpectedEOF) ||
		!strings.Contains(err.Error(), "message 3") {
		t.Errorf("an error of the sequence became %v", err)
	}
	var invalid *outbox.ValidationError
	if err := copyAll(sequence(outbox.Message{Topic: "a b"}, nil)); !errors.As(err, &invalid) ||
		invalid.Index != 3 || invalid.Field != "Topic" {
		t.Errorf("an invalid message became %v", err)
	}
	func() {
		defer func() {
			if caught := recover(); caught != "oh" {
				t.Errorf("caught %v", caught)
			}
		}()
		_ = copyAll(func(func(outbox.Message, error) bool) { panic("oh") })
	}()
	if left := stored(t, conn); len(left) != 0 {
		t.Errorf("failed copies left %d messages", len(left))
	}
	if err := copyAll(each(nil)); err != nil {
		t.Errorf("an empty copy: %v", err)
	}
}

func TestNonsenseConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	for _, n := range []int{-1, 1 << 30} {
		if _, err := outbox.NewWriter(outbox.WriterConfig{MaxPayloadBytes: n}); err == nil ||
			!strings.Contains(err.Error(), fmt.Sprint(n)) {
			t.Errorf("%d: %v", n, err)
		}
	}
}
