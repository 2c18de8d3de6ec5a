package existing

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// One row that the server can't send spoils the whole answer: one of its texts has no UTF-8 form, or the row is too
// large for the protocol. Then rows are read without their texts, and each is completed by a query of its own. A row
// that still can't be read becomes an invalid message that states the reason.

// QueryEach is Query for rows that may have such texts. sharded means that extra gives them their shards.
func (t *Table) QueryEach(ctx context.Context, conn *pgx.Conn, free *FreeLists, extra ReadExtra, sharded bool,
	sql string, args ...any) (ds []relay.Delivery, rows []Row, err error) {
	err = t.Attempt(ctx, conn, func() error {
		ds, rows, err = t.Query(ctx, conn, free, extra, sql, args...)
		return err
	})
	if !schema.IsDataError(err) {
		return ds, rows, err
	}
	if ds, rows, err = t.Query(ctx, conn, free, extra, t.Without(sql), args...); err == nil {
		err = t.Fill(ctx, conn, ds, rows, sharded)
	}
	return ds, rows, err
}

// Without turns a statement into one that reads rows without their texts.
func (t *Table) Without(sql string) string { return strings.ReplaceAll(sql, t.Columns, t.bare) }

// Fill completes rows that were read without their texts, each by a query of its own. sharded means that their shards
// are known.
func (t *Table) Fill(ctx context.Context, conn *pgx.Conn, ds []relay.Delivery, rows []Row, sharded bool) error {
	for i := range ds {
		d, r := &ds[i], &rows[i]
		before, cause := *d, error(nil)
		for _, columns := range []string{t.Columns, t.keyed, t.bare} {
			found, as, err := t.single(ctx, conn, columns, r.ID)
			if schema.IsDataError(err) {
				cause = err
				continue
			}
			if err != nil {
				return fmt.Errorf("read a row by itself: %w", err)
			}
			if len(found) > 0 {
				*d, r.Message = found[0], as[0].Message
			}
			break
		}
		if sharded {
			d.Shard = before.Shard
		}
		if cause != nil {
			d.Invalid = fmt.Errorf("the row can't be read as UTF-8: %w", cause)
		}
	}
	return nil
}

// single reads one row. In a transaction it can fail without ending the transaction.
func (t *Table) single(ctx context.Context, conn *pgx.Conn, columns, id string) (ds []relay.Delivery, rows []Row, err error) {
	err = t.Attempt(ctx, conn, func() error {
		sql := fmt.Sprintf("SELECT %s FROM %s m WHERE %s = $1::text::%s", columns, t.Name, t.ID, t.IDType)
		ds, rows, err = t.Query(ctx, conn, nil, nil, sql, id)
		return err
	})
	return ds, rows, err
}

// Attempt runs f under a savepoint if the connection is in a transaction, so that a value that the server refuses
// doesn't end the transaction.
func (t *Table) Attempt(ctx context.Context, conn *pgx.Conn, f func() error) error {
	if conn.PgConn().TxStatus() != 'T' {
		return f()
	}
	if _, err := conn.Exec(ctx, "SAVEPOINT outbox_attempt"); err != nil {
		return err
	}
	err := f()
	if err != nil && sqlstate.Of(err) == "" { // no answer of the server's
		return err
	}
	end := "RELEASE SAVEPOINT outbox_attempt"
	if err != nil {
		end = "ROLLBACK TO SAVEPOINT outbox_attempt; " + end
	}
	if endErr := conn.PgConn().Exec(ctx, end).Close(); endErr != nil {
		return endErr
	}
	return err
}
