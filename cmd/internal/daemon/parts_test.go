package daemon

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
)

// placedBy starts a Daemon that delivers what place says, until the test ends.
func placedBy(t *testing.T, name string, out *lines, place func(unit string, part int) choice, databases ...Database) (*many, func()) {
	t.Helper()
	for i := range databases {
		databases[i].Config.Name = name
	}
	m := &many{t: t, out: out}
	var err error
	if m.d, err = New(databases, Options{Several: true, placed: true, Stdout: m.out, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	m.place(place)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.d.Run(ctx) }()
	end := func() {
		stop()
		if err, open := <-ended; open && err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { end() })
	stopped := false
	return m, func() {
		if !stopped {
			stopped = true
			end()
			close(ended)
		}
	}
}

// place sets where the parts are.
func (m *many) place(place func(unit string, part int) choice) {
	for _, u := range m.d.units {
		choices := make([]choice, len(u.parts))
		for i := range choices {
			choices[i] = place(u.Name, i)
		}
		u.placed.set(choices)
	}
}

// sessions counts those of relays in a database, and the registered names.
func sessions(db testdb.DB) string {
	return db.Value(`SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'outbox%') || ' ' ||
		(SELECT count(*) FROM outbox.relays)`)
}

// A unit whose parts are all elsewhere has no connection and no name in the database, and is ready; single parts start
// and end while others go on.
func TestPartsStartAndEndWhileOthersGoOn(t *testing.T) {
	t.Parallel()
	db, rests := installed(t), installed(t)
	two := func(c *config.Config) { c.Destinations[0].ShardGroups = 2 }
	everything := func(string, int) choice { return firstChoice }
	none := func(string, int) choice { return elsewhere }
	m, _ := placedBy(t, "one", &lines{came: make(chan struct{}, 1)}, none, from("db", db.Config(), two), from("rests", rests.Config(), nil))
	await.Until(t, "there are paths", func() bool { return m.d.handler.Load() != nil })
	for _, path := range []string{"/readyz", "/databases/db/readyz", "/databases/rests/healthz/destinations"} {
		if code, text := m.get(path); code != http.StatusOK {
			t.Errorf("%s of nothing: %d %s", path, code, text)
		}
	}
	if got := sessions(db); got != "0 0" {
		t.Errorf("nothing is here, and there are sessions and names: %s", got)
	}
	m.place(func(unit string, part int) choice {
		if unit == "db" && part == 1 {
			return firstChoice
		}
		return elsewhere
	})
	owned := `SELECT coalesce(string_agg(shard_group::text, ' ' ORDER BY shard_group), 'none') FROM outbox.cursors WHERE ` +
		"owner = 'one' AND lease_until > clock_timestamp()"
	db.Await(`SELECT (` + owned + `) = '1'`)
	m.place(func(unit string, part int) choice { return map[bool]choice{true: firstChoice}[unit == "db"] })
	db.Await(`SELECT (` + owned + `) = '0 1'`)
	epoch := db.Value(`SELECT epoch FROM outbox.cursors WHERE shard_group = 1`)
	m.send(db, "both")

	// Another has them from here on.
	other, _ := placedBy(t, "two", m.out, everything, from("db", db.Config(), two))
	m.place(func(unit string, part int) choice {
		if unit == "db" && part == 1 {
			return firstChoice
		}
		return elsewhere
	})
	db.Await(`SELECT owner = 'two' AND lease_until > clock_timestamp() FROM outbox.cursors WHERE shard_group = 0`)
	if got := db.Value(`SELECT owner || ' ' || epoch FROM outbox.cursors WHERE shard_group = 1`); got != "one "+epoch {
		t.Errorf("the part that stays has been interrupted: %s, want one %s", got, epoch)
	}
	m.place(none)
	db.Await(`SELECT count(*) = 2 FROM outbox.cursors WHERE owner = 'two' AND lease_until > clock_timestamp()`)
	db.Await(`SELECT count(*) = 0 FROM outbox.relays WHERE name = 'one'`)
	db.Await(`SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'outbox%one'`)
	if code, text := m.get("/readyz"); code != http.StatusOK {
		t.Errorf("not ready since another has the parts: %d %s", code, text)
	}
	await.Until(t, "what is another's is not measured here", func() bool {
		_, metrics := m.get("/metrics")
		return !strings.Contains(metrics, `outbox_pending_messages{database="db"`) &&
			strings.Contains(metrics, `outbox_lease_held{database="db",destination="all",shard_group="1"} 0`)
	})
	other.send(db, "moved")
}

// A part is kept while nobody waits for it: its next owner may not reach the database.
func TestAPartIsKeptUntilItsNextOwnerWaits(t *testing.T) {
	t.Parallel()
	db := installed(t)
	everything := func(string, int) choice { return firstChoice }
	m, _ := placedBy(t, "one", &lines{came: make(chan struct{}, 1)}, everything, from("db", db.Config(), nil))
	m.send(db, "first")
	m.place(func(string, int) choice { return elsewhere })
	time.Sleep(10 * handOverPause) // it has looked by now
	if got := db.Value(`SELECT owner FROM outbox.cursors WHERE lease_until > clock_timestamp()`); got != "one" {
		t.Fatalf("the part is given up, and its owner is %q", got)
	}
	m.send(db, "second")
	m.place(func(string, int) choice { return firstChoice })
	m.send(db, "third")
}
