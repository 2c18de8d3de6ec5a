package mapped

import (
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/servers"
)

// The outbox's own schema is there, for others. The relay of a table needs none of it.
func TestARoleWithoutRightsOnTheOutboxRelaysATable(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	db.install(t)
	role := "relay_of_" + db.Config().Database
	db.Exec("CREATE ROLE " + role + " LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO " + role)
	t.Cleanup(func() { db.drop(role) })
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', 'x')`)
	for name, open := range strategies() {
		conn := db.Config()
		conn.User = role
		source := opened(t)(open(conn, Config{Name: "one", Destination: name, LagObjective: time.Hour, PollIdle: time.Millisecond}))
		if _, err := source.(*Source).Probe(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		session := acquired(t, source)
		read(t, session, 1)
		if err := session.Close(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
