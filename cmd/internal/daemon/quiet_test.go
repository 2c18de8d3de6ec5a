package daemon

import (
	"strconv"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
)

// restSessions is how many connections a relay has to a database where nothing happens.
const restSessions = 3

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
