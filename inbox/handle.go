package inbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/schema"
)

// DB begins Handle's transactions: a *pgxpool.Pool, a *pgxpool.Conn or a *pgx.Conn.
type DB interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// cleanUp bounds the work after the context has ended.
const cleanUp = 5 * time.Second

// Handle applies a message: it begins a transaction, records the message, runs fn in the transaction and commits. If
// the message was recorded before, fn isn't run and the result tells so. With a nil error the message may be
// acknowledged. With any other error it may not, and nothing has happened in the database, except if the commit itself
// failed: then the next delivery of the message will show whether it happened.
//
// Handle needs as many round trips as fn's own transaction would. It only reads the message, and fn gets the message
// unchanged. The transaction has the session's default isolation level. In one above READ COMMITTED, a record that
// another transaction has made in the meantime is error 40001, and the next delivery finds it.
func (b *Inbox) Handle(ctx context.Context, db DB, msg *outbox.Message, fn Handler) (Result, error) {
	return b.observe(ctx, msg, func(ctx context.Context, r record) (Result, error) {
		return b.handle(ctx, db, r, msg, fn)
	})
}

func (b *Inbox) handle(ctx context.Context, db DB, r record, msg *outbox.Message, fn Handler) (result Result, err error) {
	if err := begins(db); err != nil {
		return Result{}, err
	}
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{CommitQuery: stillSQL + "; COMMIT"}) // if the first fails, the second isn't executed
	results := b.send(ctx, db, batch, r)
	tx := results.Tx()
	if tx == nil {
		_ = results.Close()
		return Result{}, errors.New("the database handle lost the transaction that it was asked to begin: give a " +
			"*pgxpool.Pool or a *pgx.Conn, or use HandleTx")
	}
	committed := false
	defer func() {
		if !committed { // even if fn has ended its goroutine
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
			defer cancel()
			_ = tx.Rollback(ending) // if this fails, the connection is closed, which also ends the transaction
		}
	}()
	_, err = results.Exec()
	if result, err = b.readResults(ctx, tx, results, r, err); err != nil {
		return Result{}, err
	}
	if result.Outcome == Duplicate {
		return result, nil
	}
	if result.Outcome == Applied {
		if err := b.apply(ctx, tx, msg, fn); err != nil {
			return Result{}, err
		}
	}
	committed = true
	if err := tx.Commit(ctx); err != nil {
		return Result{}, explainEnd("commit", err)
	}
	return result, nil
}

// begins returns an error if db can't begin a transaction, whatever happens later.
func begins(db DB) error {
	if !settings.Given(db) {
		return outbox.Permanent(errors.New("db is nil: open a pool or a connection and pass it"))
	}
	if _, begun := db.(pgx.Tx); begun {
		return outbox.Permanent(errors.New("db is a transaction, and Handle and Store begin their own: pass the pool or the connection, " +
			"or use HandleTx"))
	}
	return nil
}

var errNoHandler = outbox.Permanent(errors.New("there is no handler: fn is nil"))

// HandleTx is Handle in the caller's transaction: the record and the effect exist when that commits. Do not acknowledge
// before.
//
// It makes a savepoint, which fn leaves alone. After an error the transaction is as it was before the call, without the
// record, and remains usable. tx may be a savepoint itself: rolling it back removes the record together with the
// effect. Until the caller's transaction ends, others with the same message wait (or get ErrBusy), so keep it short.
// Transactions that apply several messages in different orders can deadlock, which PostgreSQL ends with error 40P01.
func (b *Inbox) HandleTx(ctx context.Context, tx pgx.Tx, msg *outbox.Message, fn Handler) (Result, error) {
	return b.observe(ctx, msg, func(ctx context.Context, r record) (Result, error) {
		if tx == nil {
			return Result{}, errors.New("tx is nil: begin a transaction and pass it, or use Handle")
		}
		return b.handleTx(ctx, tx, r, msg, fn)
	})
}

