package wal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/sqlstate"
	"github.com/pgoutbox/outbox/mapping"
)

// versionSQL is the version of a publication of the table $4. It is made of the transactions that wrote the rows of the
// publication, of its table and of its schemas, which ALTER PUBLICATION writes anew. A change counts once it is
// committed.
const versionSQL = `pg_catalog.format('%s %s, %s, %s', pub.oid, pub.xmin, (
	SELECT r.oid || ' ' || r.xmin FROM pg_catalog.pg_publication_rel r
	WHERE r.prpubid = pub.oid AND r.prrelid = pg_catalog.to_regclass($4)), SCHEMAS)`

// schemasSQL is for PostgreSQL 15 and later, whose publications can have schemas.
const schemasSQL = `(SELECT pg_catalog.string_agg(n.oid || ' ' || n.xmin, ',' ORDER BY n.oid)
	FROM pg_catalog.pg_publication_namespace n WHERE n.pnpubid = pub.oid)`

// changedSQL is the youngest of these transactions, without the rows for other schemas; 0 if all are too old to have a
// number that says so.
const changedSQL = `coalesce((SELECT w.xid::text::bigint FROM (SELECT pub.xmin UNION ALL SELECT r.xmin FROM pg_catalog.pg_publication_rel r
		WHERE r.prpubid = pub.oid AND r.prrelid = pg_catalog.to_regclass($4) CHANGED) w (xid)
	WHERE pg_catalog.age(w.xid) >= 0 ORDER BY pg_catalog.age(w.xid) LIMIT 1), 0)`

// changedSchemasSQL is for PostgreSQL 15 and later.
const changedSchemasSQL = `UNION ALL SELECT n.xmin FROM pg_catalog.pg_publication_namespace n
	JOIN pg_catalog.pg_namespace s ON s.oid = n.pnnspid WHERE n.pnpubid = pub.oid AND s.nspname = $2`

// sent is what a log is read through, and what it is about.
type sent struct {
	publication string // its version
	changed     uint32 // the last transaction that changed what it sends of the table

	// The table and its partitions, and the TOAST table of each. SET UNLOGGED and SET LOGGED make a new one. So does
	// what rewrites the table for a column, and then the same transaction has written the column in the catalogue.
	// PostgreSQL refuses SET UNLOGGED for a table that a publication names, so such tables are left out.
	tables, toasts []uint32
	altered        []bool // the TOAST table was made for a column
}

// unlogged reports whether a table that is in both may have been UNLOGGED since before.
func (s *sent) unlogged(before *sent) bool {
	for i, table := range s.tables {
		if j := slices.Index(before.tables, table); j >= 0 && before.toasts[j] != s.toasts[i] && !s.altered[i] {
			return true
		}
	}
	return false
}

// publishes returns what the publication sends, and refuses one that doesn't publish all inserts.
func publishes(ctx context.Context, conn *pgx.Conn, cfg TailConfig) (s *sent, err error) {
	schemas, changedSchemas := "''", ""
	if dial.Major(conn) >= 15 {
		schemas, changedSchemas = schemasSQL, changedSchemasSQL
	}
	s = new(sent)
	var inserts, listed, filtered bool
	var unlogged string
	err = conn.QueryRow(ctx, `WITH own AS (
			SELECT c.oid, c.relpersistence, c.reltoastrelid, t.oid IS NULL OR EXISTS (
				SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.xmin = t.xmin) AS altered
			FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_class t ON t.oid = c.reltoastrelid
			WHERE c.oid = pg_catalog.to_regclass($4)
				OR c.oid IN (SELECT p.relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass($4)) p))
		SELECT `+strings.Replace(versionSQL, "SCHEMAS", schemas, 1)+`,
		`+strings.Replace(changedSQL, "CHANGED", changedSchemas, 1)+`,
		pub.pubinsert, t.pubname IS NOT NULL, (to_jsonb(t) ->> 'rowfilter') IS NOT NULL,
		coalesce((SELECT min(c.oid::regclass::text) FROM own c WHERE c.relpersistence <> 'p'), ''), o.oids, o.toasts, o.altered
		FROM pg_catalog.pg_publication pub LEFT JOIN pg_catalog.pg_publication_tables t
			ON t.pubname = pub.pubname AND t.schemaname = $2 AND t.tablename = $3,
		LATERAL (SELECT coalesce(pg_catalog.array_agg(c.oid), '{}') AS oids, coalesce(pg_catalog.array_agg(c.reltoastrelid), '{}') AS toasts,
			coalesce(pg_catalog.array_agg(c.altered), '{}') AS altered
			FROM own c WHERE c.oid NOT IN (SELECT r.prrelid FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = pub.oid)) o
		WHERE pub.pubname = $1`, cfg.Publication, cfg.Table.Schema, cfg.Table.Name, cfg.Table.String()).
		Scan(&s.publication, &s.changed, &inserts, &listed, &filtered, &unlogged, &s.tables, &s.toasts, &s.altered)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, dial.Permanent("there is no publication %q: let the owner of table %s run: %s",
			cfg.Publication, cfg.Table, mapping.CreatePublicationSQL(cfg.Publication, cfg.Table))
	case err != nil:
		return nil, fmt.Errorf("look for the publication: %w", err)
	case unlogged != "":
		return nil, dial.Permanent("table %s is UNLOGGED, so what is inserted into it is not in the log: run: "+
			"ALTER TABLE %[1]s SET LOGGED;", unlogged)
	case !inserts || !listed || filtered:
		other := cfg.Publication[:min(len(cfg.Publication), 61)] + "_2"
		return nil, dial.Permanent("publication %q doesn't send all inserts into table %s in its name: "+
			"name another one (replication.publication: %s) and run: %s",
			cfg.Publication, cfg.Table, other, mapping.CreatePublicationSQL(other, cfg.Table))
	}
	return s, nil
}

