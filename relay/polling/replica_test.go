package polling

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// follow makes replica a logical replica of db, which has no sequences from it.
func (db database) follow(replica database, name string) {
	db.T.Helper()
	db.Exec(`CREATE PUBLICATION ` + name + ` FOR TABLE outbox.messages, outbox.cursors, outbox.holds, outbox.dead_letters, outbox.audit WITH (publish_via_partition_root = true)`)
	replica.Exec(fmt.Sprintf(`CREATE SUBSCRIPTION %s CONNECTION '%s' PUBLICATION %[1]s`, name, db.URL))
}

func (db database) promote(old database, name string) {
	db.T.Helper()
	// A first copy is complete when its table is ready; what streams comes in the order of its commits.
	end := old.Value(`SELECT id::text FROM outbox.audit WHERE verb = 'end'`)
	db.Await(`SELECT EXISTS (SELECT FROM outbox.audit WHERE verb = 'end' AND id = ` + end + `)
		AND NOT EXISTS (SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r')`)
	db.Exec(`DROP SUBSCRIPTION ` + name)
}

// named commits messages of key k one by one, each in a subtransaction if savepoints says so.
func (db database) named(savepoints bool, names ...string) {
	db.T.Helper()
	for _, name := range names {
		insert := `INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', 'k', '` + name + `');`
		if savepoints {
			insert = `PERFORM pg_current_xact_id(); BEGIN ` + insert + ` EXCEPTION WHEN division_by_zero THEN END;`
		}
		db.Exec(`DO $$ BEGIN ` + insert + ` END $$`)
	}
}

func some(name string, from, to int) (names []string) {
	for i := from; i <= to; i++ {
		names = append(names, fmt.Sprint(name, i))
	}
	return names
}

