package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/internal/headers"
	"github.com/pgoutbox/outbox/schema"
)

// Masked is shown in place of a hidden value. It can't be written back: see [EditDead].
const Masked = "***"

// Edit is a change of a dead letter. The key and the aggregate can't be changed, because the order depends on them.
type Edit struct {
	Topic, EventType, ContentType *string            // nil leaves it; an empty type removes it
	Headers                       map[string]*string // nil removes the header
	Payload                       []byte             // nil leaves it
	Merge                         []byte             // a merge patch (RFC 7396) for a payload of JSON

	// Restore makes the message what it was before it was edited first. It goes alone.
	Restore bool
}

// fields names what e changes, for the audit, which has no values: they may be secrets.
func (e Edit) fields() (names []string) {
	for name, given := range map[string]bool{"topic": e.Topic != nil, "event_type": e.EventType != nil,
		"content_type": e.ContentType != nil,
		"payload":      e.Payload != nil || e.Merge != nil, "restore": e.Restore} {
		if given {
			names = append(names, name)
		}
	}
	for name := range e.Headers {
		names = append(names, "header."+name)
	}
	slices.Sort(names)
	return names
}

// Validate reports what can't be, whatever the message is.
func (e Edit) Validate() error {
	fields := e.fields()
	texts := []*string{e.Topic, e.EventType, e.ContentType}
	for _, text := range e.Headers {
		texts = append(texts, text)
	}
	masked := bytes.Contains(e.Payload, []byte(Masked)) || bytes.Contains(e.Merge, []byte(Masked)) ||
		slices.ContainsFunc(texts, func(text *string) bool { return text != nil && strings.Contains(*text, Masked) })
	switch {
	case len(fields) == 0:
		return errors.New("nothing is edited: give fields, a merge patch, a payload or restore")
	case e.Restore && len(fields) > 1:
		return errors.New("restore goes alone")
	case e.Payload != nil && e.Merge != nil:
		return errors.New("a payload and a merge patch exclude each other")
	case masked:
		return fmt.Errorf("what is masked can't be written back: a value contains %s: give the part that changes as a merge patch", Masked)
	}
	if e.Merge != nil {
		if _, err := admin.DecodeJSON(e.Merge); err != nil {
			return fmt.Errorf("the merge patch is not JSON: %w", err)
		}
	}
	return nil
}

// apply changes m.
func (e Edit) apply(m *outbox.Message) error {
	for _, f := range []struct{ new, field *string }{{e.Topic, &m.Topic}, {e.EventType, &m.EventType}, {e.ContentType, &m.ContentType}} {
		if f.new != nil {
			*f.field = *f.new
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		i := slices.IndexFunc(m.Headers, func(h outbox.Header) bool { return h.Name == name })
		switch text := e.Headers[name]; {
		case i >= 0 && text != nil:
			m.Headers[i].Value = *text
		case i >= 0:
			m.Headers = slices.Delete(m.Headers, i, i+1)
		case text != nil:
			m.Headers = append(m.Headers, outbox.Header{Name: name, Value: *text})
		}
	}
	if e.Payload != nil {
		m.Payload = e.Payload
	}
	if e.Merge != nil {
		target, err := admin.DecodeJSON(m.Payload)
		if err != nil {
			return fmt.Errorf("the payload is not JSON, so that nothing can be merged into it: give the whole payload: %w", err)
		}
		patch, err := admin.DecodeJSON(e.Merge)
		if err != nil {
			return err
		}
		if m.Payload, err = encodeJSON(mergePatch(target, patch)); err != nil {
			return err
		}
	}
	if len(m.Payload) > outbox.MaxPayloadBytes {
		return fmt.Errorf("the payload has %d bytes, the limit is %d", len(m.Payload), outbox.MaxPayloadBytes)
	}
	return m.Validate()
}

// mergePatch is RFC 7396: members of the patch replace those of the target, null removes them.
func mergePatch(target, patch any) any {
	members, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	result, ok := target.(map[string]any)
	if !ok {
		result = map[string]any{}
	}
	for name, member := range members {
		if member == nil {
			delete(result, name)
		} else {
			result[name] = mergePatch(result[name], member)
		}
	}
	return result
}

func encodeJSON(value any) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}

