package polling

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

const insertDelayed = `INSERT INTO outbox.messages (topic, key, payload, deliver_at) SELECT 't', 'k', i::text::bytea, now() + interval '1 hour' FROM generate_series(1, 9) i`

// Messages of a key wait. New ones would come before them, because holds are sent by id.
func TestARelayIsBrokenWhenTheSequenceIsSetBackWhileItRuns(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]string{
		"setval":   `SELECT setval('outbox.messages_id_seq', 1)`,
		"truncate": `TRUNCATE outbox.messages RESTART IDENTITY`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			broker := relaytest.NewMemory()
			end := db.embed(db.source("d", SnapshotConfig{}), broker, relay.Config{})
			db.Exec(insertDelayed)
			db.Await(`SELECT count(*) = 9 FROM outbox.holds`)
			db.Exec(back)
			db.Exec(`INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', 'k', 'new')`)
			db.Await(`SELECT state = 'broken' AND last_error LIKE '%' || $1 || '%' FROM outbox.cursors`, cursors.ErrSequence.Error())
			if n := len(broker.Messages()); n != 0 {
				t.Errorf("%d messages were delivered", n)
			}
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestASequenceThatIsSetBackWhileNothingWaitsEndsNoRelay(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	broker := relaytest.NewMemory()
	end := db.embed(db.source("d", SnapshotConfig{}), broker, relay.Config{})
	db.Exec(`INSERT INTO outbox.messages (topic, key, payload) SELECT 't', 'k', 'x' FROM generate_series(1, 9)`)
	db.Await(`SELECT (SELECT delivered FROM outbox.cursors) = 9`)
	db.Exec(`TRUNCATE outbox.messages RESTART IDENTITY`)
	db.Exec(`INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', 'k', 'new')`)
	db.Await(`SELECT (SELECT delivered FROM outbox.cursors) = 10`)
	if err := end(); err != nil {
		t.Error(err)
	}
}

// firstWrite tells that something was written.
type firstWrite chan struct{}

func (w firstWrite) Write(b []byte) (int, error) {
	select {
	case w <- struct{}{}:
	default:
	}
	return len(b), nil
}

func TestARelayThatStoodByRefusesASequenceThatWasSetBackMeanwhile(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	leader := testdb.Acquire(t, db.source("d", SnapshotConfig{}))
	ended := make(chan error, 1)
	waits := make(firstWrite, 1)
	standby := db.source("d", SnapshotConfig{Lease: 5 * time.Second, Logger: slog.New(slog.NewTextHandler(waits, nil))})
	go func() {
		s, err := standby.Acquire(t.Context())
		if err == nil {
			err = s.Close(context.Background())
		}
		ended <- err
	}()
	db.Exec(insertDelayed)
	ds := testdb.Next(t, leader, 9)
	outcome := relay.Settlement{Through: &ds[len(ds)-1]}
	for i := range ds {
		outcome.Hold = append(outcome.Hold, relay.Hold{Delivery: &ds[i]})
	}
	if err := leader.Settle(t.Context(), outcome); err != nil {
		t.Fatal(err)
	}
	<-waits
	db.Exec(`SELECT setval('outbox.messages_id_seq', 1)`)
	if err := leader.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, cursors.ErrSequence) {
		t.Errorf("it took over: %v", err)
	}
}

// While a nextval writes the log, a SELECT from the sequence shows a number that hasn't been drawn. A relay that
// believed it would take the next look for a sequence that was set back.
func TestTheLastIDIsNeverReadAheadOfTheSequence(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	done := make(chan error, 1)
	writer, reader := db.Connect(), db.Connect()
	go func() {
		_, err := writer.Exec(t.Context(), `SELECT max(nextval('outbox.messages_id_seq')) FROM generate_series(1, 3000000)`)
		done <- err
	}()
	var drawing cursors.SequenceWatch
	for looks := 0; ; looks++ {
		var last int64
		if err := reader.QueryRow(t.Context(), `SELECT `+cursors.LastSQL).Scan(&last); err != nil {
			t.Fatal(err)
		}
		if err := drawing.Check(last, "d"); err != nil {
			t.Fatalf("look %d: %v", looks, err)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}
