package polling

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/seed"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// The stress: writers do everything that PostgreSQL allows between taking an id and committing it, while
// readers with small and large pages follow, and crash.

const (
	stressKeys    = 2000
	stressHot     = 20 // keys that a third of the messages go to
	stressWriters = 16
)

// stressRows is how many rows are committed: enough to fail without the strategy's rules, and quick.
func stressRows(t *testing.T) int64 {
	text := os.Getenv("OUTBOX_STRESS_ROWS")
	if text == "" {
		return 60_000
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("OUTBOX_STRESS_ROWS: %v", err)
	}
	return n
}

// The stress keeps every core busy, so it runs before the tests that run side by side.
func TestNothingIsLostDoubledOrOvertakenUnderAdversarialWriters(t *testing.T) {
	// Where transactions can be prepared, sessions never rest.
	t.Run("with transactions of two phases", func(t *testing.T) {
		stress(t, newDatabase(t, servers.PostgresConfig{TwoPhase: true}), stressRows(t)/2, true)
	})
	t.Run("with sessions that rest", func(t *testing.T) {
		stress(t, newDatabase(t), stressRows(t)/2, false)
	})
}

func TestTheOldestAndTheNewestPostgreSQLPassTheStress(t *testing.T) {
	servers.Long(t)
	for _, major := range []string{"14", "18"} {
		t.Run("PostgreSQL "+major, func(t *testing.T) {
			stress(t, newDatabase(t, servers.PostgresConfig{Major: major, TwoPhase: true}), stressRows(t)/4, true)
		})
	}
}

func stress(t *testing.T, db database, rows int64, twoPhase bool) {
	ctx, cancel := context.WithCancel(await.Context(t))
	defer cancel()
	db.Exec(`CREATE TABLE aggregates (id integer PRIMARY KEY, n bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50)`)
	db.Exec(`INSERT INTO aggregates SELECT generate_series(0, $1::integer - 1)`, stressKeys)

	checker := check.New(check.Config{Destinations: []check.DestinationConfig{{Name: "crashing"}, {Name: "steady"}, {Name: "split"}}})
	w := &stressWriter{db: db, checker: checker, rows: rows, twoPhase: twoPhase}
	var readers, writers sync.WaitGroup
	repeats := make(map[string]*atomic.Int64)
	read := func(destination string, cfg SnapshotConfig, crash bool) {
		r := &stressReader{
			db: db, source: db.source(destination, cfg), to: checker.Destination(destination), crash: crash,
			rand: seed.Rand(db.T),
		}
		if destination == "crashing" {
			r.source.minPage = 1 // read by pages as small as the batches
		}
		if repeats[destination] == nil {
			repeats[destination] = &atomic.Int64{}
		}
		readers.Go(func() {
			if err := r.run(ctx); err != nil {
				t.Errorf("reader of %s: %v", destination, err)
				cancel()
			}
			repeats[destination].Add(r.repeats)
			t.Logf("%s: %d messages repeated by %d crashes", destination, r.repeats, r.crashes)
		})
	}
	read("crashing", SnapshotConfig{}, true)
	read("steady", SnapshotConfig{}, false)
	read("split", SnapshotConfig{Groups: 2, Group: 0}, true)
	read("split", SnapshotConfig{Groups: 2, Group: 1}, false)

	start := time.Now()
	for i := range stressWriters {
		writers.Go(func() {
			if err := w.run(ctx, i); err != nil && ctx.Err() == nil {
				t.Errorf("writer: %v", err)
				cancel()
			}
		})
	}
	writers.Wait()
	w.prepared.Wait()
	// What commits now comes last for everybody: when a reader has seen its part of this, it has seen all.
	db.Exec(`INSERT INTO outbox.messages (topic, key) SELECT 'end', g::text FROM generate_series(1, 100) g`)
	wrote := time.Since(start)
	readers.Wait()
	report := checker.Report()
	t.Logf("%v of writing: %d committed in %d transactions, %d rolled back; %d prepared, %d long; read %v after the end",
		wrote.Round(time.Millisecond), report.Committed, w.transactions.Load(), report.RolledBack, w.prepares.Load(), w.long.Load(),
		(time.Since(start) - wrote).Round(time.Millisecond))
	if !report.OK() {
		t.Error(report)
	}
	for _, name := range []string{"crashing", "steady", "split"} {
		if got, want := checker.Destination(name).Counts().Duplicated, uint64(repeats[name].Load()); got != want {
			t.Errorf("%s: %d messages came twice, %d were expected after crashes", name, got, want)
		}
	}
	if report.Committed < uint64(rows) {
		t.Errorf("%d rows committed, want %d", report.Committed, rows)
	}
}