// EditDead changes the one dead letter that s selects and returns it, with its payload. It stays a dead letter, to be
// requeued. What it was before its first edit is kept until it is delivered, or its original is restored. A value that
// contains [Masked] is refused.
func EditDead(ctx context.Context, db admin.DB, s find.Selection, e Edit, action admin.Action) (letter find.DeadLetter, err error) {
	if s.Blocked || s.Discarded {
		return letter, errors.New("dead letters alone can be edited")
	}
	if err := e.Validate(); err != nil {
		return letter, err
	}
	err = admin.Write(ctx, db, action, func(tx pgx.Tx) error {
		if letter, err = lockLetter(ctx, tx, s); err != nil {
			return err
		}
		args := []any{letter.Destination, letter.Position, letter.MessageID.String()}
		if e.Restore {
			if letter.Original == nil {
				return errors.New("it was never edited, so nothing is to be restored")
			}
			_, err = tx.Exec(ctx, restoreOriginalSQL, args...)
		} else {
			err = storeEdit(ctx, tx, letter, e, args)
		}
		if err != nil {
			return err
		}
		err = admin.Record(ctx, tx, action, "edit", letter.Destination,
			map[string]any{"message_id": letter.MessageID, "position": letter.Position, "fields": e.fields()})
		if err != nil {
			return err
		}
		letter, err = lockLetter(ctx, tx, s)
		return err
	})
	if err != nil {
		return find.DeadLetter{}, fmt.Errorf("edit a dead letter: %w", err)
	}
	return letter, nil
}

// lockLetter reads the only letter that s selects, and locks it against a job and another edit.
func lockLetter(ctx context.Context, tx pgx.Tx, s find.Selection) (letter find.DeadLetter, err error) {
	if _, err := tx.Exec(ctx, `SELECT FROM outbox.dead_letters WHERE `+s.Where()+` LIMIT 2 FOR UPDATE`, s.Args()...); err != nil {
		return letter, err
	}
	letters, err := find.ReadDeadLetters(ctx, tx, s, find.Page{Limit: 2, Payload: true})
	switch {
	case err != nil:
		return letter, err
	case len(letters) == 0:
		return letter, fmt.Errorf("%w: no dead letter is selected: list them with: outbox dead ls", admin.ErrNotFound)
	case len(letters) > 1:
		return letter, errors.New("several dead letters are selected, and one is edited at a time: add the " +
			"destination, or give the message id")
	}
	return letters[0], nil
}

// The first edit keeps what was written; a later one leaves that as it is.
const keepOriginalSQL = `
	UPDATE outbox.dead_letters SET
		original = coalesce(original, jsonb_build_object('topic', topic, 'event_type', event_type, 'content_type', content_type,
			'headers', headers::text)),
		original_payload = CASE WHEN original IS NULL THEN payload ELSE original_payload END,
		topic = $4, event_type = nullif($5, ''), content_type = nullif($6, ''),
		headers = CASE WHEN $9 THEN $7::text::json ELSE headers END, payload = $8
	WHERE destination = $1 AND id = $2 AND message_id = $3::text::uuid`

const restoreOriginalSQL = `
	UPDATE outbox.dead_letters SET
		topic = original ->> 'topic', event_type = original ->> 'event_type', content_type = original ->> 'content_type',
		headers = (original ->> 'headers')::json, payload = original_payload, original = NULL, original_payload = NULL
	WHERE destination = $1 AND id = $2 AND message_id = $3::text::uuid`

// storeEdit writes the edited message. Headers that the edit doesn't name stay as they are stored, even if they are the
// reason why the message died.
func storeEdit(ctx context.Context, tx pgx.Tx, letter find.DeadLetter, e Edit, row []any) (err error) {
	m := outbox.Message{Topic: letter.Topic, EventType: letter.EventType, ContentType: letter.ContentType, Payload: letter.Payload}
	if len(e.Headers) > 0 {
		if m.Headers, err = editedHeaders(letter.Headers, e.Headers); err != nil {
			return err
		}
	}
	if err := e.apply(&m); err != nil {
		return err
	}
	stored, err := headerText(m.Headers)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, keepOriginalSQL, append(row, schema.Storable(tx.Conn(), m.Topic), schema.Storable(tx.Conn(), m.EventType),
		schema.Storable(tx.Conn(), m.ContentType), stored, m.Payload, len(e.Headers) > 0)...)
	return err
}

// editedHeaders reads headers as a relay does, in their order. A header that is edited may be one that can't be
// delivered. Headers that are no object can't be delivered, so the edited ones replace them.
func editedHeaders(stored json.RawMessage, edited map[string]*string) (all []outbox.Header, err error) {
	all, broken, err := headers.ParseBroken(string(stored))
	if errors.Is(err, headers.ErrNotObject) {
		return nil, nil
	}
	for _, h := range all {
		if _, ok := edited[h.Name]; broken[h.Name] && !ok {
			return nil, fmt.Errorf("header %q can't be delivered: it has one half of a surrogate pair: change or remove it as well", h.Name)
		}
	}
	return all, err
}

// headerText is a JSON object, in the order of the headers, or nil.
func headerText(headers []outbox.Header) (*string, error) {
	if len(headers) == 0 {
		return nil, nil
	}
	var members []string
	for _, h := range headers {
		name, err := encodeJSON(h.Name)
		if err != nil {
			return nil, err
		}
		value, err := encodeJSON(h.Value)
		if err != nil {
			return nil, err
		}
		members = append(members, string(name)+":"+string(value))
	}
	text := "{" + strings.Join(members, ",") + "}"
	return &text, nil
}
