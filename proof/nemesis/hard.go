package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig"
)

// promote makes an asynchronous standby that lacks the latest commits the primary.
func promote(ctx context.Context, r *run) (undo, error) {
	primary := r.site.pg
	standby, err := primary.Standby(ctx, servers.StandbyConfig{})
	if err != nil {
		return nil, err
	}
	if err := detach(ctx, standby); err != nil {
		return nil, errors.Join(err, standby.Close())
	}
	if err := r.while(ctx, 100, 700); err != nil {
		return nil, errors.Join(err, standby.Close())
	}
	before, err := r.Load.Delivered(ctx)
	if err != nil {
		return nil, errors.Join(err, standby.Close())
	}
	if err := primary.Kill9(); err != nil {
		return nil, errors.Join(err, standby.Close())
	}
	// No program may reach the new primary before it is known what it has.
	release := r.Load.Hold()
	defer release()
	r.site.toPG.Refuse(true)
	r.site.fromPooler.Cut()
	if err := r.site.promote(ctx, standby); err != nil {
		return nil, errors.Join(err, standby.Close())
	}
	if err := r.Load.Connect(ctx, r.site.writerURL(r.database, r.pooled), r.site.pg.URL(r.database)); err != nil {
		return nil, err
	}
	after, err := r.Load.Delivered(ctx)
	if err != nil {
		return nil, err
	}
	// The new primary's cursor is behind; what it has forgotten is delivered again.
	r.extra += int(max(before-after, 0))
	r.Losses.Promoted = time.Now()
	r.note("promoted; the cursor went back by %d messages", before-after)
	r.site.toPG.Heal()
	return nil, nil
}

// exhaustLog makes PostgreSQL begin segments of its log until it can't.
func exhaustLog(ctx context.Context, pool *pgxpool.Pool) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	for err := error(nil); err == nil; {
		_, err = pool.Exec(ctx, "SELECT pg_logical_emit_message(false, 'nemesis', ''), pg_switch_wal()")
	}
}

// detach cuts a standby off from the primary, which continues.
func detach(ctx context.Context, standby *servers.Postgres) error {
	conn, err := pgx.Connect(ctx, standby.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, statement := range []string{"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("detach the standby: %w", err)
		}
	}
	return rig.Until(ctx, flowWithin, 5*time.Millisecond, "the standby receives nothing", func() (ends bool, err error) {
		err = conn.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)").Scan(&ends)
		return ends, err
	})
}

// holdTransaction leaves a transaction with an xid open until the run is over.
func holdTransaction(ctx context.Context, r *run) (undo, error) {
	conn, err := pgx.Connect(ctx, r.site.pg.URL(r.database))
	if err != nil {
		return nil, err
	}
	r.cleanup = append(r.cleanup, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // its server may have been killed
	})
	_, err = conn.Exec(ctx, "BEGIN; SELECT pg_current_xact_id()", pgx.QueryExecModeSimpleProtocol)
	return nil, err
}

