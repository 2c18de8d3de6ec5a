package rig

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox/internal/check"
)

// LoadConfig describes a workload. Every field is required unless a default is stated.
type LoadConfig struct {
	// URL is how writers reach the database; Direct, how everything else does. Default of Direct: URL.
	URL, Direct string

	Topic string
	Keys  int
	// Writers is how many transactions run at once, Pause what each writer waits after one.
	Writers int
	Pause   time.Duration
	Seed    uint64
	// Size of a payload in bytes. Default 200.
	Size int
	// Big is the size of a message that no broker takes; one of BigOneIn is such a one. Default: none.
	Big, BigOneIn int
	// Dies is one of how many transactions whose connection is cut in the middle. Default: none.
	Dies int
	// Messages is how many are committed before the writers end by themselves, or a few more. Default: no end.
	Messages int
	// Rate is how many messages are written a second, by all writers together. Default: as many as they can.
	Rate int
	// Table is what is written to. Default: the default one.
	Table *Table
}

// Load is a workload: transactions over several accounts that lock a row, change it and write its event,
// for all of which it knows afterwards whether they were committed. A message is named by its account and
// a number that is given out while the row is locked, and never twice. Beside each message stands a row in
// the table ledger, so that the database itself can say what it has.
type Load struct {
	cfg    LoadConfig
	pool   atomic.Pointer[pgxpool.Pool] // of the writers
	direct atomic.Pointer[pgxpool.Pool]
	pause  sync.RWMutex // held for reading by a transaction

	accounts []account
	written  atomic.Int64 // messages known to be committed
	failed   atomic.Pointer[error]

	stop    context.CancelFunc
	writers sync.WaitGroup
}

type account struct {
	mu       sync.Mutex
	attempts []attempt // that of number n stands at n-1
}

// attempt is what its writer knows of a message.
type attempt struct {
	outcome outcome
	at      time.Time // when the outcome was known
	big     bool
}

type outcome uint8

const (
	open outcome = iota
	committed
	rolledBack
	unknown
)

// NewLoad makes the outbox in an empty database, and the workload's own tables.
func NewLoad(ctx context.Context, cfg LoadConfig) (*Load, error) {
	if cfg.Direct == "" {
		cfg.Direct = cfg.URL
	}
	conn, err := pgx.Connect(ctx, cfg.Direct)
	if err != nil {
		return nil, fmt.Errorf("prepare the workload: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if cfg.Table == nil {
		cfg.Table = DefaultTable()
	}
	if err := cfg.Table.Create(ctx, conn); err != nil {
		return nil, fmt.Errorf("prepare the workload: %w", err)
	}
	_, err = conn.Exec(ctx, `CREATE TABLE accounts (key int PRIMARY KEY, n bigint NOT NULL DEFAULT 0);
		CREATE TABLE ledger (key int NOT NULL, seq bigint NOT NULL, PRIMARY KEY (key, seq));
		INSERT INTO accounts (key) SELECT generate_series(0, $1 - 1)`, pgx.QueryExecModeSimpleProtocol, cfg.Keys)
	if err != nil {
		return nil, fmt.Errorf("prepare the workload: %w", err)
	}
	if cfg.Size == 0 {
		cfg.Size = 200
	}
	l := &Load{cfg: cfg, accounts: make([]account, cfg.Keys)}
	return l, l.Connect(ctx, cfg.URL, cfg.Direct)
}

// Connect sends transactions from now on to another server. Those that are under way are waited for.
func (l *Load) Connect(ctx context.Context, url, direct string) error {
	for _, p := range []struct {
		url  string
		pool *atomic.Pointer[pgxpool.Pool]
	}{{url, &l.pool}, {direct, &l.direct}} {
		config, err := pgxpool.ParseConfig(p.url)
		if err != nil {
			return err
		}
		config.MaxConns = int32(l.cfg.Writers) + 4
		config.ConnConfig.ConnectTimeout = 2 * time.Second
		// The server is replaced under their feet: a plan that the next one doesn't know is an error.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return err
		}
		if old := p.pool.Swap(pool); old != nil {
			old.Close()
		}
	}
	return nil
}

// Pool returns direct connections to the server that is written to.
func (l *Load) Pool() *pgxpool.Pool { return l.direct.Load() }

// Close ends the writers and their connections.
func (l *Load) Close() {
	l.Stop()
	l.pool.Load().Close()
	l.direct.Load().Close()
}

