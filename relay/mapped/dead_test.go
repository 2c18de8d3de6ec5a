package mapped

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

// A table for dead letters with a unique id, and ids that begin again.
func TestADeadLetterIsNeverTakenForAnotherOfItsId(t *testing.T) {
	t.Parallel()
	for name, open := range strategies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Exec(`ALTER TABLE dead_events ADD PRIMARY KEY (id)`)
			db.Exec(`INSERT INTO dead_events (id, message_id, topic, payload, created_at, status, attempts, part, xid)
				VALUES (1, gen_random_uuid(), 't', 'other', now(), 'new', 1, 0, '1')`)
			var log bytes.Buffer
			bury := func() error { return bury(t, db, open, &log) }
			db.Exec(`INSERT INTO events (id, topic, key, payload) VALUES (1, 't', 'k', 'mine')`)
			err := bury()
			if !strings.Contains(fmt.Sprint(err, log.String()), "ids were used twice") {
				t.Errorf("got %v, the log says %s", err, &log)
			}
			if wanted := name == "xmin" || name == "serial"; outbox.IsPermanent(err) != wanted {
				t.Errorf("got %v", err)
			}
			if n := db.Value(`SELECT count(*) FROM events WHERE status = 'new' OR status = 'taken'`); n != "1" {
				t.Errorf("%s rows wait", n)
			}
			db.Exec(`DELETE FROM dead_events`)
			// The message itself is there: a crash, and it is buried again.
			db.Exec(`INSERT INTO dead_events SELECT e.* FROM events e`)
			db.Exec(`UPDATE events SET status = 'new', locked_until = NULL, owner = NULL`)
			if err := bury(); err != nil {
				t.Error(err)
			}
			if n := db.Value(`SELECT count(*) FROM dead_events`); n != "1" {
				t.Errorf("%s dead letters", n)
			}
		})
	}
}

// bury makes a dead letter of the first message.
func bury(t *testing.T, db database, open func(*pgx.ConnConfig, Config) (relay.Source, error), log io.Writer) error {
	t.Helper()
	s := acquired(t, opened(t)(open(db.Config(), Config{Name: "one", Logger: slog.New(slog.NewTextHandler(log, nil))})))
	d := &read(t, s, 1)[0]
	return errors.Join(s.Settle(t.Context(),
		relay.Settlement{Through: d, Dead: []relay.Dead{{Delivery: d, Reason: relay.ReasonRefused, Err: errors.New("no")}}}),
		s.Close(t.Context()))
}
