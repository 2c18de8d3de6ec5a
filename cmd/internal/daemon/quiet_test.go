package daemon

import (
	"strconv"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// restSessions is how many connections a relay has to a database where nothing happens, whatever it delivers to.
const restSessions = 1

func connected(db testdb.DB) int {
	db.T.Helper()
	n, err := strconv.Atoi(db.Value(`SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name LIKE 'outbox %'`))
	if err != nil {
		db.T.Fatal(err)
	}
	return n
}

// The verdict on an idle database stays as young as that on others, and a message changes it, though the daemon has no
// connection for looks.
func TestAnIdleDatabaseIsLookedAtOnTheRelaysConnection(t *testing.T) {
	t.Parallel()
	db := installed(t)
	m := deliverFrom(t, from("db", db.Config(), func(c *config.Config) { c.Retention.Interval = time.Second }))
	u := m.d.units[0]
	quiet := func() bool {
		u.watch.mu.Lock()
		defer u.watch.mu.Unlock()
		return u.watch.quiet.digest != ""
	}
	for round := range int64(2) {
		await.Until(t, "it is quiet, and one connection is left", func() bool { return quiet() && connected(db) == restSessions })
		r, _ := u.watch.summary()
		if r.Destinations[0].Delivered != round {
			t.Errorf("%d messages were delivered", r.Destinations[0].Delivered)
		}
		at := r.At
		await.Until(t, "it is looked at again", func() bool {
			r, age := u.watch.summary()
			return r.At.After(at) && age < health.ReadWithin
		})
		db.Exec("INSERT INTO outbox.messages (topic, payload) VALUES ('t', '{}')")
		await.Until(t, "the report has the message", func() bool {
			r, _ := u.watch.summary()
			return r.Destinations[0].Delivered == round+1
		})
	}
}

// severalParts makes a daemon deliver to two destinations, one of which has three shard groups.
func severalParts(c *config.Config) {
	other := c.Destinations[0]
	other.Name, other.ShardGroups = "groups", 3
	c.Destinations = append(c.Destinations, other)
}

func (m *many) rests(db testdb.DB) {
	m.t.Helper()
	await.UntilElse(m.t, func() bool { return connected(db) == restSessions }, func() string {
		return "it does not come to one connection: " + db.Value(`SELECT string_agg(application_name || ': ' || query, '; ') FROM pg_stat_activity
			WHERE datname = current_database() AND application_name LIKE 'outbox %'`)
	})
}

func TestAnIdleDatabaseCostsOneConnectionHoweverManyPartsItHas(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := installed(t)
	m := deliverFrom(t, from("db", db.Config(), severalParts))
	m.send(db, "first")
	m.rests(db)

	epochs := db.Value("SELECT sum(epoch)::bigint FROM outbox.cursors")
	db.Exec(`SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name LIKE 'outbox %'`)
	m.send(db, "afterwards")
	db.Await("SELECT sum(epoch) > " + epochs + " FROM outbox.cursors") // all leases were on it
	m.rests(db)

	epochs = db.Value("SELECT sum(epoch)::bigint FROM outbox.cursors")
	db.Exec(`INSERT INTO outbox.messages (topic, key, payload) SELECT 't', i::text, '{}' FROM generate_series(1, 20000) i`)
	await.Until(t, "it delivers with connections of its own", func() bool { return connected(db) > restSessions })
	db.Await("SELECT bool_and(delivered >= 5000) AND sum(delivered) = 2 * 20002 FROM outbox.cursors")
	m.rests(db)
	if now := db.Value("SELECT sum(epoch)::bigint FROM outbox.cursors"); now != epochs {
		t.Errorf("leases were lost on the way: epochs %s, then %s", epochs, now)
	}
	db.Await("SELECT bool_and(locked AND lease > interval '30 seconds') FROM outbox.cursors")
}

// A statement that waits on the shared connection delays what rests, and not the leases of what delivers.
func TestABlockedHeartbeatCostsNoLeaseUnderLoad(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := installed(t)
	m := deliverFrom(t, from("db", db.Config(), nil))
	m.send(db, "first")
	write := func() { db.Exec("INSERT INTO outbox.messages (topic, payload) VALUES ('t', '{}')") }
	await.Until(t, "it delivers with connections of its own", func() bool { write(); return connected(db) > restSessions })
	epoch := db.Value("SELECT epoch FROM outbox.cursors")
	tx, err := db.Connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM outbox.relays FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	// This is longer than the lock_timeout, and than two leases.
	for began := time.Now(); time.Since(began) < 7*time.Second; time.Sleep(20 * time.Millisecond) {
		write()
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.send(db, "last")
	if now := db.Value("SELECT epoch FROM outbox.cursors"); now != epoch {
		t.Errorf("the lease was lost: epoch %s, then %s", epoch, now)
	}
	m.rests(db)
}

// The lock of a lease isn't on two connections at once. While it is on none, another relay that waits for it must not
// take the lease.
func TestALeaseStaysWhileItsConnectionChanges(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := installed(t)
	one := deliverFrom(t, from("db", db.Config(), func(c *config.Config) { c.Name = "one" }))
	one.send(db, "first")
	deliverFrom(t, from("db", db.Config(), func(c *config.Config) { c.Name = "two" }))
	db.Await(`SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`) // two waits for one
	epoch := db.Value("SELECT epoch FROM outbox.cursors")
	ofOne := func() string {
		return db.Value(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'outbox relay one'`)
	}
	for range 2 {
		await.Until(t, "it rests", func() bool { return ofOne() == "1" })
		await.Until(t, "it delivers with connections of its own", func() bool {
			db.Exec("INSERT INTO outbox.messages (topic, payload) VALUES ('t', '{}')")
			return ofOne() == "3"
		})
	}
	await.Until(t, "it rests again", func() bool { return ofOne() == "1" })
	if now := db.Value("SELECT epoch FROM outbox.cursors"); now != epoch {
		t.Errorf("the lease changed hands: epoch %s, then %s", epoch, now)
	}
}

// The lease of a relay that rests is a long one. If its process is frozen, or the line is cut, the server ends the
// session, and the next in line doesn't wait for the lease.
func TestARelayThatIsCutOffWhileItRestsIsReplacedBeforeItsLeaseExpires(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := installed(t)
	proxy, far := testnet.Before(t, db.Config())
	one := deliverFrom(t, from("db", far, func(c *config.Config) { c.Name = "one" }))
	one.send(db, "first")
	db.Await("SELECT locked AND lease > interval '30 seconds' FROM outbox.cursors")
	two := deliverFrom(t, from("db", db.Config(), func(c *config.Config) { c.Name = "two" }))
	db.Await("SELECT count(*) > 0 FROM outbox.relays WHERE name = 'two'")
	until := db.Value("SELECT lease_until::text FROM outbox.cursors")
	if err := proxy.Freeze(); err != nil {
		t.Fatal(err)
	}
	two.send(db, "second")
	db.Await("SELECT owner = 'two' FROM outbox.cursors")
	if early := db.Value("SELECT clock_timestamp() < '" + until + "'::timestamptz"); early != "true" {
		t.Error("the lease was waited for")
	}
	if err := proxy.Thaw(); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "it has one connection", func() bool {
		return db.Value(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'outbox relay two'`) == "1"
	})
}
