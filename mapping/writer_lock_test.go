package mapping

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
)

// openAll returns n connections to a fresh database.
func openAll(t *testing.T, n int) []*pgx.Conn {
	t.Helper()
	url := servers.TestDatabase(t)
	conns := make([]*pgx.Conn, n)
	for i := range conns {
		conn, err := pgx.Connect(t.Context(), url)
		must(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		conns[i] = conn
	}
	return conns
}

func TestTheNumbersOfAKeyAreDrawnWithoutGapsByWritersThatRace(t *testing.T) {
	t.Parallel()
	const writers, each = 6, 40
	conns := openAll(t, writers)
	if _, err := conns[0].Exec(t.Context(), "CREATE TABLE numbered (k text, n int, UNIQUE (k, n))"); err != nil {
		t.Fatal(err)
	}
	sequence := KeySequence{Table: "numbered", Key: "k", Sequence: "n"}
	var wg sync.WaitGroup
	for w, conn := range conns {
		wg.Go(func() {
			for i := range each {
				err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
					key := fmt.Sprint("key ", i) // new for everybody at about the same time
					n, err := sequence.Next(t.Context(), tx, key)
					if err == nil {
						_, err = tx.Exec(t.Context(), "INSERT INTO numbered VALUES ($1, $2)", key, n)
					}
					return err
				})
				if err != nil {
					t.Errorf("writer %d: %v", w, err)
					return
				}
			}
		})
	}
	wg.Wait()
	var gaps int
	err := conns[0].QueryRow(t.Context(),
		"SELECT count(*) FROM (SELECT k FROM numbered GROUP BY k HAVING max(n) <> count(*) OR count(*) <> $1) x", writers).Scan(&gaps)
	if err != nil || gaps != 0 {
		t.Errorf("%d keys have gaps or too few rows, %v", gaps, err)
	}
}

func TestANumberIsNotDrawnFromAnOldSnapshot(t *testing.T) {
	t.Parallel()
	conn := openAll(t, 1)[0]
	if _, err := conn.Exec(t.Context(), "CREATE TABLE numbered (k text, n int)"); err != nil {
		t.Fatal(err)
	}
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	must(t, err)
	if _, err := (KeySequence{Table: "numbered", Key: "k", Sequence: "n"}).Next(t.Context(), tx, "a"); !errors.Is(err, ErrIsolation) {
		t.Errorf("got %v, want ErrIsolation", err)
	}
}

func TestTheWritersLockKeepsOthersOutAndTellsWhy(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]WriterLock{"advisory": {Key: 4711}, "table": {Table: "taken"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conns := openAll(t, 2)
			if _, err := conns[0].Exec(t.Context(),
				"CREATE TABLE taken (id int); CREATE TABLE rows (id int PRIMARY KEY); INSERT INTO rows VALUES (1)"); err != nil {
				t.Fatal(err)
			}
			begin := func(conn *pgx.Conn) pgx.Tx {
				tx, err := conn.Begin(t.Context())
				must(t, err)
				return tx
			}
			holder, waiter := begin(conns[0]), begin(conns[1])
			must(t, lock.Take(t.Context(), holder))
			if _, err := waiter.Exec(t.Context(), "SET LOCAL lock_timeout = '50ms'"); err != nil {
				t.Fatal(err)
			}
			if err := lock.Take(t.Context(), waiter); !errors.Is(err, ErrWritersTimeout) {
				t.Fatalf("the second writer got %v, want ErrWritersTimeout", err)
			}
			_ = waiter.Rollback(t.Context())

			// The waiter has a row that the holder wants, and wants the lock.
			waiter = begin(conns[1])
			if _, err := waiter.Exec(t.Context(), "UPDATE rows SET id = id"); err != nil {
				t.Fatal(err)
			}
			taken := make(chan error, 1)
			go func() { taken <- lock.Take(t.Context(), waiter) }()
			_, updateErr := holder.Exec(t.Context(), "UPDATE rows SET id = id")
			if updateErr == nil {
				// The server has chosen the waiter to give way.
				if err := <-taken; !errors.Is(err, ErrWritersDeadlock) {
					t.Errorf("the second writer got %v, want ErrWritersDeadlock", err)
				}
				return
			}
			if err := explainLock(updateErr); !errors.Is(err, ErrWritersDeadlock) {
				t.Errorf("the first writer got %v", updateErr)
			}
			_ = holder.Rollback(t.Context())
			if err := <-taken; err != nil {
				t.Errorf("the second writer got %v after the first gave way", err)
			}
		})
	}
}
