package mapped

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
	"github.com/pgoutbox/outbox/relay/mapped/internal/reading"
	"github.com/pgoutbox/outbox/schema"
)

// offsets is the SQL of a table of offsets.
//
// All rows of a group have the same available_after while a session owns them. That is the session's lease, and every
// write names it. A row with an empty topic stands for the group itself, so that a group without messages can be owned
// too.
type offsets struct {
	owner bool // the table has a column for the owner

	all     string // $1 owner: lock the group's rows and return whether each is free
	begin   string // insert the row of the group
	lease   string // $1 owner, $2 microseconds: take them all
	renew   string // $1 token, $2 microseconds: extend it; returns whether a row is the group's own
	release string // $1 token
	pairs   string // the topics and partitions that have messages
	insert  string // $1 topics, $2 partitions, $3 token
	adopt   string // the same: take over rows that another program has inserted
	load    string // $1 topics, $2 partitions, $3 token: where they stand
	move    string // $1 topics, $2 partitions, $3 transactions, $4 ids, $5 token
	check   string // $1 token: the row of the group, locked, if it is still ours
	scan    string // $1 topics, $2 partitions, $3 transactions, $4 ids, $5 limit of each, $6 highest id
	look    string // reading.LookSQL; what the sequence has drawn; empty: by transaction, or ids come from no sequence
}

// everyTopic stands for the topic in the offsets of a table that is not read per topic.
const everyTopic = "*"

func resolveOffsets(ctx context.Context, conn *pgx.Conn, t *existing.Table, byTransaction bool,
	owner string, cfg Config) (*offsets, error) {
	name, err := mapping.ParseTableName(t.Mapping.Offsets.Table)
	if err != nil {
		return nil, outbox.Permanent(err)
	}
	info, err := mapping.ReadTable(ctx, conn, name)
	if errors.Is(err, mapping.ErrMapping) {
		err = outbox.Permanent(fmt.Errorf("%w: create it: %s", err, mapping.OffsetsDDL(name)))
	}
	if err != nil {
		return nil, err
	}
	if err := existing.RefuseHidden(ctx, conn, name.String()); err != nil {
		return nil, err
	}
	needed := []string{"topic", "partition", "last_processed_id", "available_after"}
	if byTransaction {
		needed = append(needed, "last_processed_transaction_id")
	}
	for _, column := range needed {
		if info.Column(column) == nil {
			return nil, outbox.Permanent(fmt.Errorf("%w: table %s has no column %q, which this strategy needs",
				mapping.ErrMapping, info.TableName(), column))
		}
	}
	const keys = "of one topic and partition: two of them would share one. Run: ALTER TABLE %s ALTER COLUMN %s TYPE %s"
	if c := info.Column("topic"); c.Folds || c.Base != "text" && !strings.HasPrefix(c.Base, "character varying") {
		return nil, outbox.Permanent(fmt.Errorf("%w: column \"topic\" of table %s is of type %s, by which an offset is not that "+keys,
			mapping.ErrMapping, info.TableName(), c.Type, info.TableName(), "topic", `text COLLATE "default"`))
	}
	if c := info.Column("partition"); c.Kind != mapping.KindInteger {
		return nil, outbox.Permanent(fmt.Errorf("%w: column \"partition\" of table %s is of type %s, by which an offset is not that "+keys,
			mapping.ErrMapping, info.TableName(), c.Type, info.TableName(), "partition", "bigint USING partition::bigint"))
	}
	return newOffsets(t, info, byTransaction, owner, cfg), nil
}

