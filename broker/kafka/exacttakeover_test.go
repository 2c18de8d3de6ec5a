package kafka_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// database is the outbox of a world in PostgreSQL. Leases last an hour: who takes over does so because a session has
// ended, while the owner believes that the lease is its own.
type database struct {
	testdb.DB
	*exactWorld
}

func inDatabase(t *testing.T, rows int) database {
	t.Helper()
	d := database{testdb.Installed(t), newExactWorld(t)}
	conn := d.Connect()
	ids, err := conn.Query(t.Context(), `INSERT INTO outbox.messages (topic, key, payload)
		SELECT $1, 'k' || n % 3, 'x' FROM generate_series(1, $2::integer) n RETURNING message_id`, d.topic, rows)
	if err != nil {
		t.Fatal(err)
	}
	for ids.Next() {
		var id [16]byte
		if err := ids.Scan(&id); err != nil {
			t.Fatal(err)
		}
		d.rows = append(d.rows, relay.Delivery{Message: outbox.Message{ID: outbox.ID(id)}})
	}
	if ids.Err() != nil {
		t.Fatal(ids.Err())
	}
	return d
}

func (d database) source() relay.Source {
	d.T.Helper()
	s, err := polling.NewSnapshot(d.Config(), "d", polling.SnapshotConfig{Lease: time.Hour})
	if err != nil {
		d.T.Fatal(err)
	}
	return s
}

// begin makes a relay with a session, which the end of the test closes.
func (d database) begin(r *exactRelay, from relay.Source) *exactRelay {
	d.T.Helper()
	d.acquire(r, from)
	d.T.Cleanup(func() { _ = r.session.Close(context.Background()) })
	return r
}

// standBy starts a relay that waits for the lock of the lease, and returns once it does. The relay has its session
// when next returns.
func (d database) standBy() (next func() *exactRelay) {
	d.T.Helper()
	r, source := d.open(0), d.source()
	ctx := patient(d.T)
	var acquiring sync.WaitGroup
	var failure error
	acquiring.Go(func() { r.session, failure = r.Source(source).Acquire(ctx) })
	d.T.Cleanup(func() {
		acquiring.Wait()
		if r.session != nil {
			_ = r.session.Close(context.Background())
		}
	})
	conn := d.Connect()
	await.Until(d.T, "it waits for the lock", func() bool {
		waiting, err := polling.Awaited(ctx, conn, "d", 0)
		if err != nil {
			d.T.Fatal(err)
		}
		return waiting
	})
	return func() *exactRelay {
		d.T.Helper()
		acquiring.Wait()
		if failure != nil {
			d.T.Fatal(failure)
		}
		return r
	}
}

// endSession ends the session of the owner in the database.
func (d database) endSession() {
	d.T.Helper()
	d.Exec(`SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND granted
		AND classid = 'outbox.cursors'::regclass AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
}

func TestWhoTakesOverAtOnceSendsNothingAgain(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*exactRelay) <-chan struct{}{
		"before it sends":         func(r *exactRelay) <-chan struct{} { return r.freeze(kmsg.Produce) },
		"before it commits":       func(r *exactRelay) <-chan struct{} { return r.freeze(kmsg.EndTxn) },
		"after it has committed":  func(r *exactRelay) <-chan struct{} { return r.lose(kmsg.EndTxn) },
		"while it goes on freely": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := inDatabase(t, 60)
			zombie := d.begin(d.open(0), d.source())
			next := d.standBy()
			rows := zombie.read(60)
			zombie.deliver(rows[:10])
			zombie.settle(relay.Settlement{Through: &rows[4], Delivered: 5})
			var reached <-chan struct{}
			if stop != nil {
				reached = stop(zombie)
			}
			var publishing sync.WaitGroup
			publishing.Go(func() {
				for i := 10; i < 40; i += 10 { // some or none of it is committed
					if errs := zombie.Publish(patient(t), messagesOf(rows[i:i+10])); errs != nil {
						return
					}
				}
			})
			if stop != nil {
				select {
				case <-reached:
				case <-patient(t).Done():
					t.Fatal("nothing was sent")
				}
			}
			d.endSession()

			successor := next()
			again := successor.read(55)
			if again[0].Position != rows[5].Position {
				t.Errorf("the successor begins with row %d, want %d", again[0].Position, rows[5].Position)
			}
			successor.deliver(again)
			zombie.heal()
			publishing.Wait()
			unavailable(t, zombie.Publish(patient(t), messagesOf(rows[40:])), 20)
			if err := zombie.session.Settle(patient(t), relay.Settlement{Through: &rows[9], Delivered: 5}); err == nil {
				t.Error("the zombie has settled")
			}
			successor.settle(relay.Settlement{Through: &again[54], Delivered: 55})
			d.once(60)
		})
	}
}

// recognized is a source, and its session, where something happens when the broker has been recognized.
type recognized struct {
	relay.Source
	relay.Coupled
	meanwhile func()
}

func (s recognized) Acquire(ctx context.Context) (relay.Session, error) {
	session, err := s.Source.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	s.Coupled = session.(relay.Coupled)
	return s, nil
}

func (s recognized) Recognize(ctx context.Context, names []string) error {
	defer s.meanwhile()
	return s.Coupled.Recognize(ctx, names)
}

// A relay whose session ends before it has taken up the transactional ids believes for an hour that it has the lease.
func TestARelayThatWasOvertakenAtOnceFencesItsSuccessorOnceAtMost(t *testing.T) {
	t.Parallel()
	d := inDatabase(t, 30)
	late := d.open(0)
	var successor *exactRelay
	var again []relay.Delivery
	session, err := late.Source(recognized{Source: d.source(), meanwhile: func() {
		next := d.standBy()
		d.endSession()
		successor = next()
		again = successor.read(30)
		successor.deliver(again[:10])
	}}).Acquire(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close(context.Background()) })
	successor.deliver(again[10:20]) // the late one may have fenced it
	for i := 20; i < 30; i++ {
		unavailable(t, late.Publish(patient(t), messagesOf(again[:1])), 1)
		if errs := successor.Publish(patient(t), messagesOf(again[i:i+1])); errs != nil {
			t.Fatalf("the successor was fenced by a relay that knows of its loss: %v", errs)
		}
	}
	successor.settle(relay.Settlement{Through: &again[29], Delivered: 30})
	d.once(30)
}
