package replication

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay/internal/wal"
)

// backlog commits n messages, of three kilobytes of log each, in transactions of one.
func (db database) backlog(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("backlog %d", i))
	}
	db.Exec(fmt.Sprintf(`DO $$ BEGIN
		FOR i IN 0..%d LOOP
			INSERT INTO outbox.messages (topic, payload, event_type, headers) SELECT 't', convert_to('backlog ' || i, 'UTF8'), 'e',
				jsonb_build_object('filler', string_agg(md5(i || ' ' || j), '')) FROM generate_series(1, 150) j;
			COMMIT;
		END LOOP; END $$`, n-1))
	return all
}

func (db database) slots() string {
	return db.Value("SELECT count(*) FROM pg_replication_slots s JOIN outbox.slots p ON p.slot = s.slot_name")
}

// A source that stands far behind reads the table, and the log again afterwards.
func TestWhatIsFarBehindIsReadFromTheTable(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	source, _ := db.source("d", Config{CatchUp: 4 << 20})
	s := acquire(t, source)
	streaming(t, s)
	db.insert("before")
	one(t, s)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := db.backlog(1000)

	s = acquire(t, source)
	offLog(t, s)
	if n := db.slots(); n != "0" {
		t.Errorf("%s slots retain the log while the table is read", n)
	}
	var got []string
	for len(got) < len(want) {
		if text := one(t, s); text != "before" { // which may come again
			got = append(got, text)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error("what came is not what was committed, in this order")
	}
	streaming(t, s)
	db.insert("after")
	if got := texts(read(t, s, 1)); got[0] != "after" {
		t.Errorf("read %q", got)
	}
	if reason := db.Value("SELECT coalesce(lost_reason, 'none') FROM outbox.slots"); reason != "none" {
		t.Errorf("the slot is said to be lost: %s", reason)
	}
}

// The log is read on where the table would repeat many messages.
func TestWhereTheTableWouldRepeatMuchTheLogIsRead(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	source, _ := db.source("d", Config{CatchUp: 4 << 20})
	s := acquire(t, source)
	streaming(t, s)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Exec("UPDATE outbox.slots SET fallback_lsn = position - 300000")
	want := db.backlog(1000)
	s = acquire(t, source)
	if ds := read(t, s, len(want)); !s.isStreaming() {
		t.Errorf("the table was read, %d messages", len(ds))
	}
}

// A transaction that has begun to come is read to its end: the part that was delivered would come again.
func TestCatchingUpWaitsForTheEndOfATransaction(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	source, _ := db.source("d", Config{CatchUp: 4 << 20})
	s := acquire(t, source)
	streaming(t, s)
	db.Exec("INSERT INTO outbox.messages (topic, payload) SELECT 't', convert_to(i::text, 'UTF8') FROM generate_series(1, 100) i")
	for i := range 100 {
		if text := one(t, s); text != strconv.Itoa(i+1) {
			t.Fatalf("read %q after %d", text, i)
		}
		if i == 50 {
			db.backlog(1000)
			if err := s.readMode(true); err != nil { // the relay learns where the log ends
				t.Fatal(err)
			}
		}
	}
	offLog(t, s)
}

// A broker that was down for long has messages in flight. Those that a look at the log's end covers don't come again.
func TestWhatWasInFlightDuringAnOutageIsNotRepeated(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	source, _ := db.source("d", Config{CatchUp: 4 << 20})
	s := acquire(t, source)
	streaming(t, s)
	for range maxFallbacks {
		db.insert("early")
		if err := s.readMode(true); err != nil {
			t.Fatal(err)
		}
	}
	db.insert("late")
	ds := read(t, s, maxFallbacks+1)
	want := db.backlog(1000)
	if err := s.readMode(true); err != nil {
		t.Fatal(err)
	}
	testdb.Settle(t, s, &ds[maxFallbacks])
	offLog(t, s)
	again := 0
	for text := ""; text != want[0]; {
		if text = texts(read(t, s, 1))[0]; text == "early" {
			again++
		}
	}
	if again > 2 { // the relay looks too, and of many looks every other one is forgotten
		t.Errorf("%d messages came again that were delivered before a look at the log's end", again)
	}
}

// A broker that comes back has what is in flight settled, up to one of the last looks.
func TestOfManyLooksTheOldestAndTheNewestAreKept(t *testing.T) {
	t.Parallel()
	var f fallback
	for lsn := wal.LSN(1); lsn <= 1000; lsn++ {
		f.note("", lsn)
		n := len(f.next)
		if n > maxFallbacks || f.next[0].lsn != 1 || f.next[n-1].lsn != lsn || n > 1 && f.next[n-2].lsn != lsn-1 {
			t.Fatalf("after look %d there are %v", lsn, f.next)
		}
	}
}

// The relay falls behind and catches up, again and again.
func TestCatchingUpUnderLoadLosesAndInvertsNothingAndRepeatsLittle(t *testing.T) {
	t.Parallel()
	db, _ := alone(t)
	l := newLedger()
	w := startLoad(db, l, 4)
	cfg := Config{CatchUp: 16 << 20}
	c := consume(t, db, l, cfg)
	for range rounds(t, 4) {
		await.Until(t, "the log is read", db.streams)
		c.stop()
		db.Exec("CREATE TABLE other AS SELECT i FROM generate_series(1, 400000) i; DROP TABLE other") // 24 MB of log
		from := db.Value("SELECT slot FROM outbox.slots")
		at := db.Value("SELECT xmin::text FROM outbox.slots") // of the row's version
		c = consume(t, db, l, cfg)
		await.Until(t, "the table is read from slot "+from, func() bool {
			return db.try("SELECT EXISTS (SELECT FROM outbox.slots WHERE position IS NULL AND xmin::text <> $1)", at)
		})
	}
	await.Until(t, "the log is read", db.streams)
	w.stop()
	await.Until(t, "everything comes", func() bool { return l.missing() == 0 })
	c.stop()
	l.check(t)
	t.Logf("%d of %d messages came twice", l.repeated(), len(l.count))
	if len(c.log.all) > 0 {
		t.Errorf("alarms: %q", c.log.all)
	}
}
