package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// Weight is how serious a symptom is.
type Weight string

const (
	WeightFault  Weight = "fault"  // something doesn't work
	WeightRisk   Weight = "risk"   // something will break, or may lose what was promised
	WeightAdvice Weight = "advice" // something could be better
)

// Symptom is one thing that the doctor found.
type Symptom struct {
	About  string `json:"about"` // "schema", "rights", "settings", "pooler", "clock", "statistics", "index", "slot", "state", "broker"
	Weight Weight `json:"weight"`
	Text   string `json:"text"`

	// Advice is what to do, in words, and Repair the command or the SQL that does it, to be pasted as it is. Either may
	// be "".
	Advice string `json:"advice,omitempty"`
	Repair string `json:"repair,omitempty"`
}

// Examination is the doctor's report on a database.
type Examination struct {
	Database string    `json:"database"`
	Server   string    `json:"server"` // PostgreSQL's version
	Schema   int       `json:"schema"` // its version
	Symptoms []Symptom `json:"symptoms"`

	// Well lists what was looked at and is in order.
	Well []string `json:"well"`
}

func (e *Examination) add(about string, weight Weight, repair, format string, args ...any) {
	e.advise(about, weight, "", repair, format, args...)
}

func (e *Examination) advise(about string, weight Weight, advice, repair, format string, args ...any) {
	e.Symptoms = append(e.Symptoms, Symptom{about, weight, fmt.Sprintf(format, args...), advice, repair})
}

// Sort puts the worst symptoms first. Those of one weight keep their order.
func (e *Examination) Sort() {
	weights := []Weight{WeightFault, WeightRisk, WeightAdvice}
	slices.SortStableFunc(e.Symptoms, func(a, b Symptom) int {
		return slices.Index(weights, a.Weight) - slices.Index(weights, b.Weight)
	})
}

// Examine looks at the whole state of a database: the schema's version and tables, rights, settings, a pooler on the
// way, this machine's clock, statistics, indexes, slots, and the verdict. It changes nothing. It needs the rights of a
// viewer.
func Examine(ctx context.Context, db admin.DB) (*Examination, error) {
	e := &Examination{Symptoms: []Symptom{}, Well: []string{}}
	// Each part has its own transaction: one that fails hides no other.
	for _, part := range []struct {
		about string
		look  func(context.Context, pgx.Tx, *Examination) error
	}{
		{"schema", examineSchema}, {"rights", examineRights}, {"settings", examineSettings}, {"pooler", examinePooler},
		{"clock", examineClock},
		{"statistics", examineStatistics}, {"index", examineIndexes}, {"slot", examineSlots}, {"publication", examinePublications},
		{"attached", examineAttached},
	} {
		before := len(e.Symptoms)
		if err := admin.Read(ctx, db, func(tx pgx.Tx) error { return part.look(ctx, tx, e) }); err != nil {
			if part.about == "schema" {
				return nil, fmt.Errorf("examine: %w", err)
			}
			e.add(part.about, WeightFault, "", "could not be looked at: %v", err)
		}
		if len(e.Symptoms) == before {
			e.Well = append(e.Well, part.about)
		}
	}
	defer e.Sort()
	report, err := Status(ctx, db)
	if err != nil {
		e.add("state", WeightFault, "", "%v", err)
		return e, nil
	}
	if report.Verdict.State.OK() {
		e.Well = append(e.Well, "state")
		return e, nil
	}
	for _, f := range report.Verdict.Causes() {
		weight := WeightFault
		if f.Tone() != Alarm {
			weight = WeightRisk
		}
		next := f.Next
		if next == "outbox doctor" { // which is what was just run: the other symptoms are what it finds
			next = ""
		}
		e.advise("state", weight, f.Advice, next, "%s", Verdict{Finding: f, At: report.At}.Sentence())
	}
	return e, nil
}

func examineSchema(ctx context.Context, tx pgx.Tx, e *Examination) error {
	state, err := schema.Status(ctx, tx)
	if err != nil {
		return err
	}
	e.Database, e.Server, e.Schema = state.Database, state.Server, state.Version
	switch {
	case state.Standby:
		e.advise("schema", WeightFault, "connect to the primary", "", "the server is a hot standby")
	case state.Version == 0:
		e.add("schema", WeightFault, "outbox migrate up", "the outbox is not installed")
		return nil
	case len(state.Pending) > 0:
		e.add("schema", WeightFault, "outbox migrate up", "version %d is installed, and this program needs %d", state.Version, state.Latest)
	case state.TooNew():
		e.advise("schema", WeightFault, "use a newer program", "", "version %d is installed, and this program knows up to %d",
			state.Version, state.Latest)
	}
	err = schema.Intact(ctx, tx)
	if errors.Is(err, schema.ErrSegments) || errors.Is(err, schema.ErrHidden) {
		e.add("schema", WeightFault, "", "%v", err)
		return nil
	}
	return err
}

