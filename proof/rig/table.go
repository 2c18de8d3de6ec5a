package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/schema"
)

// Table is an outbox that a [Load] writes to, and what the database can be asked about its delivery.
type Table struct {
	// Create makes it in an empty database.
	Create func(context.Context, *pgx.Conn) error
	// Write writes a message in a transaction that has locked the row of its key.
	Write func(context.Context, pgx.Tx, Message) error

	// Mark is the query of a text that stands for everything which is committed now; Passed ($1: a mark), whether all
	// of that is settled.
	Mark, Passed string
	// Owner is the query of the name of a relay that delivers, '' while none does.
	Owner string
	// Delivered is the query of how many messages are settled, Held of how many wait for another attempt.
	Delivered, Held string
	// Dead is the query of the dead letters' payloads and errors; empty if the table can have none.
	Dead string
}

// Message is what a [Load] writes: a number within a key, and the payload that says so.
type Message struct {
	Topic   string
	Key     int
	Seq     uint64
	Payload []byte
}

// KeyText is the key as it is written.
func (m Message) KeyText() string { return "account-" + strconv.Itoa(m.Key) }

// JSON is the payload for columns that take nothing else. [Unwrap] undoes it.
func (m Message) JSON() string {
	text, _ := json.Marshal(wrapped{m.Payload}) // of bytes
	return string(text)
}

type wrapped struct {
	Check []byte `json:"check"`
}

// Unwrap returns the payload that JSON has wrapped, and any other as it is.
func Unwrap(payload []byte) []byte {
	var w wrapped
	if !bytes.HasPrefix(payload, []byte("{")) || json.Unmarshal(payload, &w) != nil {
		return payload
	}
	return w.Check
}

// Poison is the payload of messages that a test writes beside the load, and that are never to be delivered.
const Poison = "poison"

// DefaultTable is outbox.messages.
func DefaultTable() *Table {
	var writer outbox.Writer
	return &Table{
		Create: func(ctx context.Context, conn *pgx.Conn) error {
			_, err := schema.Up(ctx, conn, schema.UpConfig{})
			return err
		},
		Write: func(ctx context.Context, tx pgx.Tx, m Message) error {
			_, err := writer.Write(ctx, tx, outbox.Message{Topic: m.Topic, Key: m.KeyText(), Payload: m.Payload})
			return err
		},
		Mark: "SELECT pg_current_xact_id()::text", // drawn and committed
		Passed: `SELECT coalesce(bool_or(d.passed), false) FROM (
			SELECT bool_and(pg_visible_in_snapshot($1::text::xid8, prev)) AS passed FROM outbox.cursors GROUP BY destination
		) d`,
		Owner:     "SELECT coalesce(max(owner), '') FROM outbox.cursors WHERE lease_until > clock_timestamp()",
		Delivered: "SELECT coalesce(sum(delivered), 0)::bigint FROM outbox.cursors",
		Held:      "SELECT count(*) FROM outbox.holds",
		Dead:      "SELECT payload, error FROM outbox.dead_letters WHERE payload <> '" + Poison + "'",
	}
}
