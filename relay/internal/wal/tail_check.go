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

// sent is what a log is read through, and what it is about.
type sent struct {
	publication string // its version

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
	schemas := "''"
	if dial.Major(conn) >= 15 {
		schemas = schemasSQL
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
		pub.pubinsert, t.pubname IS NOT NULL, (to_jsonb(t) ->> 'rowfilter') IS NOT NULL,
		coalesce((SELECT min(c.oid::regclass::text) FROM own c WHERE c.relpersistence <> 'p'), ''), o.oids, o.toasts, o.altered
		FROM pg_catalog.pg_publication pub LEFT JOIN pg_catalog.pg_publication_tables t
			ON t.pubname = pub.pubname AND t.schemaname = $2 AND t.tablename = $3,
		LATERAL (SELECT coalesce(pg_catalog.array_agg(c.oid), '{}') AS oids, coalesce(pg_catalog.array_agg(c.reltoastrelid), '{}') AS toasts,
			coalesce(pg_catalog.array_agg(c.altered), '{}') AS altered
			FROM own c WHERE c.oid NOT IN (SELECT r.prrelid FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = pub.oid)) o
		WHERE pub.pubname = $1`, cfg.Publication, cfg.Table.Schema, cfg.Table.Name, cfg.Table.String()).
		Scan(&s.publication, &inserts, &listed, &filtered, &unlogged, &s.tables, &s.toasts, &s.altered)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, dial.Permanent("there is no publication %q: let the owner of table %s run: %s Then create the slot "+
			"again, because it looks up the publication: %s",
			cfg.Publication, cfg.Table, mapping.CreatePublicationSQL(cfg.Publication, cfg.Table), mapping.CreateSlotSQL(cfg.Slot))
	case err != nil:
		return nil, fmt.Errorf("look for the publication: %w", err)
	case unlogged != "":
		return nil, dial.Permanent("table %s is UNLOGGED, so what is inserted into it is not in the log: run: "+
			"ALTER TABLE %[1]s SET LOGGED", unlogged)
	case !inserts || !listed || filtered:
		return nil, dial.Permanent("publication %q doesn't send all inserts into table %s in its name: "+
			"name another one (replication.publication) and run: %s",
			cfg.Publication, cfg.Table, mapping.CreatePublicationSQL(cfg.Publication, cfg.Table))
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
	return sent, position, errors.Join(err, slotErr)
}

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

// Sound checks that the publication is still the one through which the log is read. While it is missing, or leaves
// something out, the server skips inserts silently. An error marked by outbox.Permanent means that this may have
// happened. Every few seconds Sound also looks at what the slot retains, and warns. Only one goroutine may call it;
// conn is an ordinary connection.
func (t *Tail) Sound(ctx context.Context, conn *pgx.Conn) error {
	sent, err := publishes(ctx, conn, t.cfg)
	switch {
	case err != nil:
	case sent.publication != t.sent.publication:
		err = dial.Permanent("publication %q was changed or recreated", t.cfg.Publication)
	case sent.unlogged(t.sent):
		err = dial.Permanent("table %s of publication %q was rewritten, as SET UNLOGGED and SET LOGGED do", t.cfg.Table, t.cfg.Publication)
	default:
		t.sent = sent
	}
	if outbox.IsPermanent(err) {
		return fmt.Errorf("the log was read while inserts may not have been sent: %w. Deliver the waiting messages by a strategy "+
			"that reads the table. Then, for a slot that begins now, run: SELECT pg_drop_replication_slot('%s'); %s",
			err, t.cfg.Slot, mapping.CreateSlotSQL(t.cfg.Slot))
	}
	if err == nil && time.Since(t.watched) > WatchEvery {
		t.watched = time.Now()
		err = WarnOfStrain(ctx, conn, t.cfg.Slot, t.cfg.Logger)
	}
	return err
}

// MadeSince reports whether the tail's slot was made again after the tail was closed.
func (t *Tail) MadeSince(ctx context.Context, conn *pgx.Conn) (bool, error) {
	at, err := slotStands(ctx, conn, t.cfg)
	t.mu.Lock()
	defer t.mu.Unlock()
	return at > t.progress.Position, err
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