// examineRights looks at the role that asks: a person's may have fewer rights than a relay's.
func examineRights(ctx context.Context, tx pgx.Tx, e *Examination) error {
	var role string
	if err := tx.QueryRow(ctx, `SELECT current_user::text`).Scan(&role); err != nil {
		return err
	}
	lacks, err := schema.RelayLacks(ctx, tx, role)
	if err == nil && len(lacks) > 0 {
		e.add("rights", WeightAdvice, "outbox migrate grants --apply --relay "+shell.Word(role),
			"this role, %s, could not run a relay: it lacks %s and %d more",
			role, lacks[0], len(lacks)-1)
	}
	return err
}

func examineSettings(ctx context.Context, tx pgx.Tx, e *Examination) error {
	for _, s := range []struct {
		name, bad    string
		weight       Weight
		text, repair string
	}{
		{"fsync", "off", WeightRisk, "a crash of the machine loses commits, and more", "ALTER SYSTEM SET fsync = on"},
		{"full_page_writes", "off", WeightRisk, "a crash of the machine may leave torn pages", "ALTER SYSTEM SET full_page_writes = on"},
		{"autovacuum", "off", WeightRisk, "cursors are rewritten all the time, and their table grows without it",
			"ALTER SYSTEM SET autovacuum = on"},
		{"track_activities", "off", WeightAdvice, "the verdict can't name who holds something up",
			"ALTER SYSTEM SET track_activities = on"},
		{"synchronous_commit", "off", WeightAdvice,
			"a crash loses what writers committed last; relays wait for the disk anyhow", "ALTER SYSTEM SET synchronous_commit = on"},
		{"idle_in_transaction_session_timeout", "0", WeightAdvice,
			"a session that forgets its transaction keeps locks for good",
			"ALTER SYSTEM SET idle_in_transaction_session_timeout = '10min'"},
	} {
		var value string
		if err := tx.QueryRow(ctx, `SELECT setting FROM pg_settings WHERE name = $1`, s.name).Scan(&value); err != nil {
			return err
		}
		if value == s.bad {
			e.add("settings", s.weight, s.repair+"; SELECT pg_reload_conf()", "%s is %s: %s", s.name, value, s.text)
		}
	}
	return nil
}

func examinePooler(ctx context.Context, tx pgx.Tx, e *Examination) error {
	var pid uint32
	if err := tx.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		return err
	}
	if pid != tx.Conn().PgConn().PID() {
		e.advise("pooler", WeightRisk, "give relays the address of PostgreSQL itself, or of a pool in session mode", "",
			"a pooler stands before the server: in transaction mode a relay refuses to start through it")
	}
	return nil
}

func examineClock(ctx context.Context, tx pgx.Tx, e *Examination) error {
	var theirs time.Time
	before := time.Now()
	if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&theirs); err != nil {
		return err
	}
	if apart := theirs.Sub(before.Add(time.Since(before) / 2)); apart.Abs() > clockApart {
		e.advise("clock", WeightRisk, "on the machine that is wrong:", "timedatectl set-ntp true",
			"the database's clock differs from this machine's by %s",
			printed.Span(apart.Abs()))
	}
	return nil
}

func examineStatistics(ctx context.Context, tx pgx.Tx, e *Examination) error {
	rows, err := tx.Query(ctx, `SELECT c.relname::text, s.n_dead_tup FROM pg_stat_user_tables s JOIN pg_class c ON c.oid = s.relid
		WHERE s.schemaname = 'outbox' AND s.n_dead_tup > 100000 AND s.n_dead_tup > 4 * s.n_live_tup ORDER BY 1`)
	if err != nil {
		return err
	}
	var table string
	var dead int64
	_, err = pgx.ForEachRow(rows, []any{&table, &dead}, func() error {
		e.add("statistics", WeightRisk, "VACUUM (ANALYZE) outbox."+table,
			"outbox.%s has %d dead rows: vacuum doesn't keep up, or an old transaction "+
				"or slot holds it back", table, dead)
		return nil
	})
	if err != nil {
		return err
	}
	var age int64
	if err := tx.QueryRow(ctx, `SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()`).Scan(&age); err != nil {
		return err
	}
	if age > 1_000_000_000 {
		e.add("statistics", WeightRisk, "VACUUM (FREEZE)",
			"the oldest transaction id is %d old, and at 2,147,483,648 the server takes no more writes", age)
	}
	return nil
}

