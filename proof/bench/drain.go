package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/proof/rig"
)

// drain lets the contender deliver a backlog, as a process or several, and checks what arrived. In a comparison, it has
// a database of its own, and latency is measured afterwards.
func (r *run) drain(ctx context.Context) (drained Result, failed error) {
	compared := r.Bench == "strategies"
	messages := r.Messages
	if r.slow > 0 {
		messages = min(messages, r.slow)
	}
	result := r.result(r.drainSettings())
	result.Messages = messages
	load, err := r.backlog(ctx, messages, compared)
	if err != nil {
		return result, err
	}
	conn, hangUp, err := r.connect(ctx)
	if err != nil {
		return result, err
	}
	defer hangUp()
	if !compared { // so that everything is new
		if _, err := conn.Exec(ctx, "DELETE FROM outbox.cursors; DELETE FROM outbox.slots"); err != nil {
			return result, err
		}
	}
	if r.log {
		if err := r.standBefore(ctx, conn, r.name); err != nil {
			return result, err
		}
	}
	if err := r.to.fresh(ctx); err != nil {
		return result, err
	}
	before, err := look(ctx, conn)
	if err != nil {
		return result, err
	}
	launched := time.Now()
	r.team, err = r.launch()
	defer func() { r.team.stop() }()
	if err != nil {
		return result, err
	}
	if r.listens != "" {
		viewers := view(ctx, r.listens, r.Viewers)
		defer func() { failed = errors.Join(failed, viewers.stop()) }()
	}
	began, err := r.begun(ctx, conn, compared)
	if err != nil {
		return result, err
	}
	arrivals, err := r.arrive(ctx, conn, began, messages)
	if err != nil {
		return result, err
	}
	after, err := look(ctx, conn)
	if err != nil {
		return result, err
	}
	result.Seconds, result.Rate = arrivals.end.Seconds(), float64(messages)/arrivals.end.Seconds()
	result.RelayCPU, result.DatabaseCPU = r.team.cpu(), after.cpu-before.cpu
	starting := began.Sub(launched)
	result.StartMS, result.WholeRate = milliseconds(starting), float64(messages)/(arrivals.end+starting).Seconds()
	if compared {
		result.WALMB = float64(after.wal-before.wal) / (1 << 20)
		if err := r.vacuum(ctx, &result); err != nil {
			return result, err
		}
		// One that can't keep up with the load would show how long the queue is.
		if r.For > 0 && r.workers == 1 && r.name != Floor && result.Rate > 2*float64(r.Rates[0]) {
			if err := r.live(ctx, load, &result); err != nil {
				return result, fmt.Errorf("under load: %w", err)
			}
		}
	} else {
		result.P50, result.P95, result.P99 = arrivals.reached(0.5), arrivals.reached(0.95), arrivals.reached(0.99)
		result.Max = milliseconds(arrivals.end)
	}
	result.RSSMB = r.team.peakRSS()
	r.team.stop()
	if err := readBack(ctx, r.to, load, &result); err != nil {
		return result, fmt.Errorf("read back what arrived: %w", err)
	}
	return result, nil
}

// drainSettings are those that aren't in other fields.
func (r *run) drainSettings() map[string]any {
	s := map[string]any{"rows_per_transaction": r.work.transactions()}
	if r.Bench == "strategies" {
		s["originals_batch"], s["latency_rate"], s["topics"] = r.Batch, r.Rates[0], r.work.topics
		return s
	}
	if r.proxy != nil {
		s["rtt"] = r.RTT
	}
	if r.Headers > 0 {
		s["headers"] = r.Headers
	}
	if r.Viewers > 0 {
		s["viewers"] = r.Viewers
	}
	if r.Held {
		s["held"] = "on"
	}
	if (r.name == Relay || r.name == ExactlyOnce) && r.Batch > 0 {
		s["batch"] = r.Batch
	}
	return s
}

// begun waits until the contender works; in a comparison, one process of it.
func (r *run) begun(ctx context.Context, conn *pgx.Conn, one bool) (time.Time, error) {
	if r.name != Debezium {
		return r.team.begun(ctx, one, nil)
	}
	return r.team.begun(ctx, one, func() (streams bool, err error) {
		err = conn.QueryRow(ctx, "SELECT active FROM pg_replication_slots WHERE slot_name = $1", r.slot(Debezium)).Scan(&streams)
		return streams, err
	})
}

// progress is how many messages had arrived at some time.
type progress struct {
	after time.Duration
	n     int
}

