package mapped

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/marking"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

const drops = `CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
`

// A dead letter that its table drops without an error stays where it is, and nothing passes it.
func TestADeadLetterThatIsNotKeptStaysWhereItIs(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for what, c := range map[string]struct{ prepare, repair, want string }{
		"trigger": {drops + `CREATE TRIGGER drops BEFORE INSERT ON dead_events FOR EACH ROW EXECUTE FUNCTION drops()`,
			`DROP TRIGGER drops ON dead_events`, "drops a row without an error"},
		"trigger of a partition": {drops + `ALTER TABLE dead_events RENAME TO part; CREATE TABLE dead_events (LIKE part) PARTITION BY LIST (topic);
			ALTER TABLE dead_events ATTACH PARTITION part DEFAULT;
			CREATE TRIGGER drops BEFORE INSERT ON part FOR EACH ROW EXECUTE FUNCTION drops()`,
			`DROP TRIGGER drops ON part`, "drops a row without an error"},
		"rule": {`CREATE RULE drops AS ON INSERT TO dead_events DO INSTEAD NOTHING`, `DROP RULE drops ON dead_events`, "drops a row without an error"},
		"rule for some": {`CREATE RULE drops AS ON INSERT TO dead_events WHERE NEW.topic = 't' DO INSTEAD NOTHING`,
			`DROP RULE drops ON dead_events`, "drops a row without an error"},
	} {
		for name, open := range strategies() {
			t.Run(what+" "+name, func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				for _, sql := range strings.Split(c.prepare, ";\n") {
					db.Exec(sql)
				}
				var log bytes.Buffer
				bury := func() error { return bury(t, db, open, &log) }
				db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', 'mine')`)
				err := bury()
				if !strings.Contains(fmt.Sprint(err, log.String()), c.want) {
					t.Errorf("got %v, the log says %s", err, &log)
				}
				if offsets := slices.Contains([]string{"xmin", "serial"}, name); outbox.IsPermanent(err) != offsets {
					t.Errorf("got %v", err)
				}
				if n := db.Value(`SELECT (SELECT count(*) FROM events WHERE status IN ('new', 'taken')) || ' ' || (SELECT count(*) FROM dead_events)`); n != "1 0" {
					t.Fatalf("%s rows wait and are dead", n)
				}
				db.Exec(c.repair)
				db.Exec(`UPDATE events SET status = 'new', locked_until = NULL, owner = NULL`)
				if err := bury(); err != nil || db.Value(`SELECT count(*) FROM dead_events`) != "1" {
					t.Errorf("after the repair: %v", err)
				}
			})
		}
	}
}

// A trigger that undoes marks stops the relay's reading, with an error that names the table. Nothing is sent again, and
// the relay goes on once the trigger is gone.
func TestNothingIsReadWhileATriggerUndoesMarks(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	const function = `CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF OLD.topic = ''t'' AND (TG_OP = ''DELETE'' OR NEW.status <> OLD.status AND NEW.status <> ''taken'') THEN %s END IF;
		IF TG_OP = ''DELETE'' THEN RETURN OLD; END IF; RETURN NEW; END'`
	for what, c := range map[string]struct{ undo, on, how string }{
		"the old row":  {`RETURN OLD;`, "BEFORE UPDATE", ""},
		"no row":       {`RETURN NULL;`, "BEFORE UPDATE", ""},
		"the column":   {`NEW.status = OLD.status;`, "BEFORE UPDATE", ""},
		"afterwards":   {`UPDATE events SET status = OLD.status WHERE id = OLD.id AND NEW.status = ''done'';`, "AFTER UPDATE", ""},
		"of deletions": {`RETURN NULL;`, "BEFORE DELETE", "delete"},
	} {
		opens := changed(func(m *mapping.Mapping) {
			if m.RowsMayBeDeleted = true; c.how == "delete" && m.Claim.Status == "" && m.Done.How != "" {
				m.Done = mapping.Done{How: mapping.DoneDelete}
			}
		})
		for _, strategy := range noting {
			if c.how == "delete" && strategy == "lease by status" {
				continue // rows that are claimed by a status are done by one
			}
			t.Run(what+" "+strategy, func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				db.Exec(fmt.Sprintf(function, c.undo))
				db.Exec(`CREATE TRIGGER undo ` + c.on + ` ON events FOR EACH ROW EXECUTE FUNCTION undo()`)
				log := &syncedBuffer{}
				logger := slog.New(slog.NewTextHandler(log, nil))
				source := opened(t)(opens[strategy](db.Config(), Config{Name: "one", PollIdle: 5 * time.Millisecond, Logger: logger}))
				broker := relaytest.NewMemory()
				ctx, stop := testdb.Run(t, source, broker, relay.Config{Logger: logger})
				db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'k', '1'), ('t', 'k', '2')`)
				for !strings.Contains(log.String(), "too much is set aside") {
					if time.Sleep(10 * time.Millisecond); ctx.Err() != nil {
						t.Fatalf("the log says %s", log)
					}
				}
				db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('u', 'k', '3')`)
				await.Until(t, "the log tells of the marks", func() bool {
					return strings.Contains(log.String(), "doesn't keep the marks")
				})
				time.Sleep(3 * marking.AgainAfter)
				if n := len(broker.Messages()); n != 2 {
					t.Errorf("%d messages came, want 2", n)
				}
				db.Exec(`DROP TRIGGER undo ON events`)
				if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= 3 }); err != nil {
					t.Error(err)
				}
				db.Await(`SELECT count(*) = 0 FROM events WHERE status <> 'done'`)
				stop()
				if n := len(broker.Messages()); n != 3 {
					t.Errorf("%d messages came, want 3", n)
				}
			})
		}
	}
}

// syncedBuffer is a log that is read while it is written.
type syncedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncedBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncedBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