// Start lets the writers begin.
func (l *Load) Start() {
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	began := time.Now()
	for i := range l.cfg.Writers {
		l.writers.Go(func() {
			rng := rand.New(rand.NewPCG(l.cfg.Seed, uint64(i)))
			for ctx.Err() == nil && (l.cfg.Messages == 0 || l.written.Load() < int64(l.cfg.Messages)) {
				if l.cfg.Rate > 0 {
					ahead := time.Duration(l.written.Load())*time.Second/time.Duration(l.cfg.Rate) - time.Since(began)
					if Pause(ctx, ahead) != nil {
						break
					}
				}
				l.pause.RLock()
				// Not ctx: a transaction ends by itself, so that its outcome is known.
				err := l.transaction(context.Background(), rng, 0)
				l.pause.RUnlock()
				pause := l.cfg.Pause
				if err != nil {
					l.failed.Store(&err)
					pause += 20 * time.Millisecond // the server is away
				}
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
}

// Wait returns when the writers have written all that they are to write, or an error if nothing is written for so long.
func (l *Load) Wait(patience time.Duration) error {
	done := make(chan struct{})
	go func() { l.writers.Wait(); close(done) }()
	for {
		before := l.written.Load()
		select {
		case <-done:
			return nil
		case <-time.After(patience):
		}
		if l.written.Load() == before {
			err := errors.New("the writers are stuck")
			if failed := l.failed.Load(); failed != nil {
				err = *failed
			}
			return fmt.Errorf("nothing was written for %v: %w", patience, err)
		}
	}
}

// Stop waits for the writers' last transactions.
func (l *Load) Stop() {
	if l.stop != nil {
		l.stop()
	}
	l.writers.Wait()
}

// Hold keeps transactions from beginning until release is called.
func (l *Load) Hold() (release func()) {
	l.pause.Lock()
	return l.pause.Unlock
}

// Late runs one transaction that draws its xid first and sleeps before it writes.
func (l *Load) Late(ctx context.Context, rng *rand.Rand, sleep time.Duration) error {
	l.pause.RLock()
	defer l.pause.RUnlock()
	return l.transaction(ctx, rng, sleep)
}

type id struct {
	key int
	seq uint64
}

// transaction changes a few rows and writes their events, and commits nine times of ten.
func (l *Load) transaction(ctx context.Context, rng *rand.Rand, late time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second+late)
	defer cancel()
	tx, err := l.pool.Load().Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // after a commit it does nothing
	if late > 0 || rng.IntN(2) == 0 {
		// Take the xid before any row is waited for.
		if _, err := tx.Exec(ctx, "SELECT pg_current_xact_id()"); err != nil {
			return err
		}
	}
	if late > 0 {
		time.Sleep(late)
	}
	count := 1 + rng.IntN(3)
	dies := l.cfg.Dies > 0 && rng.IntN(l.cfg.Dies) == 0
	var mine []id
	var messages []Message
	last := -1
	for range count {
		key := last + 1 + rng.IntN(max(1, l.cfg.Keys/3)) // ascending: no deadlocks
		if key >= l.cfg.Keys {
			break
		}
		last = key
		m, err := l.change(ctx, tx, key, rng)
		if m.Seq > 0 {
			mine = append(mine, id{key, m.Seq})
			messages = append(messages, m)
		}
		if err != nil {
			l.decide(mine, rolledBack)
			return err
		}
	}
	// The row comes last: a writer that has its turn then waits for no other row.
	for _, m := range messages {
		if err := l.cfg.Table.Write(ctx, tx, m); err != nil {
			l.decide(mine, rolledBack)
			return err
		}
	}
	switch {
	case dies:
		// The process dies: its connection ends without a word.
		_ = tx.Conn().PgConn().Conn().Close()
		l.decide(mine, rolledBack)
		return nil
	case rng.IntN(10) == 0:
		l.decide(mine, rolledBack)
		return tx.Rollback(ctx)
	}
	if err := tx.Commit(ctx); err != nil {
		l.decide(mine, unknown)
		return err
	}
	l.decide(mine, committed)
	return nil
}

// change locks a row, and numbers and notes its message.
func (l *Load) change(ctx context.Context, tx pgx.Tx, key int, rng *rand.Rand) (Message, error) {
	if _, err := tx.Exec(ctx, "UPDATE accounts SET n = n + 1 WHERE key = $1", key); err != nil {
		return Message{}, err
	}
	size, big := l.cfg.Size, l.cfg.BigOneIn > 0 && rng.IntN(l.cfg.BigOneIn) == 0
	if big {
		size = l.cfg.Big
	}
	seq := l.accounts[key].next(big)
	m := Message{Topic: l.cfg.Topic, Key: key, Seq: seq, Payload: check.Encode(nil, uint32(key), seq, size)}
	_, err := tx.Exec(ctx, "INSERT INTO ledger VALUES ($1, $2)", key, int64(seq))
	return m, err
}

func (a *account) next(big bool) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.attempts = append(a.attempts, attempt{big: big})
	return uint64(len(a.attempts))
}

func (l *Load) decide(mine []id, o outcome) {
	now := time.Now()
	if o == committed {
		l.written.Add(int64(len(mine)))
	}
	for _, m := range mine {
		a := &l.accounts[m.key]
		a.mu.Lock()
		a.attempts[m.seq-1].outcome, a.attempts[m.seq-1].at = o, now
		a.mu.Unlock()
	}
}

// Committed is how many messages the writers know to be committed.
func (l *Load) Committed() int { return int(l.written.Load()) }
