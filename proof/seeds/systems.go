package seeds

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/proof/rig"
)

// System is an outbox: a table as an article lays it out, or our own, the statements of its writers, and what the relay
// is told of it.
type System struct {
	Name     string // the same for all that share a table
	Strategy string

	DDL     string   // empty: the default table
	Table   string   // as doctor and operators name it
	Presets []string // for any of which the doctor may take it
	Source  string   // the section of the configuration; empty: none
	Groups  int      // shard groups that two relays share; 0: one
	Log     bool     // read by the log, so it needs a publication and a slot
	CatchUp string   // how far behind the log the table is read instead; empty: never

	// Ordered means that the documents promise the order of keys, with any number of relays.
	Ordered bool
	// Write writes a message with its author's statements. The business row is locked already.
	Write func(context.Context, pgx.Tx, rig.Message) error
	// Pending selects the ids, as text, of rows that are not settled.
	Pending string
	// Unlike counts the rows that are not as the author's code leaves them after a delivery; empty: those that are
	// pending.
	Unlike string
	// Topic is that of all messages, empty where the writer says it, and Header one that each of them has.
	Topic, Header string
	// Digits means that the key is of type bytea, so that a service whose keys are text gets its hexadecimal digits.
	Digits bool
	// WholeTransactions means that a crash repeats what was settled in open transactions, too.
	WholeTransactions bool
}

// String names a system and its strategy.
func (s System) String() string { return s.Name + "/" + s.Strategy }

// Find returns the system with that name and strategy.
func Find(name, strategy string) System {
	all := Systems()
	i := slices.IndexFunc(all, func(s System) bool { return s.Name == name && s.Strategy == strategy })
	if i < 0 {
		panic("no system is called " + name + "/" + strategy)
	}
	return all[i]
}

// Systems returns our own table and those of the articles, each with every strategy that is offered for it.
//
// Statements are their authors' to the letter, but for what no PostgreSQL takes: "timestampz" is timestamptz,
// "IDENTITY()" is IDENTITY. Where an article prints no INSERT, it names the columns. An article's aggregate has one
// message; here its later ones have the same statements, with the aggregate's key instead of a new one.
func Systems() []System {
	all := []System{
		{Name: "default", Strategy: "snapshot", Ordered: true, Groups: 2},
		{Name: "default", Strategy: "replication", Ordered: true, Log: true},
	}
	all = append(all, seed0())
	all = append(all, seed1()...)
	all = append(all, seed2("advisory"), seed2("skiplocked"))
	all = append(all, seed3("skiplocked"), seed3("advisory"), seed3("replication"))
	return append(all, seed4(), debezium())
}

// A published_at that marks, attempts that count, a dedup key with ON CONFLICT. Ids are UUIDs.
func seed0() System {
	return System{
		Name: "outbox_events", Strategy: "skiplocked", WholeTransactions: true,
		DDL: `
CREATE TABLE IF NOT EXISTS orders (
  id TEXT PRIMARY KEY,
  status TEXT NOT NULL,
  created_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS outbox_events (
  id UUID PRIMARY KEY,
  aggregate_type TEXT NOT NULL,             -- например, 'order'
  aggregate_id TEXT NOT NULL,               -- например, ID заказа
  event_type TEXT NOT NULL,                 -- например, 'order.created'
  payload JSONB NOT NULL,                   -- данные события
  headers JSONB NOT NULL DEFAULT '{}',      -- метаданные: трассировка, источник
  dedup_key TEXT NOT NULL,                  -- ключ для снятия дублей на потребителе
  created_at TIMESTAMPTZ NOT NULL DEFAULT now(),
  published_at TIMESTAMPTZ NULL,            -- момент успешной публикации
  attempt SMALLINT NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS idx_outbox_pending
  ON outbox_events (published_at NULLS FIRST, created_at);
CREATE INDEX IF NOT EXISTS idx_outbox_aggregate
  ON outbox_events (aggregate_type, aggregate_id);
CREATE UNIQUE INDEX IF NOT EXISTS ux_outbox_dedup
  ON outbox_events (dedup_key);`,
		Table: "outbox_events", Presets: []string{"outbox_events"}, Source: "{preset: outbox_events}",
		Write: func(ctx context.Context, tx pgx.Tx, m rig.Message) error {
			version := fmt.Sprintf("%s:v%d", m.KeyText(), m.Seq)
			if _, err := tx.Exec(ctx, `INSERT INTO orders(id, status) VALUES($1, 'created')`, version); err != nil {
				return err
			}
			for range 1 + m.Seq%2 { // a caller that tries again writes nothing
				_, err := tx.Exec(ctx, `
INSERT INTO outbox_events(id, aggregate_type, aggregate_id, event_type, payload, headers, dedup_key)
VALUES ($1, 'order', $2, 'order.created', $3, $4, $5)
ON CONFLICT (dedup_key) DO NOTHING
`, outbox.NewID().String(), m.KeyText(), m.JSON(), `{"source": "orders-service"}`, version)
				if err != nil {
					return err
				}
			}
			return nil
		},
		Pending: "SELECT id::text FROM outbox_events WHERE published_at IS NULL",
		Unlike:  "SELECT count(*) FROM outbox_events WHERE published_at IS NULL OR attempt <> 0",
		Topic:   "order", Header: "dedup_key",
	}
}