type stressWriter struct {
	db       database
	checker  *check.Checker
	rows     int64
	written  atomic.Int64
	counters [stressKeys]atomic.Uint64

	twoPhase                     bool
	transactions, prepares, long atomic.Int64
	prepared                     sync.WaitGroup
}

func (w *stressWriter) run(ctx context.Context, number int) error {
	conn, err := pgx.ConnectConfig(ctx, w.db.Config())
	if err != nil {
		return err
	}
	defer dial.HangUp(conn)
	random := seed.Rand(w.db.T)
	for i := 0; w.written.Load() < w.rows; i++ {
		if err := w.transaction(ctx, conn, random, fmt.Sprintf("stress %d %d", number, i)); err != nil {
			return err
		}
	}
	return nil
}

type written struct {
	key uint32
	seq uint64
}

// transaction is one of everything that may happen, with the outcome told to the checker.
func (w *stressWriter) transaction(ctx context.Context, conn *pgx.Conn, random *rand.Rand, name string) (err error) {
	var kept, undone []written
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	chance := func(percent float64) bool { return random.Float64()*100 < percent }
	if chance(10) {
		// Early xid, late ids.
		if _, err := tx.Exec(ctx, "SELECT pg_current_xact_id()"); err != nil {
			return err
		}
		if chance(20) {
			time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond) // others commit meanwhile
		}
	}
	keys := w.keys(random)
	for _, key := range keys {
		savepoint := chance(15)
		if savepoint {
			if _, err := tx.Exec(ctx, "SAVEPOINT s"); err != nil {
				return err
			}
		}
		seq, err := w.insert(ctx, tx, key)
		if err != nil {
			return err
		}
		m := written{key, seq}
		switch {
		case savepoint && chance(40):
			if _, err := tx.Exec(ctx, "ROLLBACK TO SAVEPOINT s"); err != nil {
				return err
			}
			undone = append(undone, m)
		case savepoint:
			if _, err := tx.Exec(ctx, "RELEASE SAVEPOINT s"); err != nil {
				return err
			}
			kept = append(kept, m)
		default:
			kept = append(kept, m)
		}
	}
	if chance(0.1) {
		w.long.Add(1)
		time.Sleep(time.Duration(100+random.IntN(1500)) * time.Millisecond) // it is a long one
	}
	end := func(committed bool) {
		for _, m := range undone {
			w.checker.RolledBack(m.key, m.seq)
		}
		for _, m := range kept {
			if committed {
				w.checker.Committed(m.key, m.seq)
			} else {
				w.checker.RolledBack(m.key, m.seq)
			}
		}
		if committed {
			w.written.Add(int64(len(kept)))
		}
		w.transactions.Add(1)
	}
	switch {
	case chance(10):
		err = tx.Rollback(ctx)
		end(false)
	case w.twoPhase && chance(0.3):
		w.prepares.Add(1)
		if _, err := tx.Exec(ctx, "PREPARE TRANSACTION '"+name+"'"); err != nil {
			return err
		}
		// The session has no transaction any more, which pgx finds out by this.
		_ = tx.Rollback(ctx)
		w.prepared.Go(func() { end(w.finishPrepared(ctx, name)) })
	default:
		err = tx.Commit(ctx)
		if err == nil {
			end(true)
		}
	}
	return err
}