// streamable returns what the log is read through, and from where. Its error has everything at once that stands in the
// way.
func streamable(ctx context.Context, conn *pgx.Conn, cfg TailConfig) (*sent, LSN, error) {
	if err := RefuseLevel(ctx, conn); err != nil {
		return nil, 0, err // without that, there is no slot to be named
	}
	sent, err := publishes(ctx, conn, cfg)
	position, slotErr := slotStands(ctx, conn, cfg)
	switch {
	case slotErr != nil:
		err = errors.Join(err, slotErr)
	case outbox.IsPermanent(err):
		err = &Unsent{error: dial.Permanent("%w What is inserted before that isn't sent through slot %q afterwards either. %s",
			err, cfg.Slot, cfg.slotAgain()), position: position}
	case err == nil && cfg.Unsent.stands(position):
		err = &Unsent{cfg.errUnsent(), cfg.Unsent.tail, cfg.Unsent.position}
	}
	return sent, position, err
}

// Unsent is the error of a slot through which inserts may not have been sent: while the publication is missing, or
// leaves something out, the server passes over them silently. It lasts until the slot is made again, because the slot
// passes over the same inserts whatever the publication is by then.
type Unsent struct {
	error
	tail     *Tail // that found it; nil: none was opened
	position LSN   // of the slot, without a tail
}

func (u *Unsent) Unwrap() error { return u.error }

// stands reports whether a slot with this position is still the same.
func (u *Unsent) stands(position LSN) bool {
	if u == nil || u.tail == nil {
		return u != nil && position <= u.position
	}
	u.tail.mu.Lock()
	defer u.tail.mu.Unlock()
	return position <= u.tail.progress.Position
}

func (cfg *TailConfig) errUnsent() error {
	return dial.Permanent("inserts may not have been sent through slot %q: it was there while publication %q was missing, was changed or "+
		"left something out, or while table %s was UNLOGGED. %s", cfg.Slot, cfg.Publication, cfg.Table, cfg.slotAgain())
}

// slotAgain says what to do about such a slot.
func (cfg *TailConfig) slotAgain() string {
	return fmt.Sprintf("Deliver the waiting messages by a strategy that reads the table. Then, for a slot that begins now, run: "+
		"SELECT pg_drop_replication_slot('%s'); %s", cfg.Slot, mapping.CreateSlotSQL(cfg.Slot))
}

// unsentPrefix is the prefix of logical messages by which a relay remembers, in the log itself, that inserts are not
// sent. They come through every slot, whatever the publication is.
const unsentPrefix = "outbox.unsent"

// remember writes such a message if err is an Unsent, and returns err. Another process may read the log after the
// repair.
func remember(ctx context.Context, conn *pgx.Conn, cfg TailConfig, err error) error {
	if unsent := (*Unsent)(nil); errors.As(err, &unsent) {
		if _, failed := conn.Exec(ctx, "SELECT pg_logical_emit_message(true, $1, $2::text)", unsentPrefix, cfg.Slot); failed != nil {
			return errors.Join(err, fmt.Errorf("write that into the log: %w", failed))
		}
	}
	return err
}

// older returns an Unsent, and ends the reading, if the transaction that is being read is older than the publication
// as it is now. Then so is the slot: one that is made after the publication waits until all transactions that are older
// have ended, and doesn't send them. So nobody can pretend it, and the order publication, slot never leads to it.
//
// Only transactions that insert into the table, or that remember, are judged. The lock is held.
func (t *Tail) older() error {
	const firstNormal = 3 // FirstNormalTransactionId
	if t.changed >= firstNormal && int32(t.xid-t.changed) < 0 {
		t.refuse()
	}
	return t.unsent
}