// Four variants on tables of one kind.
func seed1() []System {
	messages := System{
		Name: "outbox_messages", Table: "outbox_messages", Presets: []string{"outbox_messages_advisory", "outbox_messages"},
		DDL: `
CREATE TABLE outbox_messages (
id int4 GENERATED BY DEFAULT AS IDENTITY NOT NULL,
topic varchar(128) NOT NULL,
key varchar(128) NULL,
type varchar(128) NOT NULL,
payload jsonb NOT NULL,
headers jsonb NOT NULL,
created_at timestamptz DEFAULT now() NOT NULL,
CONSTRAINT pk_outbox_messages PRIMARY KEY (id)
);`,
		Write: func(ctx context.Context, tx pgx.Tx, m rig.Message) error {
			_, err := tx.Exec(ctx, `INSERT INTO outbox_messages (topic, key, type, payload, headers) VALUES ($1, $2, $3, $4, $5)`,
				m.Topic, m.KeyText(), "OrderPlaced", m.JSON(), `{"tenant": "7"}`)
			return err
		},
		Pending: "SELECT id::text FROM outbox_messages", Header: "tenant",
	}
	v1, v11 := messages, messages
	v1.Strategy, v1.Source, v1.Ordered, v1.WholeTransactions = "skiplocked", "{preset: outbox_messages}", true, true
	v11.Strategy, v11.Source, v11.Ordered = "advisory", "{preset: outbox_messages_advisory}", true

	v2 := System{
		Name: "outbox.outbox_messages", Strategy: "lease", Ordered: true,
		DDL: `
CREATE SCHEMA outbox;
CREATE TABLE outbox.outbox_messages (
id int4 GENERATED BY DEFAULT AS IDENTITY NOT NULL,
topic varchar(128) NOT NULL,
"key" varchar(128) NULL,
"type" varchar(128) NOT NULL,
payload jsonb NOT NULL,
headers jsonb NOT NULL,
created_at timestamptz DEFAULT now() NOT NULL,
available_after timestamptz DEFAULT now() NOT NULL,
CONSTRAINT pk_outbox_messages PRIMARY KEY (id)
);
CREATE INDEX ix_outbox_messages_available_after ON outbox.outbox_messages USING
btree (available_after);`,
		Table: "outbox.outbox_messages", Presets: []string{"outbox_messages_lease"}, Source: "{preset: outbox_messages_lease}",
		Write: func(ctx context.Context, tx pgx.Tx, m rig.Message) error {
			_, err := tx.Exec(ctx, `INSERT INTO outbox.outbox_messages (topic, "key", "type", payload, headers) VALUES ($1, $2, $3, $4, $5)`,
				m.Topic, m.KeyText(), "OrderPlaced", m.JSON(), `{"tenant": "7"}`)
			return err
		},
		Pending: "SELECT id::text FROM outbox.outbox_messages", Header: "tenant",
	}

	v3 := System{
		Name: "outbox_offsets", Strategy: "xmin", Groups: 2,
		DDL: `
CREATE TABLE outbox_offsets (
id int4 GENERATED BY DEFAULT AS IDENTITY NOT NULL,
last_processed_id int4 NOT NULL,
available_after timestamptz DEFAULT now() NOT NULL,
last_processed_transaction_id xid8 NOT NULL,
"partition" int4 NOT NULL,
topic varchar(128) NOT NULL,
CONSTRAINT pk_outbox_offsets PRIMARY KEY (id)
);
CREATE UNIQUE INDEX ix_outbox_offsets_topic_partition
ON outbox_offsets
USING btree (topic, partition);
CREATE TABLE outbox_messages (
id int4 GENERATED BY DEFAULT AS IDENTITY NOT NULL,
topic varchar(128) NOT NULL,
"key" varchar(128) NULL,
"type" varchar(128) NOT NULL,
payload jsonb NOT NULL,
headers jsonb NOT NULL,
created_at timestamptz DEFAULT now() NOT NULL,
"partition" int4 DEFAULT 0 NOT NULL,
transaction_id xid8 DEFAULT pg_current_xact_id() NOT NULL,
CONSTRAINT pk_outbox_messages PRIMARY KEY (id)
);
CREATE INDEX ix_outbox_messages_topic_partition_transaction_id_id ON outbox_messages USING btree
(topic, partition, transaction_id, id);`,
		Table: "outbox_messages", Presets: []string{"outbox_messages_xmin"}, Source: "{preset: outbox_messages_xmin}",
		Write:   writePartition,
		Pending: behindOffsets + "(m.transaction_id, m.id) <= (o.last_processed_transaction_id, o.last_processed_id))", Header: "tenant",
	}
	v4 := v3
	v4.Strategy, v4.Ordered, v4.Source, v4.Presets = "serial", true, "{preset: outbox_messages_serial}", append(v4.Presets,
		"outbox_messages_serial")
	v4.Write = func(ctx context.Context, tx pgx.Tx, m rig.Message) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(554738281823524)`); err != nil {
			return err
		}
		return writePartition(ctx, tx, m)
	}
	v4.Pending = behindOffsets + "m.id <= o.last_processed_id)"
	return []System{v1, v11, v2, v3, v4}
}

func writePartition(ctx context.Context, tx pgx.Tx, m rig.Message) error {
	_, err := tx.Exec(ctx, `INSERT INTO outbox_messages
(topic, partition, type, key, payload, headers)
VALUES
($1, $2, $3, $4, $5, $6)`, m.Topic, m.Key%3, "OrderPlaced", m.KeyText(), m.JSON(), `{"tenant": "7"}`)
	return err
}

const behindOffsets = `
SELECT m.id::text FROM outbox_messages m WHERE NOT EXISTS (SELECT FROM outbox_offsets o
WHERE o.topic = m.topic AND o.partition = m.partition AND `

// published, published_time, ack_time and the rest; one scheduled job, or several that skip what is locked. The order
// is that of created_time, the moment at which a transaction began.
func seed2(strategy string) System {
	return System{
		Name: "outbox_event", Strategy: strategy, WholeTransactions: strategy == "skiplocked",
		DDL: `
CREATE TABLE IF NOT EXISTS outbox_event (
  id VARCHAR(255) NOT NULL,
  idempotency_key VARCHAR(255) NULL,
  key bytea NULL,
  payload bytea NOT NULL,
  event_type VARCHAR(255) NULL,
  root_entity_id VARCHAR(255) NULL,
  root_entity_type VARCHAR(255) NULL,
  published boolean NULL,
  published_time timestamp NULL,
  ack_time timestamp NULL,
  retry_count int4 NULL,
  partition_id VARCHAR(255) NULL,
  topic VARCHAR(255) NOT NULL,
  created_time timestamp NULL,
  updated_time timestamp NULL,
  CONSTRAINT outbox_event_pkey PRIMARY KEY (id)
);`,
		Table: "outbox_event", Presets: []string{"outbox_event"}, Source: fmt.Sprintf("{preset: outbox_event, strategy: %s}", strategy),
		Write: func(ctx context.Context, tx pgx.Tx, m rig.Message) error {
			_, err := tx.Exec(ctx, `INSERT INTO outbox_event
(id, idempotency_key, key, payload, event_type, root_entity_id, root_entity_type, published, retry_count, topic, created_time)
VALUES ($1, $2, $3, $4, 'OrderPlaced', $5, 'Order', false, 0, $6, now())`,
				fmt.Sprintf("event-%d-%d", m.Key, m.Seq), outbox.NewID().String(), []byte(m.KeyText()), m.Payload, m.KeyText(), m.Topic)
			return err
		},
		Pending: "SELECT id FROM outbox_event WHERE published IS NOT TRUE",
		Unlike: `SELECT count(*) FROM outbox_event WHERE published IS NOT TRUE OR published_time IS NULL OR ack_time IS NULL OR updated_time IS NULL
			OR retry_count <> 0`,
		Header: "idempotency_key", Digits: true,
	}
}

// A sequence_number per aggregate, drawn behind FOR UPDATE of the aggregate's rows, and a partial covering index.
func seed3(strategy string) System {
	s := System{
		Name: "outbox", Strategy: strategy, WholeTransactions: strategy == "skiplocked",
		DDL: `
CREATE TABLE orders (
  id SERIAL PRIMARY KEY,
  product_id INTEGER NOT NULL,
  amount INTEGER NOT NULL,
  status TEXT NOT NULL DEFAULT 'pending'::TEXT,
  created_at TIMESTAMP WITHOUT TIME ZONE DEFAULT NOW(),
  updated_at TIMESTAMP WITHOUT TIME ZONE DEFAULT NOW()
);
CREATE TABLE outbox (
  id SERIAL PRIMARY KEY,
  aggregate_id TEXT NOT NULL,
  aggregate_type TEXT NOT NULL,
  payload JSONB NOT NULL,
  sequence_number INTEGER DEFAULT 0,
  created_at TIMESTAMP WITHOUT TIME ZONE DEFAULT NOW(),
  processed_at TIMESTAMP WITHOUT TIME ZONE NULL,
  UNIQUE (aggregate_id, sequence_number)
);
CREATE INDEX idx_outbox_unprocessed
ON outbox (processed_at, created_at)
INCLUDE (id, aggregate_id, aggregate_type, sequence_number, payload)
WHERE processed_at IS NULL;`,
		Table: "outbox", Presets: []string{"outbox"}, Source: fmt.Sprintf("{preset: outbox, strategy: %s}",
			strategy), Log: strategy == "replication", Ordered: true,
		Write: func(ctx context.Context, tx pgx.Tx, m rig.Message) error {
			var order int
			if err := tx.QueryRow(ctx, `INSERT INTO orders (
    product_id,
    amount
  ) VALUES (
    $1,
    $2
  ) RETURNING id`, 7, 1).Scan(&order); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `SELECT 1 FROM outbox WHERE aggregate_id = $1 FOR UPDATE`, m.KeyText()); err != nil {
				return err
			}
			var highest int
			if err := tx.QueryRow(ctx, `
    SELECT COALESCE(MAX(sequence_number), 0) AS max
    FROM outbox
    WHERE aggregate_id = $1
  `, m.KeyText()).Scan(&highest); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO outbox (
    aggregate_id,
    aggregate_type,
    payload,
    sequence_number
  ) VALUES (
    $1,
    'order',
    $2,
    $3
  )`, m.KeyText(), m.JSON(), highest+1)
			return err
		},
		Pending: "SELECT id::text FROM outbox WHERE processed_at IS NULL",
		Topic:   "outbox.event.order", Header: "sequence_number",
	}
	if s.Log {
		s.Unlike = "SELECT count(*) FROM outbox WHERE processed_at IS NOT NULL"
	}
	return s
}