// Logical replication carries no sequences: ids begin at 1 again, below and upon those of the rows that came along.
func TestAPromotedLogicalReplicaDeliversTheOldMessagesBeforeTheNew(t *testing.T) {
	t.Parallel()
	// Each subscription has a worker, and some more while tables are copied.
	config := servers.PostgresConfig{OwnIdentity: true, Settings: map[string]string{
		"max_logical_replication_workers": "16", "max_worker_processes": "24"}}
	newer, older := servers.OwnPostgres(t, config), servers.OwnPostgres(t, config)
	open := func(t *testing.T, p *servers.Postgres) database {
		name, err := p.CreateDatabase(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		db := database{testdb.DB{T: t, URL: p.URL(name)}}
		db.Install()
		return db
	}
	open(t, newer).Exec(`DO $$ BEGIN FOR i IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)

	// One direction after the other: a subscription is created by a transaction that waits for a slot of the other
	// cluster, and a slot is made when the transactions of its cluster have ended.
	n := 0
	for _, ahead := range []bool{false, true} {
		t.Run(fmt.Sprintf("ahead %v", ahead), func(t *testing.T) {
			for _, copied := range []bool{false, true} {
				for _, savepoints := range []bool{false, true} {
					n++
					subscription := fmt.Sprint("s", n)
					after := []int{30, 4, 0}[n%3] // written on the replica before anybody rebases
					t.Run(fmt.Sprintf("copied %v, savepoints %v, %d new", copied, savepoints, after), func(t *testing.T) {
						t.Parallel()
						from, to := newer, older
						if ahead {
							from, to = older, newer
						}
						old, db := open(t, from), open(t, to)
						s := testdb.Acquire(t, old.source("d", SnapshotConfig{}))
						if !copied {
							old.follow(db, subscription)
						}
						old.named(savepoints, some("old", 0, 0)...)
						ds := testdb.Next(t, s, 10)
						testdb.Settle(t, s, &ds[0])
						crash(s.(*snapshotSession))
						old.named(savepoints, some("old", 1, 5)...)
						old.Exec(`INSERT INTO outbox.audit (actor, verb) VALUES ('me', 'end')`)
						if copied {
							old.follow(db, subscription)
						}
						db.promote(old, subscription)
						db.named(savepoints, some("new", 1, after)...)

						source := db.source("d", SnapshotConfig{})
						if _, err := source.Acquire(t.Context()); !outbox.IsPermanent(err) {
							t.Fatalf("the relay started: %v", err)
						}
						if _, err := destinations.Rebase(t.Context(), db.Connect(), "d", admin.Action{Actor: "me"}); err != nil {
							t.Fatal(err)
						}
						// The broker is away, so all that follows is held behind what was.
						db.named(savepoints, some("new", after+1, after+6)...)
						s = testdb.Acquire(t, source)
						var ids []int64
						for len(ids) < 6 {
							ds := testdb.Next(t, s, 100)
							settlement := relay.Settlement{Through: &ds[len(ds)-1]}
							for i := range ds {
								ids = append(ids, ds[i].Position)
								settlement.Hold = append(settlement.Hold, relay.Hold{Delivery: &ds[i]})
							}
							if err := s.Settle(t.Context(), settlement); err != nil {
								t.Fatal(err)
							}
						}
						want := slices.Concat(some("old", 1, 5), some("new", 1, after+6))
						if got := drain(t, s, len(want)); !slices.Equal(got, want) {
							t.Errorf("the first destination got  %q\nwant %q", got, want)
						}
						if err := s.Close(t.Context()); err != nil {
							t.Fatal(err)
						}
						// One that is new reads the table.
						want = slices.Concat(some("old", 0, 5), some("new", 1, after+6))
						if got := drain(t, testdb.Acquire(t, db.source("fresh", SnapshotConfig{})), len(want)); !slices.Equal(got, want) {
							t.Errorf("a new destination got  %q\nwant %q", got, want)
						}
					})
				}
			}
		})
	}
}

// The same cluster: only the sequence is behind what waits.
func TestASequenceThatWasSetBackIsRefusedAndMended(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{}))
	db.named(false, some("old", 1, 5)...)
	ds := testdb.Next(t, s, 10)
	for len(ds) < 5 {
		ds = append(ds, testdb.Next(t, s, 10)...)
	}
	outcome := relay.Settlement{Through: &ds[4], Hold: []relay.Hold{{Delivery: &ds[3]}, {Delivery: &ds[4]}}}
	if err := s.Settle(t.Context(), outcome); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec(`TRUNCATE outbox.messages RESTART IDENTITY`)
	db.named(false, some("new", 1, 3)...)
	_, err := db.source("d", SnapshotConfig{}).Acquire(t.Context())
	if !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "outbox rebase --destination d") ||
		!strings.Contains(err.Error(), "outbox.messages_id_seq") {
		t.Fatalf("got %v", err)
	}
	if _, err := destinations.Rebase(t.Context(), db.Connect(), "d", admin.Action{Actor: "me"}); err != nil {
		t.Fatal(err)
	}
	db.named(false, some("new", 4, 4)...)
	want := slices.Concat(some("old", 4, 5), some("new", 1, 4))
	if got := drain(t, testdb.Acquire(t, db.source("d", SnapshotConfig{})), len(want)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestASequenceThatGivesNoOrderIsRefused(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, change := range []string{"CACHE 20", "INCREMENT BY -1 MINVALUE -9", "CYCLE"} {
		db.Exec(`ALTER SEQUENCE outbox.messages_id_seq ` + change)
		_, err := db.source("d", SnapshotConfig{}).Acquire(t.Context())
		if !outbox.IsPermanent(err) ||
			!strings.Contains(err.Error(), "ALTER SEQUENCE outbox.messages_id_seq INCREMENT BY 1 CACHE 1 NO CYCLE") {
			t.Errorf("%s: %v", change, err)
		}
		db.Exec(`ALTER SEQUENCE outbox.messages_id_seq INCREMENT BY 1 CACHE 1 NO CYCLE`)
	}
	testdb.Acquire(t, db.source("d", SnapshotConfig{}))
}