// changeSchema does what operators and autovacuum do during operation.
func changeSchema(ctx context.Context, r *run) (undo, error) {
	conn, err := pgx.Connect(ctx, r.site.pg.URL(r.database))
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	table, part, id := r.system.Table, r.system.Table, "id"
	var statements []string
	if r.system.Default() {
		table, part, id = "outbox.messages", fmt.Sprintf("outbox.messages_%d", r.rng.IntN(8)), "message_id"
		statements = []string{
			// With segments of two seconds, segments are emptied while they are written to.
			"ALTER TABLE outbox.messages ALTER COLUMN segment SET DEFAULT (date_part('epoch', now())::bigint / 2 % 8)::smallint",
			"VACUUM FULL outbox.cursors",
		}
	}
	statements = append(statements,
		fmt.Sprintf("ALTER TABLE %s ADD COLUMN nemesis text", table),
		fmt.Sprintf("ALTER TABLE ONLY %s ALTER COLUMN nemesis SET DEFAULT 'x'", table),
		fmt.Sprintf("CREATE INDEX CONCURRENTLY nemesis ON %s (%s)", part, id),
		fmt.Sprintf("VACUUM (ANALYZE) %s", table),
		fmt.Sprintf("VACUUM FULL %s", part),
		fmt.Sprintf("REINDEX TABLE CONCURRENTLY %s", part),
		fmt.Sprintf("VACUUM (FREEZE) %s", table),
		"ALTER TABLE accounts ADD COLUMN nemesis int",
		fmt.Sprintf("ALTER TABLE %s DROP COLUMN nemesis", table))
	if _, err := conn.Exec(ctx, "SET lock_timeout = '300ms'; SET deadlock_timeout = '100ms'; SET statement_timeout = '5s'",
		pgx.QueryExecModeSimpleProtocol); err != nil {
		return nil, err
	}
	for _, i := range r.rng.Perm(len(statements)) {
		var refused *pgconn.PgError
		for attempt := 0; attempt < 3; attempt++ {
			_, err := conn.Exec(ctx, statements[i])
			if err == nil {
				r.note("done: %s", statements[i])
				break
			}
			if !errors.As(err, &refused) {
				return nil, err
			}
			// Another session has the lock, or something that the statement needs is missing: both are normal.
			r.note("%s: %v", statements[i], refused.Message)
			if err := rig.Pause(ctx, 50*time.Millisecond); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil
}

// deleteTopic deletes the topic with its content and creates it again. The lost messages are counted; the operator is
// responsible for them.
func deleteTopic(ctx context.Context, r *run) (undo, error) {
	if !r.Losses.Emptied.IsZero() {
		return nil, nil
	}
	before := make(map[check.ID]bool)
	destination := r.Checker.Destination("default")
	err := rig.ReadAll(ctx, r.Target, func(payload []byte) {
		if name, err := destination.Payload(rig.Unwrap(payload)); err == nil { // corrupted payloads are counted
			before[name] = true
		}
	})
	if err != nil {
		return nil, err
	}
	if err := r.Target.Delete(ctx); err != nil {
		return nil, err
	}
	if err := r.while(ctx, 0, 1500); err != nil {
		return nil, err
	}
	if err := r.Target.Create(ctx); err != nil {
		return nil, err
	}
	r.Losses.Before, r.Losses.Emptied = before, time.Now()
	return nil, nil
}

// detachSegment detaches a segment with its rows, and attaches it again. The relays wait for that; one that ended would
// be missing.
func detachSegment(ctx context.Context, r *run) (undo, error) {
	segment := r.rng.IntN(8)
	if _, err := r.Load.Pool().Exec(ctx,
		fmt.Sprintf("ALTER TABLE outbox.messages DETACH PARTITION outbox.messages_%d", segment)); err != nil {
		return nil, err
	}
	err := r.while(ctx, 100, 1500)
	_, attachErr := r.Load.Pool().Exec(ctx,
		fmt.Sprintf("ALTER TABLE outbox.messages ATTACH PARTITION outbox.messages_%[1]d FOR VALUES IN (%[1]d)", segment))
	return nil, errors.Join(err, attachErr)
}

// writeLongKey commits a message whose key our writers would refuse, and waits until the relay gives it up.
func writeLongKey(ctx context.Context, r *run) (undo, error) {
	key := make([]byte, 2880)
	for i := range key {
		key[i] = byte('!' + r.rng.IntN(94)) // nothing that could be compressed into an index
	}
	_, err := r.Load.Pool().Exec(ctx,
		"INSERT INTO outbox.messages (topic, key, payload, deliver_at) VALUES ($1, $2, $3, now() + interval '1 hour')",
		r.topic, string(key), []byte(rig.Poison))
	if err != nil {
		return nil, err
	}
	return nil, r.givesUp(ctx, "a message whose key is too long",
		"SELECT EXISTS (SELECT FROM outbox.dead_letters WHERE payload = $1 AND key = $2)", []byte(rig.Poison), string(key))
}

// forgeMessages writes to the log what a relay might take for a message. Any role can do that.
func forgeMessages(ctx context.Context, r *run) (undo, error) {
	for range 5 {
		_, err := r.Load.Pool().Exec(ctx, "SELECT pg_logical_emit_message(true, 'outbox', $1::bytea)", check.Encode(nil, 0, 1<<40, 200))
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}
