package inbox

import (
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
)

// record has the arguments that the statements take from a message.
type record struct {
	quick    []any // of statement.quick
	args     []any // of statement.receive
	key      string
	dedup    string // "": the message's id
	topic    string
	sequence int64 // 0: none
	version  int64 // with a column
}

// record reads a message. Its errors are permanent, because repeating such a message doesn't help.
func (b *Inbox) record(msg *outbox.Message) (record, error) {
	if msg == nil {
		return record{}, errors.New("there is no message")
	}
	r := record{key: msg.OrderingKey(), topic: msg.Topic}
	var id, dedup any
	if !msg.ID.IsZero() {
		id = msg.ID.String()
	}
	if b.cfg.DedupKey != nil {
		key := b.cfg.DedupKey(msg)
		if err := validDedup(key); err != nil {
			return record{}, outbox.Permanent(err)
		}
		if key != "" {
			r.dedup, dedup = key, key
		}
	}
	if id == nil && dedup == nil {
		return record{}, outbox.Permanent(ErrNoID)
	}
	r.args = []any{b.consumer, id, dedup, !b.cfg.ComeBack}
	if dedup == nil {
		r.quick = []any{b.consumer, id, nil, nil}
	} else {
		r.quick = []any{b.consumer, DedupID(dedup.(string)).String(), id, dedup}
	}

	var sequence, version any
	if b.cfg.Gaps != GapIgnore && r.key != "" {
		n, ok, err := outbox.SequenceOf(msg)
		if err != nil {
			return record{}, outbox.Permanent(err)
		}
		if ok {
			r.sequence, sequence = n, n
		}
	}
	if b.cfg.Version != nil {
		v, err := b.cfg.Version(msg)
		if err != nil {
			return record{}, outbox.Permanent(fmt.Errorf("read the version: %w", err))
		}
		if r.key == "" {
			return record{},
				outbox.Permanent(errors.New("the message has a version and no key, so it is not known what it is a version of"))
		}
		r.version, version = v, v
	}
	if b.cfg.Column != nil {
		version = nil
	}
	if b.statement.ordered {
		if !storable(r.topic) || !storable(r.key) || len(r.topic) > outbox.MaxTopicBytes || len(r.key) > outbox.MaxKeyBytes {
			return record{}, outbox.Permanent(fmt.Errorf("its topic has %d bytes and its key %d, the limits are %d and "+
				"%d, and both must be valid UTF-8 without NUL",
				len(r.topic), len(r.key), outbox.MaxTopicBytes, outbox.MaxKeyBytes))
		}
		r.args = append(r.args, r.topic, r.key, sequence, string(b.cfg.Gaps), !b.cfg.FromAnywhere, version)
	}
	return r, nil
}

func validDedup(key string) error {
	if len(key) > MaxDedupBytes {
		return fmt.Errorf("its deduplication key has %d bytes, the limit is %d: use a hash of it", len(key), MaxDedupBytes)
	}
	if !storable(key) {
		return errors.New("its deduplication key is not valid UTF-8, or has a NUL in it")
	}
	return nil
}

// storable reports whether PostgreSQL accepts s as a text.
func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// DedupID returns the id under which a deduplication key is recorded: the key itself if it is a UUID, else the
// beginning of its SHA-256 as a UUID of version 8. The SQL function outbox.inbox_id does the same.
func DedupID(key string) outbox.ID {
	if id, err := outbox.ParseID(key); err == nil {
		return id
	}
	sum := sha256.Sum256([]byte(key))
	id := outbox.ID(sum[:16])
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return id
}

// statement is the SQL that runs for every message. Its casts allow every query mode and driver to send text.
type statement struct {
	quick   [3]string // by the current table; "" if only outbox.receive will do
	receive string
	ordered bool
	column  string
	table   string // of column
}