func (b *Inbox) handleTx(ctx context.Context, tx pgx.Tx, r record, msg *outbox.Message, fn Handler) (result Result, err error) {
	batch := &pgx.Batch{}
	batch.Queue(savepointSQL)
	results := b.send(ctx, tx, batch, r)
	if _, err := results.Exec(); err != nil {
		_ = results.Close()
		return Result{}, explain(err)
	}
	released := false
	defer func() {
		if !released {
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
			defer cancel()
			if _, undoErr := tx.Exec(ending, undoSQL); undoErr != nil && err != nil {
				err = errors.Join(err, fmt.Errorf("and the transaction can't be used on: %w", undoErr))
			}
		}
	}()
	if result, err = b.readResults(ctx, tx, results, r, nil); err != nil || result.Outcome == Duplicate {
		return result, err
	}
	if result.Outcome == Applied {
		if err := b.apply(ctx, tx, msg, fn); err != nil {
			return Result{}, err
		}
	}
	if _, err := tx.Exec(ctx, releaseSQL); err != nil {
		return Result{}, explainEnd("release the savepoint", err)
	}
	released = true
	return result, nil
}

// Savepoints of the same name shadow each other, so a handler may use an inbox itself.
const (
	savepointSQL = "SAVEPOINT outbox_inbox"
	releaseSQL   = "RELEASE SAVEPOINT outbox_inbox"
	undoSQL      = "ROLLBACK TO SAVEPOINT outbox_inbox; RELEASE SAVEPOINT outbox_inbox"
)

// send records the message in the round trip of the statements that are already queued.
func (b *Inbox) send(ctx context.Context, db DB, batch *pgx.Batch, r record) pgx.BatchResults {
	if quick := b.statement.quick[b.turn.Load()]; quick != "" {
		batch.Queue(quick, r.quick...)
	} else {
		batch.Queue(b.statement.receive, r.args...)
	}
	if b.statement.column != "" {
		batch.Queue(b.statement.column, r.key)
	}
	return db.SendBatch(ctx, batch)
}

// readResults reads the results of send, and closes them. If the fast statement has recorded nothing, it calls
// outbox.receive in tx. err is the result of the statement before.
func (b *Inbox) readResults(ctx context.Context, tx pgx.Tx, results pgx.BatchResults, r record, err error) (result Result, _ error) {
	quick := b.statement.quick[0] != ""
	recorded := false
	outcome, expected, turn, mark := string(Applied), (*int64)(nil), int32(0), new(string)
	if err == nil && quick {
		var tag pgconn.CommandTag
		tag, err = results.Exec()
		recorded = tag.RowsAffected() == 1
	} else if err == nil {
		err = results.QueryRow().Scan(&outcome, &expected, &turn, &mark)
	}
	found, stale := true, false
	if err == nil && b.statement.column != "" {
		found, stale, err = r.older(results.QueryRow())
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err == nil && quick && !recorded {
		if err = tx.QueryRow(ctx, b.statement.receive, r.args...).Scan(&outcome, &expected, &turn, &mark); err == nil {
			b.turn.Store(turn)
		}
	}
	if err == nil && !found && outcome == string(Applied) {
		stale, err = b.readVersionAgain(ctx, tx, r)
	}
	if err != nil {
		return Result{}, explain(err)
	}
	result, err = b.decide(r, outcome, expected)
	if err == nil && stale && result.Outcome == Applied {
		result.Outcome = Stale
	}
	return result, err
}

// readVersionAgain reads the version column again, once no other transaction applies the first message of the key any
// more.
func (b *Inbox) readVersionAgain(ctx context.Context, tx pgx.Tx, r record) (stale bool, err error) {
	batch := &pgx.Batch{}
	batch.Queue(firstSQL, b.statement.table, r.key)
	batch.Queue(b.statement.column, r.key)
	results := tx.SendBatch(ctx, batch)
	if _, err = results.Exec(); err == nil {
		_, stale, err = r.older(results.QueryRow())
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return stale, err
}

// apply runs the handler and checks whether its transaction can be committed.
func (b *Inbox) apply(ctx context.Context, tx pgx.Tx, msg *outbox.Message, fn Handler) error {
	if fn == nil {
		return errNoHandler
	}
	ctx, cancel := b.withTimeout(ctx)
	defer cancel()
	if err := run(ctx, func() error { return fn(ctx, handlerTx{tx}, msg) }); err != nil {
		return err
	}
	if tx.Conn().PgConn().IsBusy() {
		return errRowsOpen
	}
	switch tx.Conn().PgConn().TxStatus() {
	case 'E':
		return outbox.Permanent(ErrAborted)
	case 'I':
		return outbox.Permanent(ErrEnded)
	}
	return nil
}

func (b *Inbox) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	if b.cfg.Timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, b.cfg.Timeout)
}