func examineIndexes(ctx context.Context, tx pgx.Tx, e *Examination) error {
	missing, err := schema.Unindexed(ctx, tx)
	for _, sql := range missing {
		e.add("index", WeightFault, sql, "an index of the outbox is missing or not valid")
	}
	return err
}

func examineSlots(ctx context.Context, tx pgx.Tx, e *Examination) error {
	rows, err := tx.Query(ctx, `SELECT slot_name::text, coalesce(wal_status, ''),
		coalesce(CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) END, 0)::bigint,
		p.own
		FROM pg_replication_slots LEFT JOIN (SELECT slot, bool_or(own) AS own FROM (`+logReadersSQL+`) p GROUP BY slot) p ON p.slot = slot_name
		WHERE NOT active ORDER BY 1`)
	if err != nil {
		return err
	}
	var name, status string
	var kept int64
	var own *bool // nil: of another program
	_, err = pgx.ForEachRow(rows, []any{&name, &status, &kept, &own}, func() error {
		switch {
		case status == "lost" && own != nil && *own:
			e.advise("slot", WeightFault, "deliver what was committed meanwhile by a strategy that reads the table; then drop the slot:",
				"SELECT pg_drop_replication_slot("+schema.QuoteLiteral(name)+"); -- and then: outbox migrate sources --apply",
				"slot %s is lost, by which a table of its own was read", name)
		case status == "lost" && own != nil:
			e.add("slot", WeightFault, "outbox relay",
				"slot %s is lost: its relay makes another one, and delivers from the table meanwhile", name)
		case kept > 1<<30:
			e.advise("slot", WeightRisk,
				"start its reader; only if that is gone for good, drop the slot, which gives up what it has not read:",
				"SELECT pg_drop_replication_slot("+schema.QuoteLiteral(name)+")",
				"slot %s has no reader, and the server keeps %s of its log for it", name, printed.Bytes(kept))
		}
		return nil
	})
	return err
}

func examineAttached(ctx context.Context, tx pgx.Tx, e *Examination) error {
	all, err := schema.EarlierTriggers(ctx, tx)
	for _, o := range all {
		e.advise("attached", WeightRisk, "rename it, or run outbox attach again if ours has its former name:",
			fmt.Sprintf("ALTER TRIGGER %s ON %s RENAME TO NAME", o[1], o[0]),
			"the trigger %s of the attached table %s runs before %s: if it changes a row again, the message of that comes first",
			o[1], o[0], o[2])
	}
	return err
}