// pending, processing, processed, failed. Ids are UUIDs.
func seed4() System {
	return System{
		Name: "transaction_outbox", Strategy: "lease",
		DDL: `
CREATE SCHEMA p2p;
CREATE TABLE p2p.transaction_outbox (
    id uuid DEFAULT gen_random_uuid() NOT NULL PRIMARY KEY,
    idempotency_key TEXT NOT NULL, -- 멱등성 보장
    transaction_type TEXT NOT NULL, -- ex: 'ad_create', 'order_complete'
    transaction_ref_id TEXT NOT NULL, -- 광고ID, 주문ID 등
    status TEXT NOT NULL DEFAULT 'pending', -- 'pending', 'processing', 'processed', 'failed'
    payload JSONB NOT NULL, -- 실행에 필요한 데이터
    create_time TIMESTAMPTZ DEFAULT now(),
    processed_time TIMESTAMPTZ,
    last_attempt_time TIMESTAMPTZ,
    retry_count INT DEFAULT 0,
    error_message TEXT
);`,
		Table: "p2p.transaction_outbox", Presets: []string{"transaction_outbox"}, Source: "{preset: transaction_outbox}",
		Write: func(ctx context.Context, tx pgx.Tx, m rig.Message) error {
			_, err := tx.Exec(ctx, `INSERT INTO p2p.transaction_outbox (idempotency_key, transaction_type, transaction_ref_id, payload) VALUES ($1, 'order_create', $2, $3)`,
				fmt.Sprintf("%s-%d", m.KeyText(), m.Seq), m.KeyText(), m.JSON())
			return err
		},
		Pending: "SELECT id::text FROM p2p.transaction_outbox WHERE status NOT IN ('processed', 'failed')",
		Unlike: `SELECT count(*) FROM p2p.transaction_outbox WHERE status <> 'processed' OR processed_time IS NULL OR last_attempt_time IS NULL
			OR retry_count < 1 OR error_message IS NOT NULL`,
		Topic: "order_create", Header: "idempotency_key",
	}
}

