package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pgoutbox/outbox"
)

// SQLHandler is a Handler for database/sql. It leaves tx open.
type SQLHandler func(ctx context.Context, tx *sql.Tx, msg *outbox.Message) error

// HandleSQL is Handle for database/sql, with any PostgreSQL driver. It needs two round trips more than the handler's
// own transaction.
func (b *Inbox) HandleSQL(ctx context.Context, db *sql.DB, msg *outbox.Message, fn SQLHandler) (Result, error) {
	return b.observe(ctx, msg, func(ctx context.Context, r record) (result Result, err error) {
		if db == nil {
			return Result{}, errors.New("db is nil: open a database and pass it")
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return Result{}, outbox.Unavailable(fmt.Errorf("begin a transaction: %w", err))
		}
		committed := false
		defer func() {
			if !committed {
				_ = tx.Rollback() // if this fails, database/sql closes the connection
			}
		}()
		if result, err = b.recordSQL(ctx, tx, r); err != nil || result.Outcome == Duplicate {
			return result, err
		}
		if result.Outcome == Applied {
			if err := b.applySQL(ctx, tx, msg, fn); err != nil {
				return Result{}, err
			}
			if _, err := tx.ExecContext(ctx, stillSQL); err != nil {
				return Result{}, explainEnd("before the commit", err)
			}
		}
		committed = true
		if err := tx.Commit(); err != nil {
			return Result{}, explainEnd("commit", err)
		}
		return result, nil
	})
}

// HandleSQLTx is HandleTx for database/sql.
func (b *Inbox) HandleSQLTx(ctx context.Context, tx *sql.Tx, msg *outbox.Message, fn SQLHandler) (Result, error) {
	return b.observe(ctx, msg, func(ctx context.Context, r record) (result Result, err error) {
		if tx == nil {
			return Result{}, errors.New("tx is nil: begin a transaction and pass it, or use HandleSQL")
		}
		if _, err := tx.ExecContext(ctx, savepointSQL); err != nil {
			return Result{}, explain(err)
		}
		released := false
		defer func() {
			if released {
				return
			}
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
			defer cancel()
			for _, statement := range [...]string{"ROLLBACK TO SAVEPOINT outbox_inbox", releaseSQL} {
				if _, undoErr := tx.ExecContext(ending, statement); undoErr != nil && err != nil {
					err = errors.Join(err, fmt.Errorf("and the transaction can't be used on: %w", undoErr))
					return
				}
			}
		}()
		if result, err = b.recordSQL(ctx, tx, r); err != nil || result.Outcome == Duplicate {
			return result, err
		}
		if result.Outcome == Applied {
			if err := b.applySQL(ctx, tx, msg, fn); err != nil {
				return Result{}, err
			}
		}
		if _, err := tx.ExecContext(ctx, releaseSQL); err != nil {
			return Result{}, explainEnd("release the savepoint", err)
		}
		released = true
		return result, nil
	})
}

// recordSQL records the message and reads the version column.
func (b *Inbox) recordSQL(ctx context.Context, tx *sql.Tx, r record) (Result, error) {
	result, err := b.receiveSQL(ctx, tx, r)
	if err != nil || result.Outcome != Applied || b.statement.column == "" {
		return result, err
	}
	found, stale, err := r.older(tx.QueryRowContext(ctx, b.statement.column, r.key))
	if err == nil && !found {
		if _, err = tx.ExecContext(ctx, firstSQL, b.statement.table, r.key); err == nil {
			_, stale, err = r.older(tx.QueryRowContext(ctx, b.statement.column, r.key))
		}
	}
	if err != nil {
		return Result{}, explain(err)
	}
	if stale {
		result.Outcome = Stale
	}
	return result, nil
}

// receiveSQL tries the fast statement first, if there is one; if that records nothing, it calls outbox.receive.
func (b *Inbox) receiveSQL(ctx context.Context, tx *sql.Tx, r record) (Result, error) {
	if quick := b.statement.quick[b.turn.Load()]; quick != "" {
		tag, err := tx.ExecContext(ctx, quick, r.quick...)
		if err != nil {
			return Result{}, explain(err)
		}
		if n, err := tag.RowsAffected(); err == nil && n == 1 {
			return Result{Outcome: Applied}, nil
		}
	}
	var outcome string
	var expected *int64
	var turn int32
	var mark *string
	if err := tx.QueryRowContext(ctx, b.statement.receive, r.args...).Scan(&outcome, &expected, &turn, &mark); err != nil {
		return Result{}, explain(err)
	}
	if !b.statement.ordered {
		b.turn.Store(turn)
	}
	return b.decide(r, outcome, expected)
}

func (b *Inbox) applySQL(ctx context.Context, tx *sql.Tx, msg *outbox.Message, fn SQLHandler) error {
	if fn == nil {
		return errNoHandler
	}
	ctx, cancel := b.withTimeout(ctx)
	defer cancel()
	return run(ctx, func() error { return fn(ctx, tx, msg) })
}
