package polling

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/retention"
)

// dump copies what pg_dump would, into a database with the schema in it.
func (db database) dump(to database) {
	db.T.Helper()
	const messages = `xid, id, message_id, topic, key, aggregate_type, aggregate_id, event_type, payload, content_type, headers, deliver_at, created_at, segment`
	from, into := db.Connect().PgConn(), to.Connect().PgConn()
	for _, table := range []struct{ name, columns string }{
		{"messages", messages}, {"cursors", "*"}, {"holds", "*"}, {"dead_letters", "*"},
	} {
		var buf bytes.Buffer
		if _, err := from.CopyTo(db.T.Context(), &buf,
			fmt.Sprintf("COPY (SELECT %s FROM outbox.%s) TO STDOUT", table.columns, table.name)); err != nil {
			db.T.Fatal(err)
		}
		columns := ""
		if table.columns != "*" {
			columns = "(" + table.columns + ")"
		}
		if _, err := into.CopyFrom(db.T.Context(), &buf, fmt.Sprintf("COPY outbox.%s %s FROM STDIN", table.name, columns)); err != nil {
			db.T.Fatal(err)
		}
	}
	to.Exec(`SELECT setval('outbox.messages_id_seq', $1::text::bigint)`, db.Value(`SELECT last_value FROM outbox.messages_id_seq`))
}

// numbered commits messages one by one, so that each takes a transaction id.
func (db database) numbered(from, to int) {
	db.T.Helper()
	db.Exec(fmt.Sprintf(`DO $$ BEGIN FOR i IN %d..%d LOOP
		INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', 'k' || i %% 7, i::text::bytea); COMMIT;
	END LOOP; END $$`, from, to))
}

