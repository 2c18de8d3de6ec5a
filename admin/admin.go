// Package admin is what the operator's verbs stand on: transactions, the audit, the cursors of destinations, and the
// pauses and rates that operators ask for. The verbs are in the packages of its folder: health tells the state of every
// destination with one verdict, find looks for messages and dead letters, jobs acknowledges, requeues, discards and
// replays them, destinations hands over, rebases, moves and drops destinations, and verify compares with what a
// consumer has applied. The command line, the API, the page and the metrics call them, so that they can't disagree.
//
// Every verb that changes something writes a row of outbox.audit in the transaction that changes it. A job changes its
// messages in several: the first writes the row, and the job notes how far it has come.
package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// DB begins transactions: a *pgx.Conn or a *pgxpool.Pool.
type DB interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// What a caller may want to tell apart. Functions of this package wrap these; use errors.Is.
var (
	// ErrNotFound means that nothing has the name or id that was asked for.
	ErrNotFound = errors.New("not found")
	// ErrTooMany means that a selection is larger than the given maximum. Nothing was changed.
	ErrTooMany = errors.New("more messages than allowed")
	// ErrInUse means that a live relay works on what was to be removed. Nothing was changed.
	ErrInUse = errors.New("in use")
)

// Action identifies who acts, and why. The audit keeps it.
type Action struct {
	// Actor is who acts, such as "anna@host". Required.
	Actor string
	// Reason is why, in the actor's words. It may be empty.
	Reason string
	// DryRun counts what would be changed and changes nothing. No audit is written.
	DryRun bool
}

// Read runs f in one snapshot, so that everything that it reads is of one moment.
func Read(ctx context.Context, db DB, f func(tx pgx.Tx) error) error {
	return InTx(ctx, db, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// Write runs f in a transaction. A dry run does the same and is rolled back.
func Write(ctx context.Context, db DB, action Action, f func(tx pgx.Tx) error) error {
	if action.Actor == "" {
		return errors.New("the action has no Actor: say who acts")
	}
	err := InTx(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		if err := f(tx); err != nil {
			return err
		}
		if action.DryRun {
			return errDryRun
		}
		return nil
	})
	if errors.Is(err, errDryRun) {
		return nil
	}
	return err
}

var errDryRun = errors.New("dry run")

// InTx runs f in a transaction with the given options.
func InTx(ctx context.Context, db DB, options pgx.TxOptions, f func(tx pgx.Tx) error) error {
	tx, err := db.BeginTx(ctx, options)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	// After a commit this does nothing; ctx may have ended by now, and the connection must still be usable.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	// What a policy hides is an error, and not nothing.
	if _, err := tx.Exec(ctx, "SET LOCAL row_security = off"); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := f(tx); err != nil {
		return explain(err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// explain adds the next step to errors of the server.
func explain(err error) error {
	switch sqlstate.Of(err) {
	case "42501":
		if hidden := schema.ExplainHidden(err); errors.Is(hidden, schema.ErrHidden) {
			return hidden
		}
		return fmt.Errorf("%w: as the schema's owner, run: "+
			"outbox migrate grants --apply --relay ROLE (or --viewer ROLE, for who only looks)", err)
	case "3F000", "42P01":
		return fmt.Errorf("%w: the outbox schema is missing here: run: outbox migrate up", err)
	case "25006":
		return fmt.Errorf("%w: the server is a hot standby: connect to the primary", err)
	}
	return err
}

// Record writes an action to the audit. detail becomes a JSON object.
func Record(ctx context.Context, tx pgx.Tx, action Action, verb, destination string, detail map[string]any) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO outbox.audit (actor, verb, destination, detail, reason)
		VALUES ($1, $2, nullif($3, ''), $4, nullif($5, ''))`, schema.Storable(tx.Conn(), action.Actor), verb, destination, detail, schema.Storable(tx.Conn(), action.Reason))
	if err != nil {
		return fmt.Errorf("write the audit: %w", err)
	}
	return nil
}