// unpublished returns an Unsent, and ends the reading, if the server's answer has the code that there was no
// publication when a row was written. The answer is an error (42704), and since PostgreSQL 18 a warning (55000), after
// which the server passes over the row. The lock is held.
func (t *Tail) unpublished(answer error, code string) error {
	if sqlstate.Of(answer) == code {
		t.refuse()
	}
	return t.unsent
}

func (t *Tail) refuse() { t.unsent = &Unsent{error: t.cfg.errUnsent(), tail: t} }

// ProbeTail does what OpenTail does, but begins no stream: a slot without a stream stays without one. It also opens a
// replication connection.
func ProbeTail(ctx context.Context, conn *pgx.ConnConfig, cfg TailConfig) error {
	server := Server{conn, cfg.Table.String()}
	plain, err := server.Connect(ctx)
	if err != nil {
		return err
	}
	defer dial.HangUp(plain)
	asking, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	_, _, err = streamable(asking, plain, cfg)
	return errors.Join(err, server.Probe(asking, plain, cfg.Slot))
}

// Sound checks that the publication is still the one through which the log is read. An Unsent means that it was not,
// and that nothing more is read. Every few seconds Sound also looks at what the slot retains, and warns. Only one
// goroutine may call it; conn is an ordinary connection.
func (t *Tail) Sound(ctx context.Context, conn *pgx.Conn) error {
	sent, err := publishes(ctx, conn, t.cfg)
	switch {
	case err != nil:
	case sent.publication != t.sent.publication:
		err = dial.Permanent("publication %q was changed or recreated.", t.cfg.Publication)
	case sent.unlogged(t.sent):
		err = dial.Permanent("table %s of publication %q was rewritten, as SET UNLOGGED and SET LOGGED do.", t.cfg.Table, t.cfg.Publication)
	default:
		t.sent = sent
	}
	if outbox.IsPermanent(err) {
		err = &Unsent{error: fmt.Errorf("the log was read while inserts may not have been sent: %w %s", err, t.cfg.slotAgain()), tail: t}
		t.mu.Lock()
		t.unsent = err // before it is written into the log: the reader must not pass that
		t.mu.Unlock()
		return remember(ctx, conn, t.cfg, err)
	}
	if err == nil && time.Since(t.watched) > WatchEvery {
		t.watched = time.Now()
		err = WarnOfStrain(ctx, conn, t.cfg.Slot, t.cfg.Logger)
	}
	return err
}

// slotStands returns the position up to which the slot was confirmed.
func slotStands(ctx context.Context, conn *pgx.Conn, cfg TailConfig) (LSN, error) {
	const lost = "the log no longer has what was committed since it was last read: deliver it by a strategy that reads the table"
	var plugin, other, confirmed, status, reason string
	err := conn.QueryRow(ctx, `SELECT coalesce(s.plugin, ''), coalesce(nullif(s.database, current_database()), ''), coalesce(s.confirmed_flush_lsn, '0/0')::text,
		coalesce(s.wal_status, ''), coalesce(to_jsonb(s) ->> 'invalidation_reason', '')
		FROM pg_replication_slots s WHERE s.slot_name = $1`, cfg.Slot).Scan(&plugin, &other, &confirmed, &status, &reason)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, dial.Permanent("there is no slot %q. If there was one, %s. Otherwise, and then, run: %s",
			cfg.Slot, lost, mapping.CreateSlotSQL(cfg.Slot))
	case err != nil:
		return 0, fmt.Errorf("look for the slot: %w", err)
	case other != "":
		return 0, dial.Permanent("slot %q belongs to database %q of the same server: name another one (replication.slot)", cfg.Slot, other)
	case plugin != "pgoutput":
		return 0, dial.Permanent("slot %q belongs to something else, with the plugin %q: name another one (replication.slot)",
			cfg.Slot, plugin)
	case status == "lost" || reason != "":
		return 0, dial.Permanent("slot %q was invalidated (%s), and %s. Then drop it and run: %s",
			cfg.Slot, status+reason, lost, mapping.CreateSlotSQL(cfg.Slot))
	}
	return ParseLSN(confirmed)
}

// WatchEvery is the pause between two looks at what a slot retains.
const WatchEvery = 10 * time.Second

// WarnOfStrain logs a warning if a slot retains more of the log than the server is set to keep.
func WarnOfStrain(ctx context.Context, conn *pgx.Conn, slot string, log *slog.Logger) error {
	var status string
	var safe *int64
	err := conn.QueryRow(ctx, "SELECT coalesce(wal_status, ''), safe_wal_size FROM pg_replication_slots WHERE slot_name = $1",
		slot).Scan(&status, &safe)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // the stream will report that
	}
	if err == nil && (status == "unreserved" || status == "extended" && safe != nil) {
		left := int64(0)
		if safe != nil {
			left = *safe
		}
		log.Warn("the slot keeps much of the write-ahead log and may be invalidated: the destination is too slow, or stands still",
			"slot", slot, "wal_status", status, "bytes_left", left)
	}
	return err
}
