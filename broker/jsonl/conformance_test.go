package jsonl_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var (
	_ relay.Broker = (*jsonl.Broker)(nil)
	_ relay.Pinger = (*jsonl.Broker)(nil)
)

func TestFileConformance(t *testing.T) {
	t.Parallel()
	relaytest.RunBroker(t, func(t *testing.T) relaytest.BrokerHarness {
		dir := t.TempDir()
		files := 0
		return relaytest.BrokerHarness{
			// The suite opens several brokers at once; a file has one.
			Open: func(t *testing.T) relay.Broker {
				files++
				b, err := jsonl.Open(filepath.Join(dir, fmt.Sprintf("%d.jsonl", files)), jsonl.Config{})
				if err != nil {
					t.Fatal(err)
				}
				return b
			},
			Topics: [2]string{"a", "b"},
			Read:   func(context.Context) ([]outbox.Message, error) { return readFiles(dir, files) },
			Forget: brokertest.SortHeaders,
		}
	})
}

func TestWriterConformance(t *testing.T) {
	t.Parallel()
	relaytest.RunBroker(t, func(t *testing.T) relaytest.BrokerHarness {
		dir := t.TempDir()
		f, err := os.Create(filepath.Join(dir, "1.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return relaytest.BrokerHarness{
			Open:   func(t *testing.T) relay.Broker { return jsonl.New(f) },
			Topics: [2]string{"a", "b"},
			Read:   func(context.Context) ([]outbox.Message, error) { return readFiles(dir, 1) },
			Forget: brokertest.SortHeaders,
		}
	})
}

// readFiles reads 1.jsonl, 2.jsonl and so on as the documented format says.
func readFiles(dir string, n int) ([]outbox.Message, error) {
	var all []outbox.Message
	for i := 1; i <= n; i++ {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.jsonl", i)))
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			m, err := decodeLine(line)
			if err != nil {
				return nil, fmt.Errorf("line %.80q: %w", line, err)
			}
			all = append(all, m)
		}
	}
	return all, nil
}

func decodeLine(line string) (outbox.Message, error) {
	var l struct {
		ID            outbox.ID         `json:"id"`
		Position      int64             `json:"position"`
		Topic         string            `json:"topic"`
		Key           string            `json:"key"`
		AggregateType string            `json:"aggregate_type"`
		AggregateID   string            `json:"aggregate_id"`
		EventType     string            `json:"event_type"`
		ContentType   string            `json:"content_type"`
		Headers       map[string]string `json:"headers"`
		CreatedAt     time.Time         `json:"created_at"`
		Payload       json.RawMessage   `json:"payload"`
		PayloadBase64 []byte            `json:"payload_base64"`
	}
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		return outbox.Message{}, err
	}
	m := outbox.Message{
		ID: l.ID, Position: l.Position, Topic: l.Topic, Key: l.Key, AggregateType: l.AggregateType, AggregateID: l.AggregateID,
		EventType: l.EventType, ContentType: l.ContentType, CreatedAt: l.CreatedAt, Payload: l.PayloadBase64,
	}
	switch {
	case l.PayloadBase64 != nil || string(l.Payload) == "null":
	case strings.HasPrefix(l.ContentType, "application/json"):
		m.Payload = l.Payload
	default:
		var text string
		if err := json.Unmarshal(l.Payload, &text); err != nil {
			return m, err
		}
		m.Payload = []byte(text)
	}
	for name, value := range l.Headers {
		m.Headers = append(m.Headers, outbox.Header{Name: name, Value: value})
	}
	brokertest.SortHeaders(&m)
	return m, nil
}
