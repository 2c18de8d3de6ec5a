package replication

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/seed"
	"github.com/pgoutbox/outbox/relay"
)

// rounds is how often a test of a fault repeats it: few times in CI, as often as OUTBOX_REPLICATION_ROUNDS says
// otherwise.
func rounds(t *testing.T, usual int) int {
	t.Helper()
	given := os.Getenv("OUTBOX_REPLICATION_ROUNDS")
	if given == "" {
		return usual
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < 1 {
		t.Fatalf("OUTBOX_REPLICATION_ROUNDS is %q, it must be a number", given)
	}
	return n
}

// ledger knows what was committed and what was delivered.
type ledger struct {
	mu        sync.Mutex
	committed map[string]bool
	count     map[string]int
	last      map[string]int // by key
	faults    []string
}

func newLedger() *ledger {
	return &ledger{committed: map[string]bool{}, count: map[string]int{}, last: map[string]int{}}
}

func (l *ledger) commit(texts []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, text := range texts {
		l.committed[text] = true
	}
}

func (l *ledger) deliver(d *relay.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := string(d.Payload)
	l.count[text]++
	if l.count[text] > 1 {
		return
	}
	key, n, _ := strings.Cut(text, "/")
	at, _ := strconv.Atoi(n)
	if at <= l.last[key] {
		l.faults = append(l.faults, fmt.Sprintf("%s came after %d", text, l.last[key]))
	}
	l.last[key] = at
}

// missing is how many committed messages did not come.
func (l *ledger) missing() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := range l.committed {
		if l.count[text] == 0 {
			n++
		}
	}
	return n
}

func (l *ledger) repeated() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.count {
		n += c - 1
	}
	return n
}

// check fails unless everything that was committed came, nothing else did, and each key was in order.
func (l *ledger) check(t *testing.T) {
	t.Helper()
	if n := l.missing(); n > 0 {
		t.Errorf("%d of %d messages are lost", n, len(l.committed))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := range l.count {
		if !l.committed[text] {
			t.Errorf("%s came and was not committed", text)
		}
	}
	for i, fault := range l.faults {
		if i == 10 {
			t.Errorf("and %d more", len(l.faults)-i)
			break
		}
		t.Error(fault)
	}
}

// load writes until stopped: transactions that lock their keys first, some rolled back, some slow.
type load struct {
	db      database
	ledger  *ledger
	stopped chan struct{}
	running sync.WaitGroup
	mu      sync.Mutex
	next    map[string]int // by key, under the key's lock
}

func startLoad(db database, l *ledger, writers int) *load {
	w := &load{db: db, ledger: l, stopped: make(chan struct{}), next: map[string]int{}}
	w.more(writers)
	return w
}

func (w *load) more(writers int) {
	for range writers {
		random := seed.Rand(w.db.T)
		w.running.Go(func() { w.write(random) })
	}
}

func (w *load) stop() {
	close(w.stopped)
	w.running.Wait()
}

func (w *load) write(r *rand.Rand) {
	var conn *pgx.Conn
	defer func() { dial.HangUp(conn) }()
	for {
		select {
		case <-w.stopped:
			return
		default:
		}
		if conn == nil || conn.IsClosed() {
			var err error
			if conn, err = pgx.Connect(context.Background(), w.db.URL); err != nil {
				conn = nil
				time.Sleep(20 * time.Millisecond) // its server is being killed
				continue
			}
		}
		w.transaction(r, conn)
	}
}

// transaction takes one to three keys in order, and writes to each. The outcome of a commit that was cut off is looked
// up by nobody: such a message is in doubt, and its number is not used again.
func (w *load) transaction(r *rand.Rand, conn *pgx.Conn) {
	ctx := context.Background()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if r.IntN(3) == 0 {
		_, _ = tx.Exec(ctx, "SELECT pg_current_xact_id()") // before it waits for a key
	}
	first := r.IntN(20)
	var writer outbox.Writer
	var texts []string
	for i := range 1 + r.IntN(3) {
		key := "k" + strconv.Itoa(first+i)
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", key); err != nil {
			return
		}
		for range 1 + r.IntN(3) {
			w.mu.Lock()
			w.next[key]++
			text := key + "/" + strconv.Itoa(w.next[key])
			w.mu.Unlock()
			texts = append(texts, text)
			if _, err := writer.Write(ctx, tx, outbox.Message{Topic: "t", Key: key, Payload: []byte(text)}); err != nil {
				return
			}
		}
	}
	switch r.IntN(20) {
	case 0:
		return
	case 1:
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond) // others commit meanwhile
	}
	if tx.Commit(ctx) == nil {
		w.ledger.commit(texts)
	}
}

