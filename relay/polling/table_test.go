package polling

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// A boundary comes from the log, where a commit is seen before it is visible. What is read from the table has
// to hold it.
func TestTheTableIsNotReadUpToABoundaryBeforeAllOfItIsVisible(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	table, ok := TableOf(testdb.Acquire(t, db.source("d", SnapshotConfig{})))
	if !ok {
		t.Fatal("the session has no table's side")
	}
	conn := db.Connect()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var xid uint64
	if err := tx.QueryRow(t.Context(),
		"INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'late') RETURNING xid::text::bigint").Scan(&xid); err != nil {
		t.Fatal(err)
	}
	// A snapshot that sees it, though it is open.
	if err := table.StopAt(fmt.Sprintf("%d:%d:", xid+1, xid+1)); err != nil {
		t.Fatal(err)
	}
	db.Exec("INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'early')")
	read := func() (relay.Delivery, error) {
		ctx := await.Context(t)
		for {
			b, err := table.Next(ctx, 10)
			if err != nil {
				return relay.Delivery{}, err
			}
			if len(b.Deliveries) > 0 {
				return b.Deliveries[0], nil
			}
		}
	}
	for _, want := range []string{"early", "late"} {
		d, err := read()
		if err != nil || string(d.Payload) != want {
			t.Fatalf("read %q, %v, want %s", d.Payload, err, want)
		}
		testdb.Settle(t, table, &d)
		if want == "early" {
			for range 20 {
				if b, err := table.Next(t.Context(), 10); err != nil || len(b.Deliveries) > 0 {
					t.Fatalf("read %d messages, %v, and the boundary isn't reached", len(b.Deliveries), err)
				}
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := read(); !errors.Is(err, ErrReached) {
		t.Errorf("after all was settled: %v", err)
	}
	prev, alone := table.Prev()
	if seen, err := cursors.Parse(prev); err != nil || !alone || !seen.Sees(xid) {
		t.Errorf("the cursor is %s, with open windows: %v, %v", prev, !alone, err)
	}
}

// What isn't settled may wait for its broker for long.
func TestTheTableIsReadBeyondABoundaryThatIsNotSettled(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	table, _ := TableOf(testdb.Acquire(t, db.source("d", SnapshotConfig{})))
	insert := "INSERT INTO outbox.messages (topic, payload) VALUES ('t', $1)"
	db.Exec(insert, "1")
	first := take(t, table, "1")
	if err := table.StopAt("3:3:"); err != nil { // which the cursor is beyond
		t.Fatal(err)
	}
	db.Exec(insert, "2")
	second := take(t, table, "2")
	testdb.Settle(t, table, &first)
	db.Exec(insert, "3")
	third := take(t, table, "3")
	testdb.Settle(t, table, &second)
	testdb.Settle(t, table, &third)
	ctx := await.Context(t)
	for {
		if b, err := table.Next(ctx, 10); errors.Is(err, ErrReached) {
			return
		} else if err != nil || len(b.Deliveries) > 0 {
			t.Fatalf("read %d messages, %v, want the boundary", len(b.Deliveries), err)
		}
	}
}

// take reads the next message.
func take(t *testing.T, table *Table, want string) relay.Delivery {
	t.Helper()
	ctx := await.Context(t)
	for {
		b, err := table.Next(ctx, 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Deliveries) > 0 {
			if got := string(b.Deliveries[0].Payload); got != want || len(b.Deliveries) > 1 {
				t.Fatalf("read %d messages and %q first, want %q", len(b.Deliveries), got, want)
			}
			return b.Deliveries[0]
		}
	}
}

func TestWriteOfATableEndsWithItsLease(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	table, _ := TableOf(testdb.Acquire(t, db.source("d", SnapshotConfig{})))
	err := table.Write(t.Context(), func(context.Context, *pgx.Conn) (bool, error) { return false, nil })
	if !errors.Is(err, relay.ErrLeaseLost) || !errors.Is(table.Failure(), relay.ErrLeaseLost) {
		t.Errorf("%v, and then %v", err, table.Failure())
	}
}