// arrivals is the course of a drain.
type arrivals struct {
	course []progress
	total  int
	end    time.Duration // when the last message came
}

// reached is when that share of the messages had arrived, in milliseconds since the beginning: the age that a
// message reaches which was due at the beginning.
func (a *arrivals) reached(share float64) float64 {
	want := share * float64(a.total)
	before := progress{}
	for _, p := range a.course {
		if float64(p.n) >= want {
			part := (want - float64(before.n)) / float64(p.n-before.n)
			return milliseconds(before.after) + part*milliseconds(p.after-before.after)
		}
		before = p
	}
	return milliseconds(a.end)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

const (
	stalled = time.Minute            // how long a drain may make no progress
	settled = 200 * time.Millisecond // how long nothing comes before a table is asked whether anything is left
)

// arrive waits until everything has been delivered.
func (r *run) arrive(ctx context.Context, conn *pgx.Conn, began time.Time, messages int) (*arrivals, error) {
	a := &arrivals{total: messages}
	last, since := 0, time.Now()
	for {
		n, err := r.delivered(ctx, conn)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		if n > last {
			last, since, a.end = n, now, now.Sub(began)
			a.course = append(a.course, progress{a.end, n})
		}
		if r.layout.left == "" && n >= messages {
			return a, nil
		}
		wait := 5 * time.Millisecond
		if r.layout.left != "" && now.Sub(since) > settled {
			var left bool
			if err := conn.QueryRow(ctx, r.layout.left).Scan(&left); err != nil {
				return nil, err
			}
			if !left {
				return a, nil
			}
			wait = settled
		}
		if err := r.team.ended(); err != nil {
			return nil, fmt.Errorf("after %d messages: %w", n, err)
		}
		if now.Sub(since) > stalled {
			return nil, r.team[0].failure(fmt.Errorf("nothing has come for %v after %d of %d messages", stalled, n, messages))
		}
		if err := rig.Pause(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// delivered is how much has arrived. Records that end transactions count among a topic's offsets: then the relay's
// cursor is asked, which knows it a moment later.
func (r *run) delivered(ctx context.Context, conn *pgx.Conn) (n int, err error) {
	if r.transactions == "" {
		return r.to.count(ctx)
	}
	err = conn.QueryRow(ctx, "SELECT coalesce(sum(delivered), 0) FROM outbox.cursors").Scan(&n)
	return n, err
}

// readable is a [target] that is read to its end.
type readable interface {
	readAll(ctx context.Context, visit func(payload []byte)) error
}

// readBack checks all that arrived against what was committed. The contenders have ended: nothing comes any more.
func readBack(ctx context.Context, to readable, load *loaded, r *Result) error {
	checker := check.New(check.Config{})
	for key, last := range load.last {
		for seq := uint64(1); seq <= last; seq++ {
			checker.Committed(uint32(key), seq)
		}
	}
	at := checker.Destination("default")
	if err := to.readAll(ctx, func(payload []byte) { _, _ = at.Payload(payload) }); err != nil { // what doesn't decode is counted
		return err
	}
	r.checked(checker.Report())
	return nil
}

// sight is what the database has spent until now.
type sight struct {
	cpu float64
	wal int64
}

func look(ctx context.Context, conn *pgx.Conn) (at sight, err error) {
	at.cpu = rig.DatabaseCPU(conn.PgConn().PID())
	return at, conn.QueryRow(ctx, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint").Scan(&at.wal)
}

// vacuum measures what it takes to clean up behind the contender, and how many dead rows there were.
// Statistics would not say: a backend that goes on tells them late.
func (r *run) vacuum(ctx context.Context, result *Result) error {
	cfg, err := pgx.ParseConfig(r.url)
	if err != nil {
		return err
	}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		for _, kind := range []*regexp.Regexp{removedRows, removedItems} { // pruning may have left items of rows
			if m := kind.FindStringSubmatch(n.Message); m != nil {
				rows, _ := strconv.ParseInt(m[1], 10, 64) // it is digits
				result.DeadRows = max(result.DeadRows, rows)
			}
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	began := time.Now()
	_, err = conn.Exec(ctx, "VACUUM (VERBOSE, PROCESS_TOAST false) "+r.layout.table.Sanitize())
	result.VacuumMS = milliseconds(time.Since(began))
	return err
}

// What VACUUM VERBOSE says about a table, from PostgreSQL 15 on.
var (
	removedRows  = regexp.MustCompile(`tuples: (\d+) removed`)
	removedItems = regexp.MustCompile(`had (\d+) dead item identifiers`)
)
