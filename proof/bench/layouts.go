package main

import (
	"encoding/base64"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/proof/seeds"
)

// layout is a table that messages are in: as an article has it, or ours.
type layout struct {
	ddl     string
	table   pgx.Identifier
	columns []string
	row     func(m seedMessage) []any
	after   string // a statement once it is loaded; or ""
	left    string // whether anything is left to deliver
	live    string // whether writers take turns: what they call before each insert; or ""
}

// seedMessage is what all layouts can hold. In a comparison, payloads are JSON, which most articles demand.
type seedMessage struct {
	topic   string
	topicNo int

	partition int // a virtual one, of the topic
	key       string
	seq       int // in its key
	payload   []byte
	headers   any // a JSON text, or nil
}

const (
	jsonBefore, jsonAfter = `{"data": "`, `"}` // as jsonb prints it
	minJSON               = len(jsonBefore) + len(jsonAfter) + (check.MinSize+2)/3*4
)

// encodeJSON is check.Encode as JSON of about size bytes.
func encodeJSON(key uint32, seq uint64, size int) []byte {
	raw := check.Encode(nil, key, seq, (size-len(jsonBefore)-len(jsonAfter))/4*3)
	text := append(make([]byte, 0, size), jsonBefore...)
	return append(base64.StdEncoding.AppendEncode(text, raw), jsonAfter...)
}

// decodeJSON returns what check.Decode reads, or what it refuses.
func decodeJSON(payload []byte) []byte {
	text := strings.TrimSuffix(strings.TrimPrefix(string(payload), jsonBefore), jsonAfter)
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return payload
	}
	return raw
}

// article is a table of an article, which l completes. Unless l says otherwise, what is pending is left.
func article(name, strategy string, l layout) layout {
	s := seeds.Find(name, strategy)
	// The database has our own tables in that schema.
	l.ddl = strings.Replace(s.DDL, "CREATE SCHEMA outbox;", "", 1)
	l.table = strings.Split(s.Table, ".")
	if l.left == "" {
		l.left = "SELECT EXISTS (" + s.Pending + ")"
	}
	return l
}

// firstOffsets are the offsets' rows.
func firstOffsets(topics []string, partitions int) string {
	var rows []string
	for _, topic := range topics {
		for p := range partitions {
			rows = append(rows, fmt.Sprintf("(0, '0', %d, '%s')", p, topic))
		}
	}
	return "INSERT INTO outbox_offsets (last_processed_id, last_processed_transaction_id, partition, topic) VALUES " +
		strings.Join(rows, ", ")
}

// layouts are all tables, by what they are called in contenders.
func layouts(topics []string, partitions int) map[string]layout {
	columns := []string{"topic", "key", "type", "payload", "headers"}
	row := func(m seedMessage) []any { return []any{m.topic, m.key, eventType, m.payload, []byte("{}")} }
	offsets := article("outbox_offsets", "xmin", layout{
		columns: append(columns[:len(columns):len(columns)], "partition"),
		row:     func(m seedMessage) []any { return append(row(m), m.partition) },
		after:   firstOffsets(topics, partitions),
		left: `SELECT EXISTS (SELECT FROM outbox_offsets o, LATERAL (
			SELECT m.transaction_id, m.id FROM outbox_messages m WHERE m.topic = o.topic AND m.partition = o.partition ORDER BY m.transaction_id DESC, m.id DESC LIMIT 1
		) last WHERE (o.last_processed_transaction_id, o.last_processed_id) < (last.transaction_id, last.id))`,
	})
	serial := offsets
	serial.live = "SELECT pg_advisory_xact_lock(554738281823524)"
	serial.left = `SELECT EXISTS (SELECT FROM outbox_offsets o WHERE o.last_processed_id < (SELECT max(m.id) FROM outbox_messages m WHERE m.topic = o.topic AND m.partition = o.partition))`
	all := map[string]layout{
		"queue":    article("outbox_messages", "skiplocked", layout{columns: columns, row: row}),
		"reserved": article("outbox.outbox_messages", "lease", layout{columns: columns, row: row}),
		"offsets":  offsets, "serial": serial,
		"events": article("outbox_events", "skiplocked", layout{
			columns: []string{"id", "aggregate_type", "aggregate_id", "event_type", "payload", "dedup_key"},
			row: func(m seedMessage) []any {
				return []any{[16]byte(outbox.NewID()), m.topic, m.key, eventType, m.payload, fmt.Sprint(m.key, ":v", m.seq)}
			},
		}),
		"event": article("outbox_event", "advisory", layout{
			columns: []string{"id", "key", "payload", "topic", "published", "retry_count", "created_time"},
			row: func(m seedMessage) []any {
				return []any{outbox.NewID().String(), []byte(m.key), m.payload, m.topic, false, 0, time.Now().UTC()}
			},
			left: "SELECT EXISTS (SELECT FROM outbox_event WHERE published_time IS NULL)",
		}),
		"sequence": article("outbox", "advisory", layout{
			columns: []string{"aggregate_id", "aggregate_type", "payload", "sequence_number"},
			row:     func(m seedMessage) []any { return []any{m.key, m.topic, m.payload, m.seq} },
		}),
		"status": article("transaction_outbox", "lease", layout{
			columns: []string{"idempotency_key", "transaction_type", "transaction_ref_id", "payload"},
			row: func(m seedMessage) []any {
				return []any{fmt.Sprint(m.key, ":", m.seq), [2]string{"ad_create", "order_create"}[m.topicNo], m.key, m.payload}
			},
		}),
		"default": {
			table: pgx.Identifier{"outbox", "messages"}, columns: []string{"topic", "key", "event_type", "payload", "headers"},
			row: func(m seedMessage) []any { return []any{m.topic, m.key, eventType, m.payload, m.headers} },
		},
	}
	maps.Copy(all, foreignLayouts())
	return all
}