func newOffsets(t *existing.Table, info *mapping.Table, byTransaction bool, owner string, cfg Config) *offsets {
	m := &t.Mapping.Offsets
	name := info.TableName().String()
	o := &offsets{owner: info.Column("owner") != nil}
	transaction := info.Column("last_processed_transaction_id") != nil
	group := inGroup("o.partition", cfg)
	// groups of an earlier number have left rows without a topic as well
	itself := fmt.Sprintf("o.topic = '' AND o.partition = %d", cfg.Group)
	token := fmt.Sprintf("(to_timestamp(0) + %%s::bigint * interval '1 microsecond')::%s", info.Column("available_after").Base)
	tokenOf := "(extract(epoch FROM o.available_after::timestamptz) * 1000000)::bigint"
	now := "clock_timestamp()"

	// All relays of a table have leases of the same length. A longer remaining time than twice that was written before
	// the clock was set back.
	free, setOwner := fmt.Sprintf("(o.available_after < %[1]s OR o.available_after > %[1]s + interval '%[2]d microseconds')",
		now, 2*cfg.Lease.Microseconds()), ""
	if o.owner {
		free, setOwner = "("+free+" OR o.owner = $1)", ", owner = $1"
	}
	o.all = fmt.Sprintf("SELECT %s AND $1::text IS NOT NULL FROM %s o WHERE %s ORDER BY o.topic, o.partition FOR UPDATE", free, name, group)
	// An id may be 0 or negative.
	first := map[string]string{"smallint": "-32768", "integer": "-2147483648"}[info.Column("last_processed_id").Base]
	if first == "" {
		first = "'-9223372036854775808'"
	}
	columns, values := "topic, partition, last_processed_id, available_after", "%s, %s, "+first+", %s"
	if transaction {
		columns, values = columns+", last_processed_transaction_id", values+", '0'::xid8"
	}
	adopted := ""
	if o.owner {
		columns, values = columns+", owner", values+", "+schema.QuoteLiteral(owner)
		adopted = ", owner = " + schema.QuoteLiteral(owner)
	}
	o.begin = fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s) ON CONFLICT DO NOTHING",
		name, columns, fmt.Sprintf(values, "''", fmt.Sprint(cfg.Group), "'-infinity'"))
	// All rows get one time, that of the statement: a transaction over a slow line begins long before.
	o.lease = fmt.Sprintf("UPDATE %s o SET available_after = statement_timestamp() + $2::bigint * interval '1 microsecond'%s WHERE %s "+
		"AND $1::text IS NOT NULL RETURNING %s", name, setOwner, group, tokenOf)
	o.renew = fmt.Sprintf("UPDATE %s o SET available_after = now() + $2::bigint * interval '1 microsecond' WHERE %s AND "+
		"o.available_after = %s RETURNING %s, %s",
		name, group, fmt.Sprintf(token, "$1"), tokenOf, itself)
	o.release = fmt.Sprintf("UPDATE %s o SET available_after = now() WHERE %s AND o.available_after = %s",
		name, group, fmt.Sprintf(token, "$1"))
	o.insert = fmt.Sprintf(
		"INSERT INTO %s (%s) SELECT %s FROM unnest($1::text[], $2::bigint[]) p (topic, partition) ON CONFLICT DO NOTHING",
		name, columns, fmt.Sprintf(values, "p.topic", "p.partition", fmt.Sprintf(token, "$3")))
	pair := "FROM unnest($1::text[], $2::bigint[]) p (topic, partition) WHERE o.topic = p.topic AND o.partition = p.partition"
	o.adopt = fmt.Sprintf("UPDATE %s o SET available_after = %s%s %s AND o.available_after < %s",
		name, fmt.Sprintf(token, "$3"), adopted, pair, now)
	o.check = fmt.Sprintf("SELECT FROM %s o WHERE %s AND o.available_after = %s FOR UPDATE", name, itself, fmt.Sprintf(token, "$1"))
	last := "'0'"
	if transaction {
		last = "o.last_processed_transaction_id::text"
	}
	foreign := "false"
	if byTransaction {
		foreign = foreignSQL(t)
	}
	o.load = fmt.Sprintf("SELECT o.topic::text, o.partition::bigint, %s, o.last_processed_id::bigint, %s FROM %s o, "+
		"unnest($1::text[], $2::bigint[]) p (topic, partition) WHERE o.topic = p.topic AND o.partition = p.partition "+
		"AND o.available_after = %s", last, foreign, name, fmt.Sprintf(token, "$3"))
	moved := "last_processed_id = p.id"
	if transaction && byTransaction {
		moved += ", last_processed_transaction_id = p.transaction::xid8"
	}
	o.move = fmt.Sprintf("UPDATE %s o SET %s FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[]) p "+
		"(topic, partition, transaction, id) WHERE o.topic = p.topic AND o.partition = p.partition AND "+
		"o.available_after = %s", name, moved, fmt.Sprintf(token, "$5"))
	o.pairs = pairsSQL(t, cfg)
	o.scan = scanSQL(t, m, byTransaction, cfg)
	if !byTransaction && t.Along == existing.AlongSequence {
		o.look = reading.LookSQL(t, t.By == t.ID)
	}
	return o
}