const (
	receiveSQL = `SELECT r, NULL::bigint, (SELECT r.current::int FROM outbox.inbox_rotation r WHERE r.single), ` + markSQL + `
	FROM outbox.receive($1::text, $2::text::uuid, $3::text, $4::boolean) r`
	receiveOrderedSQL = `SELECT outcome, expected, 0, ` + markSQL + `
	FROM outbox.receive_in_order($1::text, $2::text::uuid, $3::text, $4::boolean, $5::text, $6::text, $7::bigint, $8::text, $9::boolean, $10::bigint)`

	// markSQL notes the transaction of a record, until that transaction ends or is taken back to before the record.
	// stillSQL fails if the transaction that is to be committed isn't the noted one. So a handler that has ended its
	// transaction is found out, even if it has begun another one (ROLLBACK AND CHAIN).
	markSQL  = `set_config('outbox.recorded', pg_current_xact_id_if_assigned()::text, true)`
	stillSQL = `SELECT (CASE current_setting('outbox.recorded', true) WHEN pg_current_xact_id_if_assigned()::text THEN '0' ELSE '` +
		endedText + `' END)::int`
	endedText = "the handler has ended its transaction"

	// quickSQL does the work of outbox.receive on the table %[1]d, which is expected to be the current one, if the
	// previous table, %[2]d, has no writer any more. If that isn't so, or for a duplicate, which is the only possible
	// conflict, it inserts nothing: then outbox.receive is called. It also inserts nothing if a policy hides records of
	// the previous table; outbox.receive then fails. The statement locks the tables before it takes its snapshot, so
	// closing a table (see Retention) waits for every transaction that has seen it as the current one.
	quickSQL = `INSERT INTO outbox.inbox_%[1]d (consumer, id, message_id, dedup_key)
	SELECT $1::text, $2::text::uuid, nullif($3::text::uuid, $2::text::uuid), $4::text FROM outbox.inbox_rotation r
	WHERE r.single AND r.current = %[1]d AND r.closed_at IS NOT NULL AND current_setting('transaction_isolation') LIKE 'read %%'
	AND NOT row_security_active('outbox.inbox_%[2]d'::regclass)
	AND NOT EXISTS (SELECT FROM outbox.inbox_%[2]d i WHERE i.consumer = $1::text AND i.id = $2::text::uuid)
	ON CONFLICT DO NOTHING RETURNING ` + markSQL
)

func newStatement(cfg Config) statement {
	s := statement{receive: receiveSQL}
	switch {
	case cfg.Gaps != GapIgnore || cfg.Version != nil && cfg.Column == nil:
		s.receive, s.ordered = receiveOrderedSQL, true
	case !cfg.ComeBack: // it must not wait for an index
		for n := range s.quick {
			s.quick[n] = fmt.Sprintf(quickSQL, n, (n+2)%3)
		}
	}
	if c := cfg.Column; c != nil {
		s.table = quote(strings.Split(c.Table, ".")...)
		// The lock prevents other transactions from applying a newer version at the same time. A row that isn't there
		// yet can't be locked: see firstSQL.
		s.column = fmt.Sprintf("SELECT coalesce(%s, %s)::bigint FROM %s WHERE %s = $1 FOR UPDATE",
			quote(c.Version), strconv.FormatInt(noVersion, 10), s.table, quote(c.Key))
	}
	return s
}

// firstSQL stands for the lock on a row of the version column's table that isn't there. Of two transactions that find
// no row, the second waits here until the first has committed its row, and then reads the column again, in a statement
// with a snapshot of its own. Otherwise a handler that inserts or updates would put an older version over a newer one.
// With one snapshot for the whole transaction it doesn't see that row, and its handler's upsert is error 40001.
const firstSQL = `SELECT pg_advisory_xact_lock(hashtextextended('outbox.version ' || $1::text::regclass::oid || ' ' || $2::text, 0))`

// older reads the result of statement.column: whether there is a row, and whether its version is r's or a newer one.
func (r record) older(row interface{ Scan(...any) error }) (found, stale bool, err error) {
	var newest int64
	switch err := row.Scan(&newest); {
	case errors.Is(err, sql.ErrNoRows):
		return false, false, nil
	case err != nil:
		return false, false, fmt.Errorf("read the version column: %w", err)
	}
	return true, newest != noVersion && r.version <= newest, nil
}

const noVersion = -1 << 63

func quote(names ...string) string { return pgx.Identifier(names).Sanitize() }

// decide turns the database's answer into a result.
func (b *Inbox) decide(r record, outcome string, expected *int64) (Result, error) {
	result := Result{Outcome: Outcome(outcome)}
	var gap *Gap
	if expected != nil {
		gap = &Gap{Topic: r.topic, Key: r.key, First: *expected, Last: r.sequence - 1}
	}
	switch outcome {
	case "busy":
		return Result{}, outbox.Unavailable(ErrBusy)
	case "gap":
		return Result{}, &GapError{Gap: *gap, Sequence: r.sequence}
	}
	result.Missing = gap
	return result, nil
}
