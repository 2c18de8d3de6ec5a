package webhook

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/pgoutbox/outbox"
)

// Content types of a batch and of the answer to it.
const (
	BatchType  = "application/vnd.pgoutbox.batch+jsonl"
	ResultType = "application/vnd.pgoutbox.results+jsonl"
)

// line is a message in a batch.
type line struct {
	ID            outbox.ID   `json:"id"`
	Position      int64       `json:"position,omitempty"`
	Topic         string      `json:"topic"`
	Key           string      `json:"key,omitempty"`
	AggregateType string      `json:"aggregate_type,omitempty"`
	AggregateID   string      `json:"aggregate_id,omitempty"`
	EventType     string      `json:"event_type,omitempty"`
	ContentType   string      `json:"content_type,omitempty"`
	Headers       [][2]string `json:"headers,omitempty"`
	CreatedAt     time.Time   `json:"created_at,omitzero"`
	DeliverAt     time.Time   `json:"deliver_at,omitzero"`
	Payload       []byte      `json:"payload"` // in base64; null is NULL
}

// Result is a receiver's answer to one message of a batch.
type Result struct {
	// Status is the HTTP status that the message would have been answered with by itself. 424 means that the message
	// was skipped because an earlier message of its key failed.
	Status int `json:"status"`
	// Error is why it was not accepted.
	Error string `json:"error,omitempty"`
	// RetryAfter is the number of seconds before which the receiver wants no repeat.
	RetryAfter int `json:"retry_after,omitempty"`
}

// UnmarshalJSON reads any number as RetryAfter. A pause that can't be read is none: it must not cost the outcomes.
func (r *Result) UnmarshalJSON(text []byte) error {
	var read struct {
		Status     int             `json:"status"`
		Error      string          `json:"error"`
		RetryAfter json.RawMessage `json:"retry_after"`
	}
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	*r = Result{Status: read.Status, Error: read.Error}
	if n, err := strconv.ParseFloat(string(read.RetryAfter), 64); err == nil || errors.Is(err, strconv.ErrRange) {
		r.RetryAfter = int(math.Ceil(Seconds(n).Seconds()))
	}
	return nil
}

// Seconds returns a pause that was asked for as a number of seconds, however large; 0 if there is none.
func Seconds(n float64) time.Duration {
	switch longest := time.Duration(math.MaxInt64).Truncate(time.Second); {
	case n >= longest.Seconds():
		return longest
	case n > 0:
		return time.Duration(n * float64(time.Second))
	}
	return 0 // or not a number
}

// WriteBatch writes batch as the body of one request.
func WriteBatch(w io.Writer, batch []*outbox.Message) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	for _, m := range batch {
		l := line{
			ID: m.ID, Position: m.Position, Topic: m.Topic, Key: m.Key, AggregateType: m.AggregateType, AggregateID: m.AggregateID,
			EventType: m.EventType, ContentType: m.ContentType,
			CreatedAt: m.CreatedAt.UTC(), DeliverAt: m.DeliverAt.UTC(), Payload: m.Payload,
		}
		for _, h := range m.Headers {
			l.Headers = append(l.Headers, [2]string{h.Name, h.Value})
		}
		if err := e.Encode(&l); err != nil {
			return fmt.Errorf("webhook: encode message %s: %w", m.ID, err)
		}
	}
	return nil
}

// ReadBatch returns the messages of a request's body, in order: at least one.
func ReadBatch(body []byte) ([]*outbox.Message, error) {
	var batch []*outbox.Message
	for d := json.NewDecoder(bytes.NewReader(body)); ; {
		var l line
		err := d.Decode(&l)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("webhook: message %d of the batch: %w", len(batch)+1, err)
		}
		m := &outbox.Message{
			ID: l.ID, Position: l.Position, Topic: l.Topic, Key: l.Key, AggregateType: l.AggregateType, AggregateID: l.AggregateID,
			EventType: l.EventType, ContentType: l.ContentType, CreatedAt: l.CreatedAt, DeliverAt: l.DeliverAt, Payload: l.Payload,
		}
		for _, h := range l.Headers {
			m.Headers = append(m.Headers, outbox.Header{Name: h[0], Value: h[1]})
		}
		batch = append(batch, m)
	}
	if len(batch) == 0 {
		return nil, errNoMessages
	}
	return batch, nil
}

// BatchID identifies a batch by the ids of its messages: a repeat of the same batch has the same id.
func BatchID(batch []*outbox.Message) string {
	h := sha256.New()
	for _, m := range batch {
		h.Write(m.ID[:])
	}
	return "batch_" + hex.EncodeToString(h.Sum(nil)[:16])
}

// ReadResults reads at most n results from an answer's body. There may be fewer or none; a message without a result has
// an unknown outcome.
func ReadResults(body []byte, n int) ([]Result, error) {
	results := make([]Result, 0, n)
	for d := json.NewDecoder(bytes.NewReader(body)); len(results) < n; {
		var r Result
		err := d.Decode(&r)
		if err == io.EOF {
			break
		}
		if err != nil {
			return results, fmt.Errorf("webhook: result %d: %w", len(results)+1, err)
		}
		results = append(results, r)
	}
	return results, nil
}
