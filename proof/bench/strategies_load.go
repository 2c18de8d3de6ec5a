package main

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/pgoutbox/outbox/internal/check"
)

// fillTable writes the backlog from several writers at once, each with its own keys.
func (s *strategyRun) fillTable(ctx context.Context, conn *pgx.Conn, messages int) (*loaded, error) {
	l := &loaded{backlog: backlog{messages, s.Bytes, s.Keys, false}, last: make([]uint64, s.Keys), release: func() {}}
	writers := min(backlogWriters, s.Keys)
	group, loading := errgroup.WithContext(ctx)
	for w := range writers {
		group.Go(func() error { return s.fillPart(loading, l, w, writers) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if s.layout.after != "" {
		if _, err := conn.Exec(ctx, s.layout.after); err != nil {
			return nil, err
		}
	}
	for _, sql := range []string{"VACUUM ANALYZE " + s.layout.table.Sanitize(), "SELECT count(payload) FROM " + s.layout.table.Sanitize()} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		s.common.say("no checkpoint before the measurement: %v", err) // it takes a right that not every role has
	}
	return l, nil
}

func (s *strategyRun) fillPart(ctx context.Context, l *loaded, w, writers int) error {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
		return err
	}
	mine := (l.keys - w + writers - 1) / writers
	block := s.work.block()
	for begin := w * block; begin < l.messages; begin += writers * block {
		at := begin
		for _, n := range s.work.rows {
			n = max(min(n, l.messages-at), 0)
			rows := pgx.CopyFromSlice(n, func(i int) ([]any, error) {
				key := scatter(at+i)%mine*writers + w
				l.last[key]++
				return s.layout.row(s.numbered(at+i, key, l.last[key])), nil
			})
			err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := tx.CopyFrom(ctx, s.layout.table, s.layout.columns, rows)
				return err
			})
			if err != nil {
				return err
			}
			at += n
		}
	}
	return nil
}

// live measures latency under a steady load, and then the longest gap between arrivals while a transaction
// is open in another database of the server.
func (s *strategyRun) live(ctx context.Context, l *loaded, r *Result) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before, err := s.to.count(ctx)
	if err != nil {
		return err
	}
	seen := make(map[check.ID]time.Time)
	var mu sync.Mutex
	var arrivals []time.Time
	var following sync.WaitGroup
	var followed error
	following.Go(func() {
		followed = s.to.consume(ctx, func(payload []byte) bool {
			now := time.Now()
			mu.Lock()
			defer mu.Unlock()
			if id, err := check.Decode(payload); err == nil && id.Seq > 0 {
				if _, again := seen[id]; !again {
					seen[id] = now
					arrivals = append(arrivals, now)
				}
			}
			return true
		})
	})
	defer following.Wait()
	defer cancel()
	// What was drained comes first.
	for since := time.Now(); time.Since(since) < 10*time.Second; {
		mu.Lock()
		n := len(seen)
		mu.Unlock()
		if n >= min(before, int(total(l.last))) {
			break
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}

	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	committed := make(map[check.ID]time.Time)
	if err := s.write(ctx, conn, l, s.For, committed); err != nil {
		return err
	}
	measured := make(map[check.ID]time.Time, len(committed))
	for id, at := range committed {
		measured[id] = at
	}
	from := time.Now()
	release, err := s.openElsewhere(ctx)
	if err != nil {
		return err
	}
	err = s.write(ctx, conn, l, s.Held, committed)
	release()
	if err != nil {
		return err
	}
	arrived := func() int {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for id := range committed {
			if _, has := seen[id]; has {
				n++
			}
		}
		return n
	}
	for last, since := 0, time.Now(); ; {
		n := arrived()
		if n > last {
			last, since = n, time.Now()
		}
		if n == len(committed) || time.Since(since) > 4*quiet {
			break
		}
		if err := s.team.ended(); err != nil {
			return err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	cancel()
	following.Wait()
	if followed != nil && ctx.Err() == nil {
		return followed
	}
	h := newHistogram()
	for id, at := range measured {
		if came, has := seen[id]; has {
			record(h, came.Sub(at))
		}
	}
	r.P50, r.P95, r.P99, r.Max = quantiles(h)
	r.StallMS = longestGap(arrivals, from)
	return nil
}

func total(last []uint64) (n uint64) {
	for _, l := range last {
		n += l
	}
	return n
}

// longestGap is the longest time without an arrival since from.
func longestGap(arrivals []time.Time, from time.Time) float64 {
	longest, last := time.Duration(0), from
	for _, at := range arrivals {
		if at.Before(from) {
			continue
		}
		longest, last = max(longest, at.Sub(last)), at
	}
	return milliseconds(longest)
}

// write commits messages at a steady rate and notes when COMMIT returned.
func (s *strategyRun) write(ctx context.Context, conn *pgx.Conn, l *loaded, during time.Duration, committed map[check.ID]time.Time) error {
	began := time.Now()
	for i := 0; ; i++ {
		due := began.Add(time.Duration(i) * time.Second / time.Duration(s.Rate))
		if due.Sub(began) >= during {
			return nil
		}
		if err := pause(ctx, time.Until(due)); err != nil {
			return err
		}
		key := scatter(i) % s.Keys
		l.last[key]++
		m := s.numbered(i, key, l.last[key])
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if s.layout.live != "" {
				if _, err := tx.Exec(ctx, s.layout.live); err != nil {
					return err
				}
			}
			_, err := tx.CopyFrom(ctx, s.layout.table, s.layout.columns, pgx.CopyFromRows([][]any{s.layout.row(m)}))
			return err
		})
		if err != nil {
			return err
		}
		committed[check.ID{Key: uint32(key), Seq: l.last[key]}] = time.Now()
	}
}

// openElsewhere opens a transaction with an id in another database.
func (s *strategyRun) openElsewhere(ctx context.Context) (release func(), err error) {
	conn, err := pgx.Connect(ctx, s.server)
	if err != nil {
		return nil, err
	}
	release = func() {
		farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUp)
		defer cancel()
		_ = conn.Close(farewell) // rolls back
	}
	for _, sql := range []string{"BEGIN", "SELECT pg_current_xact_id()"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			release()
			return nil, err
		}
	}
	return release, nil
}