// consumer is a relay that publishes into a ledger: it acquires again whenever a session ends.
type consumer struct {
	t       *testing.T
	source  *Source
	ledger  *ledger
	cancel  context.CancelFunc
	running sync.WaitGroup
	log     *alarms
}

// alarms keeps what was logged at the level of errors.
type alarms struct {
	slog.Handler
	mu  sync.Mutex
	all []string
}

func (a *alarms) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		text := r.Message
		r.Attrs(func(attr slog.Attr) bool { text += " " + attr.String(); return true })
		a.mu.Lock()
		a.all = append(a.all, text)
		a.mu.Unlock()
	}
	return a.Handler.Handle(ctx, r)
}

func (a *alarms) WithAttrs([]slog.Attr) slog.Handler { return a }

func (a *alarms) contains(text string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.all {
		if strings.Contains(one, text) {
			return true
		}
	}
	return false
}

func consume(t *testing.T, db database, l *ledger, cfg Config) *consumer {
	t.Helper()
	log := &alarms{Handler: slog.NewTextHandler(testLog{t}, nil)}
	cfg.Table.Logger = slog.New(log)
	if cfg.Table.Lease == 0 {
		cfg.Table.Lease = await.Expiry(time.Second) // one that is lost repeats messages
	}
	source, _ := db.source("d", cfg)
	source.table.SetOwner("consumer")
	c := &consumer{t: t, source: source, ledger: l, log: log}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.running.Go(func() {
		for ctx.Err() == nil {
			if err := c.session(ctx); err != nil && ctx.Err() == nil {
				_ = dial.Pause(ctx, 20*time.Millisecond)
				if outbox.IsPermanent(err) {
					t.Errorf("the relay gives up: %v", err)
					return
				}
			}
		}
	})
	return c
}

func (c *consumer) stop() {
	c.cancel()
	c.running.Wait()
}

func (c *consumer) session(ctx context.Context) error {
	s, err := c.source.Acquire(ctx)
	if err != nil {
		return err
	}
	settle := make(chan []relay.Delivery, 4)
	var settling sync.WaitGroup
	settling.Go(func() {
		failed := false
		for ds := range settle {
			n := len(ds) - 1
			if failed {
				continue
			}
			// In two steps, so that one may lie inside a transaction.
			for _, at := range []int{n / 2, n} {
				if err := s.Settle(context.Background(), relay.Settlement{Through: &ds[at], Delivered: 1}); err != nil {
					failed = true
				}
			}
		}
	})
	for err == nil {
		var b relay.Batch
		if b, err = s.Next(ctx, 100); err == nil && len(b.Deliveries) > 0 {
			for i := range b.Deliveries {
				c.ledger.deliver(&b.Deliveries[i])
			}
			settle <- b.Deliveries
		}
	}
	close(settle)
	settling.Wait()
	closing, cancel := context.WithTimeout(context.Background(), await.Expiry(5*time.Second))
	defer cancel()
	_ = s.Close(closing) // it may be broken
	return err
}

// try is eventually's for a database that may be away: false then.
func (db database) try(sql string, args ...any) bool {
	ctx, cancel := context.WithTimeout(context.Background(), await.Expiry(5*time.Second))
	defer cancel()
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		return false
	}
	defer dial.HangUp(conn)
	var yes bool
	return conn.QueryRow(ctx, sql, args...).Scan(&yes) == nil && yes
}

func (db database) streams() bool {
	return db.try("SELECT EXISTS (SELECT FROM outbox.slots p JOIN pg_replication_slots s ON s.slot_name = p.slot WHERE " +
		"p.position IS NOT NULL AND s.active)")
}