// inGroup is whether a partition, which may be negative, belongs to the group.
func inGroup(partition string, cfg Config) string {
	return fmt.Sprintf("(%s %% %[2]d + %[2]d) %% %[2]d = %[3]d", partition, cfg.Groups, cfg.Group)
}

// pairsSQL walks from one topic and partition to the next along their index.
func pairsSQL(t *existing.Table, cfg Config) string {
	m := &t.Mapping.Offsets
	var columns, names string
	group := inGroup("p.partition", cfg)
	switch {
	case m.Topic != "" && m.Partition != "":
		columns, names = existing.Column(m.Topic)+" AS topic, "+existing.Column(m.Partition)+" AS partition", "topic, partition"
	case m.Partition != "":
		columns, names = existing.Column(m.Partition)+" AS partition", "partition"
	case m.Topic != "":
		columns, names = existing.Column(m.Topic)+" AS topic", "topic"
	default:
		return fmt.Sprintf("SELECT '%s'::text, %d::bigint", everyTopic, cfg.Group)
	}
	topic, partition := "p.topic::text", "p.partition::bigint"
	if m.Topic == "" {
		topic = fmt.Sprintf("'%s'::text", everyTopic)
	}
	if m.Partition == "" {
		partition, group = fmt.Sprintf("%d::bigint", cfg.Group), "true"
	}
	if c := t.Info.Column(m.Topic); c != nil && c.Folds { // one step of the walk would pass all spellings of a topic
		return fmt.Sprintf("SELECT %s, %s FROM (SELECT DISTINCT %s FROM %s m) p WHERE %s", topic, partition,
			strings.Replace(columns, existing.Column(m.Topic), topicText(m.Topic), 1), t.Name, group)
	}
	var order, after string
	switch names {
	case "topic, partition":
		order = existing.Column(m.Topic) + ", " + existing.Column(m.Partition)
		after = fmt.Sprintf("(%s) > (p.topic, p.partition)", order)
	case "partition":
		order = existing.Column(m.Partition)
		after = order + " > p.partition"
	default:
		order = existing.Column(m.Topic)
		after = order + " > p.topic"
	}
	return fmt.Sprintf(`WITH RECURSIVE p AS (
	(SELECT %s FROM %s m ORDER BY %s LIMIT 1)
	UNION ALL
	SELECT n.* FROM p, LATERAL (SELECT %s FROM %s m WHERE %s ORDER BY %s LIMIT 1) n
) SELECT %s, %s FROM p WHERE %s`, columns, t.Name, order, columns, t.Name, after, order, topic, partition, group)
}

// topicText is a topic as a text that equals no other text.
func topicText(name string) string { return existing.Column(name) + `::text COLLATE "C"` }

// foreignSQL is whether the offset o, or a row of its topic and partition, has the number of a transaction that has not
// begun in this cluster: both came by a dump from one that was further.
func foreignSQL(t *existing.Table) string {
	const next = "pg_snapshot_xmax(pg_current_snapshot())"
	m := &t.Mapping.Offsets
	where := existing.Column(m.Transaction) + " >= " + next
	if m.Topic != "" {
		where += " AND " + existing.Column(m.Topic) + " = o.topic"
	}
	if m.Partition != "" {
		where += " AND " + existing.Column(m.Partition) + " = o.partition"
	}
	return fmt.Sprintf("(o.last_processed_transaction_id >= %s OR EXISTS (SELECT FROM %s m WHERE %s))", next, t.Name, where)
}