// Debezium's event router, by querying. Ids are UUIDs, and nothing else says when a row was written.
func debezium() System {
	return System{
		Name: "outboxevent", Strategy: "advisory",
		DDL: `
CREATE TABLE outboxevent (
  id uuid NOT NULL PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb
);`,
		Table: "outboxevent", Presets: []string{"debezium"}, Source: "{preset: debezium}",
		Write: func(ctx context.Context, tx pgx.Tx, m rig.Message) error {
			_, err := tx.Exec(ctx, `INSERT INTO outboxevent VALUES ($1, 'Order', $2, 'OrderCreated', $3)`,
				outbox.NewID().String(), m.KeyText(), m.JSON())
			return err
		},
		Pending: "SELECT id::text FROM outboxevent", Topic: "outbox.event.Order",
	}
}

// Default reports whether it is our own table.
func (s System) Default() bool { return s.DDL == "" }

// Load is the system's table as a [rig.Load] takes it.
func (s System) Load() *rig.Table {
	if s.Default() {
		return rig.DefaultTable()
	}
	count := "SELECT count(*) FROM (" + s.Pending + ") p"
	t := &rig.Table{
		Create: s.create, Write: s.Write,
		Mark:   "SELECT coalesce(string_agg(p.id, ','), '') FROM (" + s.Pending + ") p (id)",
		Passed: "SELECT NOT EXISTS (SELECT FROM (" + s.Pending + ") p (id) WHERE p.id = ANY (string_to_array($1, ',')))",
		// One that holds the lock, where only one may read.
		Owner: `SELECT coalesce((SELECT split_part(substr(a.application_name, 14), '/', 1) FROM pg_stat_activity a
			WHERE a.datname = current_database() AND a.application_name LIKE 'outbox relay %'
			ORDER BY EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'advisory' AND l.granted) DESC, random() LIMIT 1), '')`,
		Delivered: "SELECT (SELECT count(*) FROM ledger) - (" + count + ")",
		Held:      count,
	}
	if s.Log {
		slot := "(SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database())"
		t.Mark, t.Passed = "SELECT pg_current_wal_insert_lsn()::text", "SELECT "+slot+" >= $1::pg_lsn"
		t.Delivered, t.Held = "SELECT 0", "SELECT 0"
	}
	return t
}

// create makes the table, and what the relay asks for.
func (s System) create(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, s.DDL, pgx.QueryExecModeSimpleProtocol); err != nil || !s.Log {
		return err
	}
	slot := s.slot(conn.Config().Database)
	for _, sql := range []string{mapping.CreatePublicationSQL(slot, mapping.TableName{Schema: "public", Name: s.Table}),
		mapping.CreateSlotSQL(slot)} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// slot is the name of slot and publication: slots belong to the whole server.
func (s System) slot(database string) string { return "events_" + database }

// Destination is what a destination's section says of the system, each line with that indent.
func (s System) Destination(database, indent string, relays int) (text string) {
	if s.Source != "" {
		text += indent + "source: " + s.Source + "\n"
	}
	if s.Log {
		text += indent + fmt.Sprintf("replication: {slot: %[1]s, publication: %[1]s, catch_up: %[2]s}\n",
			s.slot(database), cmp.Or(s.CatchUp, "0"))
	}
	if relays > 1 && s.Groups > 1 {
		text += indent + fmt.Sprintf("shard_groups: %d\n", s.Groups)
	}
	return text
}
