package wal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/mapping"
)

// publishes returns the version of the publication, and refuses one that doesn't publish all inserts. The version is
// made of the transactions that wrote the rows of the publication and of its table; ALTER PUBLICATION writes them anew.
func publishes(ctx context.Context, conn *pgx.Conn, cfg TailConfig) (version string, err error) {
	var inserts, listed, filtered bool
	err = conn.QueryRow(ctx, `SELECT pg_catalog.format('%s %s, %s', pub.oid, pub.xmin, (
			SELECT r.oid || ' ' || r.xmin FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
			WHERE r.prpubid = pub.oid AND c.relname = $3 AND c.relnamespace = (
				SELECT n.oid FROM pg_catalog.pg_namespace n WHERE n.nspname = $2))),
		pub.pubinsert, t.pubname IS NOT NULL, (to_jsonb(t) ->> 'rowfilter') IS NOT NULL
		FROM pg_catalog.pg_publication pub LEFT JOIN pg_catalog.pg_publication_tables t ON t.pubname = pub.pubname AND t.schemaname = $2 AND t.tablename = $3
		WHERE pub.pubname = $1`, cfg.Publication, cfg.Table.Schema, cfg.Table.Name).Scan(&version, &inserts, &listed, &filtered)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", dial.Permanent("there is no publication %q: let the owner of table %s run: %s Then create the slot "+
			"again, because it looks up the publication: %s",
			cfg.Publication, cfg.Table, mapping.CreatePublicationSQL(cfg.Publication, cfg.Table), mapping.CreateSlotSQL(cfg.Slot))
	case err != nil:
		return "", fmt.Errorf("look for the publication: %w", err)
	case !inserts || !listed || filtered:
		return "", dial.Permanent("publication %q doesn't send all inserts into table %s in its name: "+
			"name another one (replication.publication) and run: %s",
			cfg.Publication, cfg.Table, mapping.CreatePublicationSQL(cfg.Publication, cfg.Table))
	}
	return version, nil
}

// Sound checks that the publication is still the one through which the log is read. While it is missing, or leaves
// something out, the server skips inserts silently. An error marked by outbox.Permanent means that this may have
// happened. Every few seconds Sound also looks at what the slot retains, and warns. Only one goroutine may call it;
// conn is an ordinary connection.
func (t *Tail) Sound(ctx context.Context, conn *pgx.Conn) error {
	version, err := publishes(ctx, conn, t.cfg)
	if err == nil && version != t.version {
		err = dial.Permanent("publication %q was changed or recreated", t.cfg.Publication)
	}
	if outbox.IsPermanent(err) {
		return fmt.Errorf("the log was read while inserts may not have been sent; deliver the waiting messages by a "+
			"strategy that reads the table: %w", err)
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
	var plugin, confirmed, status, reason string
	var here bool
	err := conn.QueryRow(ctx, `SELECT coalesce(s.plugin, ''), coalesce(s.database = current_database(), false), coalesce(s.confirmed_flush_lsn, '0/0')::text,
		coalesce(s.wal_status, ''), coalesce(to_jsonb(s) ->> 'invalidation_reason', '')
		FROM pg_replication_slots s WHERE s.slot_name = $1`, cfg.Slot).Scan(&plugin, &here, &confirmed, &status, &reason)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, dial.Permanent("there is no slot %q. If there was one, %s. Otherwise, and then, run: %s",
			cfg.Slot, lost, mapping.CreateSlotSQL(cfg.Slot))
	case err != nil:
		return 0, fmt.Errorf("look for the slot: %w", err)
	case plugin != "pgoutput" || !here:
		return 0, dial.Permanent("slot %q is of another database or has the plugin %q: name another one (replication.slot)",
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