// scanSQL reads the rows behind the offset of each topic and partition. It compares the pair of transaction and id as
// one value, so it continues in the middle of a transaction that a page has cut.
func scanSQL(t *existing.Table, m *mapping.Offsets, byTransaction bool, cfg Config) string {
	// In a session that isn't ours, a policy would hide rows without an error, and the offset would pass them.
	where := "NOT row_security_active(" + schema.QuoteLiteral(t.Name) + "::regclass)"
	if c := t.Info.Column(m.Topic); c != nil && c.Folds {
		where += fmt.Sprintf(" AND %s = o.topic::%s AND %s = o.topic", existing.Column(m.Topic), c.Base, topicText(m.Topic))
	} else if c != nil {
		where += " AND " + existing.Column(m.Topic) + " = o.topic"
	}
	shard := shardSQL(t)
	if m.Partition != "" {
		where += " AND " + existing.Column(m.Partition) + " = o.partition"
		shard = existing.Column(m.Partition) + "::bigint"
	} else if cfg.Groups > 1 {
		where += fmt.Sprintf(" AND %s %% %d = %d", shard, cfg.Groups, cfg.Group)
	}
	order, transaction := t.ID, "'0'::text"
	if byTransaction {
		x := existing.Column(m.Transaction)
		order, transaction = x+", "+t.ID, x+"::text"
		where += fmt.Sprintf(" AND (%s) > (o.transaction::xid8, o.id) AND %s < pg_snapshot_xmin(pg_current_snapshot()) "+
			"AND $6::bigint IS NOT NULL", order, x)
	} else {
		where += fmt.Sprintf(" AND %s > o.id AND %s <= $6::bigint AND o.transaction IS NOT NULL", t.ID, t.ID)
	}
	return fmt.Sprintf(`SELECT %s, o.n, %s, %s FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[]) WITH ORDINALITY o (topic, partition, transaction, id, n)
CROSS JOIN LATERAL (SELECT * FROM %s m WHERE %s ORDER BY %s LIMIT $5::bigint) m`, t.Columns, shard, transaction, t.Name, where, order)
}

// shardSQL spreads the rows of a table without a partition column, by their key.
func shardSQL(t *existing.Table) string {
	return fmt.Sprintf("abs(%s %% %d)", reading.LaneSQL(t), schema.ShardCount)
}

// take waits until all offsets of the group are free and takes them.
func (o *offsets) take(ctx context.Context, conn *pgx.Conn, s *Source, mayTakeBack bool) (since time.Time, token int64, err error) {
	owner := "" // no owner
	if mayTakeBack {
		owner = s.owner
	}
	err = s.await(ctx, "another relay owns the offsets", func() (bool, error) {
		if since, token, err = o.tryTake(ctx, conn, owner, s); err != nil {
			err = fmt.Errorf("take the offsets: %w", existing.Explain(err))
		}
		return token != 0, err
	}, "group", s.cfg.Group)
	return since, token, err
}

func (o *offsets) tryTake(ctx context.Context, conn *pgx.Conn, owner string, s *Source) (since time.Time, token int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, dial.AnswerWithin)
	defer cancel()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return since, 0, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, o.begin); err != nil {
		return since, 0, err
	}
	free, err := o.free(ctx, tx, owner)
	if err != nil || !free {
		return since, 0, err
	}
	since = time.Now()
	if token, err = o.own(ctx, tx, s); err != nil || token == 0 {
		return since, 0, err
	}
	return since, token, tx.Commit(ctx)
}

// free locks the group's rows and reports whether nobody owns them.
func (o *offsets) free(ctx context.Context, q schema.Querier, owner string) (bool, error) {
	rows, err := q.Query(ctx, o.all, owner)
	if err != nil {
		return false, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[*bool])
	return !slices.ContainsFunc(all, func(free *bool) bool { return free == nil || !*free }), err
}

// own takes the group's rows and returns the token of their lease, 0 if there are none.
func (o *offsets) own(ctx context.Context, q schema.Querier, s *Source) (token int64, err error) {
	rows, err := q.Query(ctx, o.lease, s.owner, s.cfg.Lease.Microseconds())
	if err != nil {
		return 0, err
	}
	tokens, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil || len(tokens) == 0 {
		return 0, err
	}
	return tokens[0], nil
}

// errOffsetsLost means that another relay has taken the offsets.
var errOffsetsLost = fmt.Errorf("%w: the offsets are not this session's any more", relay.ErrLeaseLost)