// drain delivers: first the holds, lane by lane, then what comes until there are as many as wanted or a
// message means that it is the end.
func drain(t *testing.T, s relay.Session, want int) (got []string) {
	t.Helper()
	if _, _, err := s.Lanes(t.Context(), "", 1000); err != nil {
		t.Fatal(err)
	}
	lanes, err := s.Due(t.Context(), relay.DueQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, lane := range lanes {
		if time.Until(lane.Due) > 0 {
			t.Errorf("lane %s is due at %v", lane.Lane, lane.Due)
		}
		held := testdb.Held(t, s, lane.Lane, 10_000)
		var done []*relay.Delivery
		for i := range held {
			got = append(got, string(held[i].Payload))
			done = append(done, &held[i])
		}
		if err := s.Settle(t.Context(), relay.Settlement{HeldDelivered: done}); err != nil {
			t.Fatal(err)
		}
	}
	for len(got) < want {
		ds := testdb.Next(t, s, 1000)
		for i := range ds {
			got = append(got, string(ds[i].Payload))
		}
		testdb.Settle(t, s, &ds[len(ds)-1])
		if got[len(got)-1] == "end" {
			break
		}
	}
	return got
}

func TestARestoredDumpIsRefusedAndDeliveredAfterARebase(t *testing.T) {
	t.Parallel()
	newer, older := servers.OwnPostgres(t, servers.PostgresConfig{OwnIdentity: true}), servers.OwnPostgres(t,
		servers.PostgresConfig{OwnIdentity: true})
	open := func(t *testing.T, p *servers.Postgres) database {
		name, err := p.CreateDatabase(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		db := database{testdb.DB{T: t, URL: p.URL(name)}}
		db.Install()
		return db
	}
	// Far ahead of the other one, in transaction ids.
	open(t, newer).Exec(`DO $$ BEGIN FOR i IN 1..6000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)

	for name, cluster := range map[string][2]*servers.Postgres{
		"into a cluster that is behind": {newer, older},
		"into a cluster that is ahead":  {older, newer},
	} {
		t.Run(name, func(t *testing.T) {
			old, db := open(t, cluster[0]), open(t, cluster[1])
			const before, lost, after = 1000, 40, 60
			settled := make(map[string][]string)
			old.numbered(1, before/2)
			for _, destination := range []string{"half", "all", "fresh"} {
				s := testdb.Acquire(t, old.source(destination, SnapshotConfig{}))
				if destination == "half" {
					ds := testdb.Next(t, s, 200) // in the middle of a window
					testdb.Settle(t, s, &ds[150])
					settled[destination] = strings.Fields(testdb.Payloads(ds[:151]))
				}
				if destination == "all" {
					settled[destination] = drain(t, s, before/2)
				}
				crash(s.(*snapshotSession)) // the dump has its lease
			}
			old.numbered(before/2+1, before)
			old.dump(db)
			// Somebody writes before anybody notices.
			db.numbered(before+1, before+lost)

			source := db.source("half", SnapshotConfig{})
			_, err := source.Acquire(t.Context())
			if !errors.Is(err, cursors.ErrForeign) || !outbox.IsPermanent(err) ||
				!strings.Contains(err.Error(), "outbox rebase --destination half") {
				t.Fatalf("got %v", err)
			}
			if _, err := destinations.Rebase(t.Context(), db.Connect(), "other", admin.Action{Actor: "me"}); err == nil {
				t.Error("a destination that is not there was rebased")
			}
			report, err := destinations.Rebase(t.Context(), db.Connect(), "half", admin.Action{Actor: "me", Reason: "restored"})
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprint([]destinations.Rebased{{Destination: "all", Held: before/2 + lost},
				{Destination: "fresh", Held: before + lost},
				{Destination: "half", Held: before - 151 + lost}})
			if got := fmt.Sprint(report); got != want {
				t.Errorf("report %s, want %s", got, want)
			}
			if _, err := destinations.Rebase(t.Context(), db.Connect(),
				"half", admin.Action{Actor: "me"}); !errors.Is(err, destinations.ErrNothingToRebase) {
				t.Errorf("the second rebase: %v", err)
			}
			if got := db.Value(`SELECT string_agg(destination, ' ' ORDER BY id) FROM outbox.audit WHERE actor = 'me' AND verb = 'rebase'`); got != "all fresh half" {
				t.Errorf("audit of %q", got)
			}

			db.numbered(before+lost+1, before+lost+after)
			db.Exec(`INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'end')`)
			// Past every transaction that the dump knows.
			db.Exec(`DO $$ BEGIN FOR i IN 1..8000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
			for _, destination := range []string{"half", "all", "fresh"} {
				s := testdb.Acquire(t, db.source(destination, SnapshotConfig{}))
				const total = before + lost + after
				got := drain(t, s, math.MaxInt)
				got = got[:len(got)-1] // the end
				if err := s.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				last := make(map[int]int)
				count := make(map[int]int)
				for _, text := range slices.Concat(settled[destination], got) {
					var n int
					_, _ = fmt.Sscan(text, &n)
					count[n]++
					if n < last[n%7] {
						t.Errorf("%s: %d came after %d", destination, n, last[n%7])
					}
					last[n%7] = n
				}
				for n := 1; n <= total; n++ {
					if count[n] != 1 {
						t.Errorf("%s: message %d was delivered %d times", destination, n, count[n])
					}
				}
			}
			// The segments can be emptied again. One that was current when the test began may be past by now.
			past := db.PastSegment()
			db.Exec(`DROP PUBLICATION everything`)
			db.Exec(`UPDATE outbox.messages SET segment = $1::text::smallint`, past)
			retention, err := retention.New(db.Config(), retention.Config{})
			if err != nil {
				t.Fatal(err)
			}
			r, err := retention.Once(t.Context())
			if err != nil || !slices.Contains(r.Emptied, "outbox.messages_"+past) || len(r.Kept) > 0 {
				t.Errorf("retention: %+v, %v", r, err)
			}
		})
	}
}

func TestMessagesOfAnotherClusterAreRefusedEvenWithoutACursor(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Exec(`INSERT INTO outbox.messages (xid, topic, payload) VALUES ('90000000', 't', 'old')`)
	source := db.source("d", SnapshotConfig{})
	if _, err := source.Acquire(t.Context()); !errors.Is(err, cursors.ErrForeign) {
		t.Fatalf("got %v", err)
	}
	if _, err := destinations.Rebase(t.Context(), db.Connect(), "d", admin.Action{Actor: "me"}); err != nil {
		t.Fatal(err)
	}
	if got := drain(t, testdb.Acquire(t, source), 1); !slices.Equal(got, []string{"old"}) {
		t.Errorf("got %q", got)
	}
}

func TestARebaseWaitsForNoRelayThatIsAtWork(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	testdb.Acquire(t, db.source("working", SnapshotConfig{}))
	db.Exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier) VALUES ('restored', 0, 1, 1)`)
	_, err := destinations.Rebase(t.Context(), db.Connect(), "restored", admin.Action{Actor: "me"})
	if err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("got %v", err)
	}
}
