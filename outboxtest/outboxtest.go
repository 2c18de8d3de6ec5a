// Package outboxtest helps to test code that writes messages. It reads the outbox from inside the test's own
// transaction, and has a broker that keeps what an in-process relay delivers.
//
//	tx, _ := pool.Begin(ctx)
//	defer tx.Rollback(ctx)
//	PlaceOrder(ctx, tx, order)
//	outboxtest.RequirePublished(t, tx, outboxtest.Match{Topic: "orders", Key: "4711", EventType: "OrderPlaced"})
//
// A parameter q accepts everything that can query PostgreSQL: pgx.Tx, *pgx.Conn, *pgxpool.Pool, *sql.Tx, *sql.Conn and
// *sql.DB. Inside a transaction the functions see its uncommitted messages and leave no trace.
package outboxtest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/schema"
)

// Migrate brings the database at url to the current schema, as "outbox migrate up" does. Tests that run
// at the same time may all call it.
func Migrate(t testing.TB, url string) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatalf("outboxtest: connect to the test's database: %v", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := schema.Up(ctx, conn, schema.UpConfig{}); err != nil {
		t.Fatalf("outboxtest: %v", err)
	}
}

// Published returns the messages that q sees, in the order in which they were inserted; with matches, those that match
// at least one of them. Position and CreatedAt are set.
func Published(t testing.TB, q any, matches ...Match) []outbox.Message {
	t.Helper()
	all, err := read(t.Context(), q)
	if err != nil {
		t.Fatalf("outboxtest: read the outbox: %v", err)
	}
	if len(matches) == 0 {
		return all
	}
	var found []outbox.Message
	for _, m := range all {
		if fitsAny(matches, &m) {
			found = append(found, m)
		}
	}
	return found
}

// RequirePublished ends the test unless q sees a message for each of want, in that order. There may be others in
// between. It returns the messages that were found, one for each of want.
func RequirePublished(t testing.TB, q any, want ...Match) []outbox.Message {
	t.Helper()
	all := Published(t, q)
	var found []outbox.Message
	next := 0
	for i := range want {
		for ; next < len(all) && !want[i].fits(&all[next]); next++ {
		}
		if next == len(all) {
			t.Fatal(notFound(all, want, i))
		}
		found = append(found, all[next])
		next++
	}
	return found
}

// RequireOnly ends the test unless q sees exactly the messages of want, in that order. It returns them.
func RequireOnly(t testing.TB, q any, want ...Match) []outbox.Message {
	t.Helper()
	all := RequirePublished(t, q, want...)
	if everything := Published(t, q); len(everything) > len(all) {
		t.Fatalf("outboxtest: want %s and no other\n%s", count(len(want), "message"), list(everything, nil))
	}
	return all
}

// RequireNone ends the test if q sees a message that matches one of matches; without matches, if q sees any.
func RequireNone(t testing.TB, q any, matches ...Match) {
	t.Helper()
	found := Published(t, q, matches...)
	if len(found) == 0 {
		return
	}
	kind := "no message"
	if len(matches) > 0 {
		kind = "no message that fits " + describeAll(matches)
	}
	t.Fatalf("outboxtest: want %s\n%s", kind, list(found, nil))
}

func notFound(all []outbox.Message, want []Match, missing int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "outboxtest: no message fits %s", want[missing].String())
	if missing > 0 {
		fmt.Fprintf(&b, " after the one that fits %s", want[missing-1].String())
	}
	b.WriteByte('\n')
	b.WriteString(list(all, &want[missing]))
	return b.String()
}

func describeAll(matches []Match) string {
	texts := make([]string, len(matches))
	for i := range matches {
		texts[i] = matches[i].String()
	}
	return strings.Join(texts, " or ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
