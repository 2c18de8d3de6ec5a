package inbox

import (
	"context"
	"database/sql"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgoutbox/outbox"
)

// trips counts round trips: how often a connection turns from reading to writing.
type trips struct {
	n       atomic.Int64
	writing atomic.Bool
}

func (c *trips) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return tripsConn{conn, c}, err
}

type tripsConn struct {
	net.Conn
	trips *trips
}

func (c tripsConn) Write(b []byte) (int, error) {
	if !c.trips.writing.Swap(true) {
		c.trips.n.Add(1)
	}
	return c.Conn.Write(b)
}

func (c tripsConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.trips.writing.Store(false)
	}
	return n, err
}

// A handler's own transaction is BEGIN, one statement, COMMIT: three round trips.
func TestHandleCostsTheRoundTripsOfTheHandlersTransaction(t *testing.T) {
	t.Parallel()
	w := setup(t)
	cfg, err := pgx.ParseConfig(w.url)
	if err != nil {
		t.Fatal(err)
	}
	var counted trips
	cfg.DialFunc = counted.dial
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(1)
	defer func() { _ = db.Close() }()
	version := func(msg *outbox.Message) (int64, error) {
		n, _, err := outbox.SequenceOf(msg)
		return n, err
	}
	w.exec(`CREATE TABLE invoices (id text PRIMARY KEY, rev bigint); INSERT INTO invoices VALUES ('Handle with a version column', 0)`)
	for name, c := range map[string]struct {
		cfg    Config
		handle func(b *Inbox, msg *outbox.Message) error
		want   int64
	}{
		"Handle": {Config{}, func(b *Inbox, msg *outbox.Message) error {
			_, err := b.Handle(t.Context(), conn, msg, effect)
			return err
		}, 3},
		"Handle with gaps and versions": {Config{Gaps: GapReport, Version: version}, func(b *Inbox, msg *outbox.Message) error {
			_, err := b.Handle(t.Context(), conn, msg, effect)
			return err
		}, 3},
		"Handle with a version column": {Config{Version: version, Column: &VersionColumn{Table: "invoices", Key: "id", Version: "rev"}},
			func(b *Inbox, msg *outbox.Message) error {
				_, err := b.Handle(t.Context(), conn, msg, effect)
				return err
			}, 3},
		"Handle with a version column that has no row": {Config{Version: version,
			Column: &VersionColumn{Table: "invoices", Key: "id", Version: "rev"}},
			func(b *Inbox, msg *outbox.Message) error {
				_, err := b.Handle(t.Context(), conn, msg, effect)
				return err
			}, 4},
		"HandleSQL": {Config{}, func(b *Inbox, msg *outbox.Message) error {
			_, err := b.HandleSQL(t.Context(), db, msg, effectSQL)
			return err
		}, 5},
		// A savepoint of the handler's own would be three, too, besides BEGIN and COMMIT.
		"HandleTx": {Config{}, func(b *Inbox, msg *outbox.Message) error {
			return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				_, err := b.HandleTx(t.Context(), tx, msg, effect)
				return err
			})
		}, 5},
		"HandleSQLTx": {Config{}, func(b *Inbox, msg *outbox.Message) error {
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{})
			if err != nil {
				return err
			}
			if _, err := b.HandleSQLTx(t.Context(), tx, msg, effectSQL); err != nil {
				return err
			}
			return tx.Commit()
		}, 6},
	} {
		b, err := New(name, c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		for n := range int64(3) {
			before := counted.n.Load()
			if err := c.handle(b, numbered(name, n+1)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			// The first prepares; database/sql asks an idle connection whether it lives, at times.
			if took := counted.n.Load() - before; n == 2 && took != c.want {
				t.Errorf("%s took %d round trips, want %d", name, took, c.want)
			}
		}
	}
}
