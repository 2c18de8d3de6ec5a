package replication

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
)

// ended stops the writers, waits until everything has come, and checks the ledger.
func ended(t *testing.T, db database, w *load, c *consumer) {
	t.Helper()
	w.stop()
	for ctx := await.Context(t); c.ledger.missing() > 0 && ctx.Err() == nil; {
		time.Sleep(5 * time.Millisecond)
	}
	c.stop()
	c.ledger.check(t)
	t.Logf("%d messages, %d of them came more than once", len(c.ledger.committed), c.ledger.repeated())
}

// flows waits until messages that are written from now on come.
func (l *ledger) flows(t *testing.T, n int) {
	t.Helper()
	l.mu.Lock()
	from := len(l.count)
	l.mu.Unlock()
	await.Until(t, "messages come", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.count) >= from+n
	})
}

func TestASlotThatIsDroppedUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	l := newLedger()
	w := startLoad(db, l, 4)
	c := consume(t, db, l, Config{})
	await.Until(t, "the log is read", db.streams)
	slot := db.Value("SELECT slot FROM outbox.slots")
	for range rounds(t, 3) {
		l.flows(t, 30)
		await.Until(t, "the slot is dropped", func() bool {
			conn := db.Connect()
			defer dial.HangUp(conn)
			_, _ = conn.Exec(t.Context(),
				"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active", slot)
			_, err := conn.Exec(t.Context(), "SELECT pg_drop_replication_slot($1)", slot)
			return err == nil
		})
		await.Until(t, "the log is read again", db.streams)
	}
	ended(t, db, w, c)
	if !c.log.contains("is gone") {
		t.Errorf("no alarm names the cause: %q", c.log.all)
	}
	if cause := db.Value("SELECT lost_reason FROM outbox.slots WHERE lost_at IS NOT NULL"); !strings.Contains(cause, "is gone") {
		t.Errorf("the state says %q", cause)
	}
}

func TestASlotThatSomebodyElseHasMadeOrAdvancedIsNotTrusted(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"made anew", "advanced"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			source, _ := db.source("d", Config{})
			s := acquire(t, source)
			streaming(t, s)
			db.insert("1", "2")
			ds := read(t, s, 2)
			testdb.Settle(t, s, &ds[0])
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			slot := source.cfg.Slot
			await.Until(t, "the stream has ended", func() bool {
				return db.try("SELECT NOT active FROM pg_replication_slots WHERE slot_name = $1", slot)
			})
			db.insert("3")
			if what == "advanced" {
				db.Exec("SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())", slot)
			} else {
				db.Exec("SELECT pg_drop_replication_slot($1)", slot)
				db.Exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
			}
			db.insert("4")
			s = acquire(t, source)
			// 1 may come again: nothing but the log knew that it was settled.
			got := strings.Join(texts(read(t, s, 3)), " ")
			if got != "2 3 4" && got != "1 2 3" {
				t.Errorf("read %q", got)
			}
			if cause := db.Value("SELECT lost_reason FROM outbox.slots"); !strings.Contains(cause, "beyond") {
				t.Errorf("the state says %q", cause)
			}
		})
	}
}

func TestASlotThatIsInvalidatedUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"14", "18"} {
		t.Run("PostgreSQL "+major, func(t *testing.T) {
			t.Parallel()
			db, _ := alone(t, servers.PostgresConfig{Major: major, Settings: map[string]string{
				"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}})
			l := newLedger()
			w := startLoad(db, l, 3)
			c := consume(t, db, l, Config{})
			for range rounds(t, 1) {
				await.Until(t, "the log is read", db.streams)
				l.flows(t, 30)
				c.stop() // nobody reads, and the log goes on
				await.Until(t, "the slot is invalidated", func() bool {
					db.Exec("SELECT pg_switch_wal()")
					db.Exec("CREATE TABLE IF NOT EXISTS filler (x text); INSERT INTO filler SELECT repeat(md5(i::text), " +
						"50) FROM generate_series(1, 4000) i")
					db.Exec("CHECKPOINT")
					return db.try("SELECT wal_status = 'lost' FROM pg_replication_slots WHERE plugin = 'pgoutput'")
				})
				c = consume(t, db, l, Config{})
				await.Until(t, "the log is read again", db.streams)
				if !c.log.contains("invalidated") {
					t.Errorf("no alarm names the cause: %q", c.log.all)
				}
			}
			ended(t, db, w, c)
			db.DropSlots()
		})
	}
}

// The standby has no slot of that name before version 17, nor later without sync_replication_slots.
func TestAPromotedStandbyWithoutTheSlotLosesNothingThatItHas(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"15", "18"} {
		t.Run("PostgreSQL "+major, func(t *testing.T) {
			t.Parallel()
			for range rounds(t, 1) {
				promotion(t, major)
			}
		})
	}
}

func promotion(t *testing.T, major string) {
	db, primary := alone(t, servers.PostgresConfig{Major: major})
	standby := servers.OwnStandby(t, primary)
	l := newLedger()
	w := startLoad(db, l, 3)
	c := consume(t, db, l, Config{})
	await.Until(t, "the log is read", db.streams)
	l.flows(t, 100)
	// The standby falls behind what is delivered.
	promoted := database{testdb.DB{T: t, URL: standby.URL("postgres")}}
	promoted.Exec("ALTER SYSTEM SET primary_conninfo = ''")
	promoted.Exec("SELECT pg_reload_conf()")
	await.Until(t, "the standby receives nothing", func() bool {
		return promoted.try("SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
	})
	l.flows(t, 100)
	w.stop()
	c.stop()
	if err := primary.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	survivors(t, promoted, l)
	w = startLoad(promoted, l, 0)
	for key, n := range l.last {
		w.next[key] = n + 1000 // numbers that the primary has not used
	}
	w.more(3)
	c = consume(t, promoted, l, Config{})
	await.Until(t, "the log is read", promoted.streams)
	l.flows(t, 50)
	ended(t, promoted, w, c)
	if !c.log.contains("promoted") {
		t.Errorf("no alarm names the cause: %q", c.log.all)
	}
	promoted.DropSlots()
}

// survivors makes the ledger forget the commits that an asynchronous standby had not received. What was
// delivered of them stays delivered, as of any message that the primary has lost.
func survivors(t *testing.T, db database, l *ledger) {
	t.Helper()
	conn := db.Connect()
	defer dial.HangUp(conn)
	rows, err := conn.Query(t.Context(), "SELECT convert_from(payload, 'UTF8') FROM outbox.messages")
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	there := make(map[string]bool)
	for _, text := range all {
		there[text] = true
	}
	lost := 0
	for text := range l.committed {
		if !there[text] {
			lost++
			if l.count[text] == 0 {
				delete(l.committed, text)
			}
		}
	}
	// A commit whose answer was cut off is there all the same.
	for text := range there {
		l.committed[text] = true
	}
	t.Logf("%d of %d commits had not reached the standby", lost, len(l.committed))
}

func TestAFailoverSlotIsReadOnAfterAPromotion(t *testing.T) {
	t.Parallel()
	db, primary := alone(t, servers.PostgresConfig{Major: "18"})
	standby := servers.OwnStandby(t, primary, servers.StandbyConfig{Settings: map[string]string{"sync_replication_slots": "on"}})
	// What the log sends has reached the standby.
	db.Exec("ALTER SYSTEM SET synchronized_standby_slots = '" + standby.Slot() + "'")
	db.Exec("SELECT pg_reload_conf()")
	l := newLedger()
	w := startLoad(db, l, 3)
	c := consume(t, db, l, Config{})
	await.Until(t, "the log is read", db.streams)
	l.flows(t, 100)
	w.stop()
	follower := database{testdb.DB{T: t, URL: standby.URL("postgres")}}
	await.Until(t, "the slot is on the standby", func() bool {
		db.Exec("SELECT pg_log_standby_snapshot()") // by which the primary's slot advances
		return follower.try("SELECT EXISTS (SELECT FROM pg_replication_slots WHERE plugin = 'pgoutput' AND " +
			"to_jsonb(pg_replication_slots) ->> 'synced' = 'true' AND NOT temporary)")
	})
	again := startLoad(db, l, 0)
	again.next = w.next // the numbers go on
	again.more(3)
	l.flows(t, 100)
	again.stop()
	c.stop()
	if err := primary.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := len(l.count)
	survivors(t, follower, l)
	l.mu.Lock()
	for text := range l.count {
		if !l.committed[text] {
			t.Errorf("%s was delivered and the standby doesn't have it", text)
		}
	}
	l.mu.Unlock()
	w = startLoad(follower, l, 0)
	for key, n := range l.last {
		w.next[key] = n + 1000
	}
	w.more(3)
	c = consume(t, follower, l, Config{})
	await.Until(t, "the log is read", follower.streams)
	l.flows(t, 50)
	ended(t, follower, w, c)
	if len(c.log.all) > 0 {
		t.Errorf("alarms though the slot was there: %q", c.log.all)
	}
	if before == 0 {
		t.Error("nothing came before")
	}
	follower.DropSlots()
}

func TestAServerThatIsKilledUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	db, pg := alone(t)
	l := newLedger()
	w := startLoad(db, l, 3)
	c := consume(t, db, l, Config{})
	await.Until(t, "the log is read", db.streams)
	for range rounds(t, 2) {
		l.flows(t, 50)
		if err := pg.Kill9(); err != nil {
			t.Fatal(err)
		}
		if err := pg.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		// A commit may be there though its writer never heard of it.
		committed(t, db, l)
		await.Until(t, "the log is read", db.streams)
	}
	w.stop()
	committed(t, db, l)
	await.Until(t, "everything comes", func() bool { return l.missing() == 0 })
	c.stop()
	l.check(t)
	if len(c.log.all) > 0 {
		t.Errorf("alarms though the slot was there: %q", c.log.all)
	}
	db.DropSlots()
}

// committed adds what the database has.
func committed(t *testing.T, db database, l *ledger) {
	t.Helper()
	conn := db.Connect()
	defer dial.HangUp(conn)
	rows, err := conn.Query(t.Context(), "SELECT convert_from(payload, 'UTF8') FROM outbox.messages")
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	l.commit(all)
}

func TestARelayThatIsKilledAtAnyPointLosesAndRepeatsNothingThatWasSettled(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	source, lines := db.source("d", Config{})
	source.table.SetOwner("one")
	s := acquire(t, source)
	streaming(t, s)
	ctx := context.Background()
	total := 0
	var unsettled []string
	for round := range 12 {
		conn := db.Connect()
		for range 3 {
			tx, err := conn.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				total++
				text := strconv.Itoa(total)
				if _, err := tx.Exec(ctx, "INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', 'k', convert_to($1, 'UTF8'))",
					text); err != nil {
					t.Fatal(err)
				}
				unsettled = append(unsettled, text)
			}
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
		}
		dial.HangUp(conn)
		ds := read(t, s, len(unsettled))
		if got, want := strings.Join(texts(ds), " "), strings.Join(unsettled, " "); got != want {
			t.Fatalf("round %d: read %s, want %s", round, got, want)
		}
		n := round % len(ds)
		switch round % 4 {
		case 0: // published, not settled
		case 1: // settled, the server not told
			testdb.Settle(t, s, &ds[n])
			unsettled = unsettled[n+1:]
		case 2: // and told
			testdb.Settle(t, s, &ds[n])
			unsettled = unsettled[n+1:]
			if err := s.confirm(s.wal, true); err != nil {
				t.Fatal(err)
			}
		case 3: // the position is stored without a settlement
			testdb.Settle(t, s, &ds[len(ds)-1])
			unsettled = nil
			if err := s.store(ctx, nil); err != nil {
				t.Fatal(err)
			}
		}
		crash(s, lines)
		s = acquire(t, source)
		if !s.isStreaming() {
			t.Fatalf("round %d: the log could be read on, and isn't: %s", round, db.Value("SELECT lost_reason FROM outbox.slots"))
		}
	}
}