// keys are distinct and ascending, so that writers don't deadlock.
func (w *stressWriter) keys(random *rand.Rand) []uint32 {
	n := 1
	switch p := random.IntN(100); {
	case p < 2:
		n = 20 + random.IntN(60)
	case p < 30:
		n = 2 + random.IntN(4)
	}
	var keys []uint32
	for range n {
		if random.IntN(3) == 0 {
			keys = append(keys, uint32(random.IntN(stressHot)))
		} else {
			keys = append(keys, uint32(random.IntN(stressKeys)))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// insert takes the key's row and then writes the message that the lock numbers.
func (w *stressWriter) insert(ctx context.Context, tx pgx.Tx, key uint32) (seq uint64, err error) {
	if _, err = tx.Exec(ctx, "UPDATE aggregates SET n = n + 1 WHERE id = $1", key); err != nil {
		return 0, err
	}
	seq = w.counters[key].Add(1)
	_, err = tx.Exec(ctx, "INSERT INTO outbox.messages (topic, key, payload) VALUES ('stress', $1, $2)",
		strconv.Itoa(int(key)), check.Encode(nil, key, seq, 64))
	return seq, err
}

func (w *stressWriter) finishPrepared(ctx context.Context, name string) (committed bool) {
	time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond) // others commit meanwhile
	conn, err := pgx.ConnectConfig(ctx, w.db.Config())
	if err != nil {
		w.db.T.Errorf("finish a prepared transaction: %v", err)
		return false
	}
	defer dial.HangUp(conn)
	verb := "COMMIT"
	if rand.IntN(4) == 0 {
		verb = "ROLLBACK"
	}
	if _, err := conn.Exec(ctx, verb+" PREPARED '"+name+"'"); err != nil {
		w.db.T.Errorf("finish a prepared transaction: %v", err)
		return false
	}
	return verb == "COMMIT"
}

// stressReader is a relay that believes nothing: it checks that a session goes on where the last one was
// settled. All that was unsettled comes again, and nothing else does; in between may come what has committed
// meanwhile.
type stressReader struct {
	db     database
	source *Snapshot
	to     *check.Destination
	crash  bool
	rand   *rand.Rand

	crashes int
	repeats int64
	end     int64 // the last message of all
}

// lastEnd finds the last of the messages that were written after everything else.
func (r *stressReader) lastEnd() int64 {
	first, last := schema.Shards(r.source.cfg.Group, r.source.cfg.Groups)
	end, err := strconv.ParseInt(r.db.Value(`SELECT max(id) FROM outbox.messages WHERE topic = 'end' AND shard BETWEEN $1 AND $2`,
		first, last), 10, 64)
	if err != nil {
		r.db.T.Errorf("find the last message: %v", err)
	}
	return end
}

type place struct {
	ref uint64
	id  int64
}

// run reads until the last message.
func (r *stressReader) run(ctx context.Context) error {
	unsettled := map[place]bool{} // returned
	for {
		session, err := r.source.Acquire(ctx)
		if err != nil {
			return err
		}
		var done bool
		done, unsettled, err = r.session(ctx, session.(*snapshotSession), unsettled)
		if err == nil && done && len(unsettled) > 0 {
			err = fmt.Errorf("after a crash %d messages that were unsettled did not come again", len(unsettled))
		}
		if err != nil || done {
			return errors.Join(err, session.Close(context.WithoutCancel(ctx)))
		}
		crash(session.(*snapshotSession))
		r.crashes++
	}
}

// session reads and settles at random. again is what has to come again. It returns what has to in the next one.
func (r *stressReader) session(ctx context.Context, s *snapshotSession,
	again map[place]bool) (done bool, unsettled map[place]bool, err error) {
	var open []relay.Delivery
	limit := []int{1, 200, 1000, 5000}[r.rand.IntN(4)] // the largest batch asked for
	// Live to see more than what comes again, or nothing new would ever be read.
	life := len(again) + 50 + r.rand.IntN(limit*10)
	for n, ended := 0, false; !r.crash || n < life; {
		b, err := s.Next(ctx, 1+r.rand.IntN(limit))
		if err != nil {
			return false, nil, err
		}
		for i := range b.Deliveries {
			d := &b.Deliveries[i]
			at := place{d.Ref, d.Position}
			repeated := again[at]
			delete(again, at)
			if d.Topic == "end" {
				if r.end == 0 {
					r.end = r.lastEnd()
				}
				ended = d.Position == r.end
			} else {
				if repeated {
					r.repeats++
				}
				if _, err := r.to.Payload(d.Payload); err != nil {
					return false, nil, err
				}
			}
			open = append(open, relay.Delivery{Window: d.Window, Ref: d.Ref})
			open[len(open)-1].Position = d.Position
		}
		n += len(b.Deliveries)
		if ended {
			return true, again, r.settle(ctx, s, open)
		}
		if b.Recycle != nil {
			b.Recycle()
		}
		if r.rand.IntN(3) == 0 && len(open) > 0 {
			to := r.rand.IntN(len(open) + 1)
			if err := r.settle(ctx, s, open[:to]); err != nil {
				return false, nil, err
			}
			open = open[to:]
		}
		// A crowded cursor waits for a settlement.
		if len(open) > 2000 || s.crowded() {
			if err := r.settle(ctx, s, open); err != nil {
				return false, nil, err
			}
			open = nil
		}
	}
	// What was still to come again was never settled either.
	for i := range open {
		again[place{open[i].Ref, open[i].Position}] = true
	}
	return false, again, nil
}

func (r *stressReader) settle(ctx context.Context, s *snapshotSession, open []relay.Delivery) error {
	if len(open) == 0 {
		return nil
	}
	return s.Settle(ctx, relay.Settlement{Through: &open[len(open)-1], Delivered: len(open)})
}

func (s *snapshotSession) crowded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cursor.crowded()
}

// crash ends a session as SIGKILL would: nothing is settled or given back.
func crash(s *snapshotSession) {
	s.lease.StopKeeping()
	dial.HangUp(s.lease.Link.Conn)
	s.reader.hangUp()
	s.source.released()
}