// examinePublications looks for tables of ours, and for those that destinations read, whose rows a publication can't
// name. Only a rebase changes rows of segments, and it gives them a key for that time.
func examinePublications(ctx context.Context, tx pgx.Tx, e *Examination) error {
	named, _ := tx.Query(ctx, `SELECT DISTINCT mapping ->> 'Table' FROM outbox.tables`) // its error is returned with the rows
	authors, err := pgx.CollectRows(named, pgx.RowTo[string])
	if err != nil {
		return err
	}
	named, _ = tx.Query(ctx, `SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'
		AND NOT relispartition`)
	tables, err := pgx.CollectRows(named, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range authors {
		if parsed, err := mapping.ParseTableName(name); err == nil {
			tables = append(tables, parsed.String())
		}
	}
	found, err := mapping.FindKeyless(ctx, tx, tables, true, true)
	for _, k := range found {
		holds := "holds"
		if k.All {
			holds = "is FOR ALL TABLES, and so holds"
		}
		e.advise("publication", WeightFault, "let the table's rows be identified, or take the table out of the publication:", k.Repair(),
			"publication %s %s %s, whose rows have no replica identity: the server refuses every change of a row that it publishes",
			k.Publication, holds, k.Table)
	}
	return err
}

// Canary is the result of sending a test message.
type Canary struct {
	MessageID string `json:"message_id,omitempty"`
	Topic     string `json:"topic"`

	// Settled says, by destination, after how long the message was settled: accepted by the broker, or passed over by
	// the destination's filter.
	Settled map[string]time.Duration `json:"settled_ns"`
	// Failed says where it was set aside or died, and why; Waiting are the destinations that had not come to it in
	// time.
	Failed  map[string]string `json:"failed,omitempty"`
	Waiting []string          `json:"waiting,omitempty"`
}

// SendCanary writes a message of its own to a topic, and waits until every destination, or the one that is named, has
// settled it. It is an ordinary message: consumers of the topic get it. It needs the rights of a writer and a viewer.
func SendCanary(ctx context.Context, db admin.DB, topic, key, destination string, patience time.Duration,
	action admin.Action) (Canary, error) {
	c := Canary{Topic: topic, Settled: map[string]time.Duration{}, Failed: map[string]string{}}
	fail := func(err error) (Canary, error) { return c, fmt.Errorf("send a canary to %s: %w", topic, err) }
	var at canaryRow
	err := admin.Write(ctx, db, action, func(tx pgx.Tx) error {
		if destination != "" {
			if err := admin.SeenDestination(ctx, tx, destination); err != nil {
				return err
			}
		}
		if err := tx.QueryRow(ctx, `SELECT outbox.publish($1, jsonb_build_object('canary', true, 'by', $2::text, 'at', clock_timestamp()), key => nullif($3, ''),
			event_type => 'outbox.canary')::text`, topic, action.Actor, key).Scan(&c.MessageID); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `SELECT xid::text, id, shard FROM outbox.messages WHERE xid = pg_current_xact_id() ORDER BY id DESC LIMIT 1`).
			Scan(&at.xid, &at.id, &at.shard); err != nil {
			return fmt.Errorf("find what was written: %w", err)
		}
		return admin.Record(ctx, tx, action, "canary", destination, map[string]any{"topic": topic, "key": key})
	})
	switch {
	case err != nil:
		return fail(err)
	case action.DryRun:
		c.MessageID = ""
		return c, nil
	}
	began := time.Now()
	for {
		c.Waiting = nil
		if err := admin.Read(ctx, db, func(tx pgx.Tx) error { return c.follow(ctx, tx, at, destination, time.Since(began)) }); err != nil {
			return fail(err)
		}
		if len(c.Waiting) == 0 || time.Since(began) > patience {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return fail(ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// canaryRow locates the canary's row.
type canaryRow struct {
	xid   string
	id    int64
	shard int
}

func (c *Canary) follow(ctx context.Context, tx pgx.Tx, at canaryRow, destination string, now time.Duration) error {
	cursors, err := admin.ReadCursors(ctx, tx)
	if err != nil {
		return err
	}
	for _, cursor := range cursors {
		first, last := schema.Shards(cursor.Group, cursor.Groups)
		if at.shard < first || at.shard > last || schema.TableOf(cursor.Destination) != schema.OutboxMessages ||
			destination != "" && cursor.Destination != destination {
			continue
		}
		var passed bool
		var why *string
		err := tx.QueryRow(ctx, `
			SELECT pg_visible_in_snapshot($1::text::xid8, $2::pg_snapshot) OR pg_visible_in_snapshot($1::text::xid8, $3::pg_snapshot) AND $4::bigint <= $5::bigint,
			       (SELECT coalesce(error, 'it is held') FROM outbox.holds WHERE destination = $6 AND id = $4 AND message_id = $7::text::uuid
			        UNION ALL SELECT coalesce(error, 'it is dead') FROM outbox.dead_letters WHERE destination = $6 AND message_id = $7::text::uuid LIMIT 1)`,
			at.xid, cursor.Prev, cursor.First, at.id, cursor.LastID, cursor.Destination, c.MessageID).Scan(&passed, &why)
		if err != nil {
			return fmt.Errorf("look where it is: %w", err)
		}
		_, known := c.Settled[cursor.Destination]
		switch {
		case why != nil:
			c.Failed[cursor.Destination] = *why
		case passed && !known:
			c.Settled[cursor.Destination] = now.Round(time.Millisecond)
			delete(c.Failed, cursor.Destination)
		case !passed:
			c.Waiting = append(c.Waiting, cursor.Destination)
		}
	}
	return nil
}

// OnDatabase has the repairs name the database, if name isn't "".
func (e *Examination) OnDatabase(name string) {
	for i := range e.Symptoms {
		e.Symptoms[i].Repair = OnDatabase(e.Symptoms[i].Repair, name)
	}
}
