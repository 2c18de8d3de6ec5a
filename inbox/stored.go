package inbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/schema"
)

// Headers of stored messages in addition to their own. Handlers don't see them.
const (
	consumerHeader  = "inbox-consumer"
	keyHeader       = "inbox-key"
	aggregateHeader = "inbox-aggregate-id"
)

// Destination is the name of the consumer's stored inbox among the destinations of the database: in
// outbox.cursors, holds and dead letters, and for the source of a Worker.
func (b *Inbox) Destination() string { return schema.InboxPrefix + b.consumer }

const storeSQL = `SELECT outbox.store($1::text, $2::text::uuid, $3::text, $4::boolean, $5::text, $6::text, $7::text, $8::text, $9::text,
	$10::bytea, $11::text, $12::jsonb)`

// Store puts messages into the consumer's stored inbox, for a [Worker] to apply later: all of them or, with an error,
// none. It is for consumers that must acknowledge fast, or whose handlers take long or fail often. Once it returns nil,
// the messages are durably stored and may be acknowledged. A message that was stored before is not stored again; the
// results tell which.
//
// It is one transaction and two round trips. Messages of one key are applied in the order in which they were stored;
// calls that store messages of one key must be made one after the other.
func (b *Inbox) Store(ctx context.Context, db DB, msgs ...*outbox.Message) ([]Result, error) {
	if len(msgs) == 0 {
		return nil, nil
	}
	if err := begins(db); err != nil {
		return nil, fmt.Errorf("inbox: %s: store: %w", b.consumer, err)
	}
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{})
	for _, msg := range msgs {
		args, err := b.stored(msg)
		if err != nil {
			return nil, b.failed(msg, err)
		}
		batch.Queue(storeSQL, args...)
	}
	results := db.SendBatch(ctx, batch)
	tx := results.Tx()
	committed := false
	defer func() {
		if !committed && tx != nil {
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
			defer cancel()
			_ = tx.Rollback(ending)
		}
	}()
	all, err := b.storedResults(results, msgs)
	if err != nil {
		return nil, err
	}
	committed = true
	if err := tx.Commit(ctx); err != nil {
		return nil, fmt.Errorf("inbox: %s: store: %w", b.consumer, explainEnd("commit", err))
	}
	return all, nil
}

func (b *Inbox) storedResults(results pgx.BatchResults, msgs []*outbox.Message) ([]Result, error) {
	_, err := results.Exec()
	all := make([]Result, len(msgs))
	at := 0
	for ; err == nil && at < len(msgs); at++ {
		var outcome string
		if err = results.QueryRow().Scan(&outcome); err != nil {
			break
		}
		if all[at], err = b.decide(record{}, outcome, nil); err != nil {
			_ = results.Close()
			return nil, b.failed(msgs[at], err)
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, b.failed(msgs[min(at, len(msgs)-1)], explain(err))
	}
	return all, nil
}

// stored are the arguments of storeSQL.
func (b *Inbox) stored(msg *outbox.Message) ([]any, error) {
	r, err := b.record(msg)
	if err != nil {
		return nil, err
	}
	if err := fits(msg); err != nil {
		return nil, outbox.Permanent(err)
	}
	headers := map[string]string{}
	for _, h := range msg.Headers {
		headers[h.Name] = h.Value
	}
	key, aggregate := msg.Key, msg.AggregateID
	if b.cfg.Unordered {
		for name, value := range map[string]string{keyHeader: key, aggregateHeader: aggregate} {
			if value != "" {
				headers[name] = value
			}
		}
		key, aggregate = "", ""
	}
	text, err := json.Marshal(headers)
	if err != nil {
		return nil, outbox.Permanent(fmt.Errorf("encode the headers: %w", err))
	}
	var payload any
	if msg.Payload != nil {
		payload = msg.Payload
	}
	return append(slices.Clone(r.args[:4]), msg.Topic, key, msg.AggregateType,
		aggregate, msg.EventType, payload, msg.ContentType, string(text)), nil
}

// fits returns what of a message can't be stored. A message beyond the outbox's limits that PostgreSQL can store is
// accepted: it has been received, and can't be refused to its sender any more.
func fits(msg *outbox.Message) error {
	if msg.Topic == "" {
		return errors.New("it has no topic")
	}
	for _, text := range []string{msg.Topic, msg.Key, msg.AggregateType, msg.AggregateID, msg.EventType, msg.ContentType} {
		if !storable(text) {
			return fmt.Errorf("%.40q can't be stored: it is not valid UTF-8, or has a NUL in it", text)
		}
	}
	for i, h := range msg.Headers {
		if !storable(h.Name) || !storable(h.Value) {
			return fmt.Errorf("the header %.40q can't be stored: it is not valid UTF-8, or has a NUL in it", h.Name)
		}
		if strings.HasPrefix(h.Name, "inbox-") {
			return fmt.Errorf("the header %.40q can't be stored: names that begin with inbox- are the inbox's own", h.Name)
		}
		if slices.ContainsFunc(msg.Headers[:i], func(o outbox.Header) bool { return o.Name == h.Name }) {
			return fmt.Errorf("the header %.40q is there twice, and one of them would be lost", h.Name)
		}
	}
	return nil
}

// restored is the message that was stored. It belongs to the handler, so it shares no memory with the engine's
// delivery, which is used again for a retry and for other messages.
func restored(stored *outbox.Message) outbox.Message {
	msg := *stored
	for _, text := range []*string{&msg.Topic, &msg.Key, &msg.AggregateType, &msg.AggregateID, &msg.EventType, &msg.ContentType} {
		*text = strings.Clone(*text)
	}
	msg.Payload = slices.Clone(msg.Payload)
	msg.Headers = nil
	for _, h := range stored.Headers {
		switch h.Name {
		case consumerHeader:
		case keyHeader:
			msg.Key = strings.Clone(h.Value)
		case aggregateHeader:
			msg.AggregateID = strings.Clone(h.Value)
		default:
			msg.Headers = append(msg.Headers, outbox.Header{Name: strings.Clone(h.Name), Value: strings.Clone(h.Value)})
		}
	}
	return msg
}