// run calls the handler. A panic becomes an error, so that one bad message doesn't end the consumer. An effect after
// the deadline isn't committed, because the caller has given up on it.
func run(ctx context.Context, fn func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{Value: value, Stack: debug.Stack()}
		}
	}()
	if err := fn(); err != nil {
		if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the handler returned after its time: %w", err)
	}
	return nil
}

// handlerTx is the transaction that the handler gets.
type handlerTx struct{ pgx.Tx }

var errNotYours = errors.New("inbox: the transaction isn't the handler's to end: return nil to commit, an error to roll back")

func (handlerTx) Commit(context.Context) error   { return errNotYours }
func (handlerTx) Rollback(context.Context) error { return errNotYours }

// explainEnd explains why a transaction or a savepoint could not be ended. Only a commit may have happened.
func explainEnd(what string, err error) error {
	switch state := sqlstate.Of(err); {
	case errors.Is(err, pgx.ErrTxCommitRollback), state == "25P02":
		return outbox.Permanent(ErrAborted)
	case state == "22P02" && strings.Contains(err.Error(), endedText), state == "3B001", state == "25P01",
		errors.Is(err, sql.ErrTxDone) && what != "commit": // else by the end of the caller's context
		return outbox.Permanent(ErrEnded)
	case errors.Is(err, driver.ErrBadConn) && what != "commit":
		return fmt.Errorf("%s: %w, or %w", what, err, errRowsOpen)
	case state != "":
		return fmt.Errorf("%s: %w", what, err)
	case what != "commit":
		return outbox.Unavailable(fmt.Errorf("%s: %w", what, err))
	}
	return outbox.Unavailable(fmt.Errorf("commit: it is not known whether it has happened; the next delivery of the message will tell: %w",
		err))
}

var errRowsOpen = errors.New("the handler left rows open: close what Query returns, and scan what QueryRow returns")

// explain adds the next step to errors that are typical while setting up, and marks errors that are not the message's
// fault.
func explain(err error) error {
	switch state := sqlstate.Of(err); state {
	case "42P01", "3F000", "42883":
		return outbox.Unavailable(fmt.Errorf("%w, or too old, in this database: run: outbox migrate up: %w", schema.ErrMissing, err))
	case "42501":
		if hidden := schema.ExplainHidden(err); errors.Is(hidden, schema.ErrHidden) {
			return outbox.Unavailable(fmt.Errorf("what was applied can't be told: %w", hidden))
		}
		return outbox.Unavailable(fmt.Errorf(`%w to record messages: as the schema's owner, run: outbox migrate grants --apply --consumer ROLE: %w`, schema.ErrForbidden, err))
	case "25P02":
		return fmt.Errorf("an earlier statement of the transaction failed, so it can only be rolled back: %w", err)
	case "25006":
		return outbox.Unavailable(fmt.Errorf("the transaction is read-only, or the server is a hot standby: use the primary: %w", err))
	case "22023", "22P02", "22021":
		return outbox.Permanent(fmt.Errorf("record the message: %w", err))
	case "":
		return outbox.Unavailable(fmt.Errorf("record the message: %w", err))
	}
	return fmt.Errorf("record the message: %w", err)
}
