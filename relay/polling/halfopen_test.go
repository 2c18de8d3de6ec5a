package polling

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// signal is a log whose first line is waited for.
type signal chan struct{}

func (s signal) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (s signal) WithAttrs([]slog.Attr) slog.Handler               { return s }
func (s signal) WithGroup(string) slog.Handler                    { return s }
func (s signal) Handle(context.Context, slog.Record) error {
	select {
	case s <- struct{}{}:
	default:
	}
	return nil
}

func TestAStandbyWhoseConnectionDiedTakesOverAllTheSame(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	owner := testdb.Acquire(t, db.source("d", SnapshotConfig{Lease: time.Minute})) // so that it has it until it gives it back

	var bad testdb.Line
	standing := make(signal, 1)
	standby, err := NewSnapshot(bad.Through(t, db.Config()), "d", SnapshotConfig{Lease: 5 * time.Second, Logger: slog.New(standing)})
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		session relay.Session
		err     error
	}
	acquired := make(chan result, 1)
	go func() {
		for {
			session, err := standby.Acquire(t.Context())
			if err == nil || t.Context().Err() != nil {
				acquired <- result{session, err}
				return
			}
		}
	}()
	<-standing
	if bad.Die() == 0 {
		t.Fatal("the standby has no connection that could die")
	}
	if err := owner.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-acquired:
		if r.err != nil {
			t.Fatal(r.err)
		}
		if err := r.session.Close(t.Context()); err != nil {
			t.Error(err)
		}
	case <-await.Context(t).Done():
		t.Fatal("the lease is free, and nobody takes it")
	}
}

func TestARelayThatFreezesWhileItSettlesKeepsNobodyFromTakingOver(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	frozen := testdb.Acquire(t, db.source("d", SnapshotConfig{Lease: 5 * time.Second})).(*snapshotSession)
	link := frozen.lease.Link
	link.Lock() // nothing else is written, as by a process that is frozen
	defer link.Unlock()
	if _, err := link.Conn.Exec(t.Context(), "BEGIN; UPDATE outbox.cursors SET delivered = delivered",
		pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	// It may fail while it waits for the lock, and asks again then, as a relay does.
	other := db.source("d", SnapshotConfig{})
	ctx := await.Context(t)
	for {
		session, err := other.Acquire(ctx)
		if err == nil {
			if err := session.Close(t.Context()); err != nil {
				t.Error(err)
			}
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("the frozen relay's lease ran out long ago, and nobody could take it: %v", err)
		}
	}
}
