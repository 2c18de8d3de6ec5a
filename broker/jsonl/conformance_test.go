package jsonl_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

var _ brokertest.Broker = (*jsonl.Broker)(nil)

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
			Topics: [2]string{"a", "b"}, Apart: true,
			Read: func(context.Context) ([]outbox.Message, error) { return readFiles(dir, files) },
		}
	})
}

func TestArchiveConformance(t *testing.T) {
	t.Parallel()
	relaytest.RunBroker(t, func(t *testing.T) relaytest.BrokerHarness {
		dir := t.TempDir()
		return relaytest.BrokerHarness{
			Open:   brokertest.Opener(func() (*jsonl.Broker, error) { return jsonl.NewArchive(dir, jsonl.ArchiveConfig{Size: 10_000}) }),
			Topics: [2]string{"a", "b"},
			Read:   func(context.Context) ([]outbox.Message, error) { return readArchive(dir) },
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
			Topics: [2]string{"a", "b"}, Anonymous: true,
			Read: func(context.Context) ([]outbox.Message, error) { return readFiles(dir, 1) },
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
			m, err := jsonl.Decode([]byte(line))
			if err != nil {
				return nil, fmt.Errorf("line %.80q: %w", line, err)
			}
			all = append(all, *m)
		}
	}
	return all, nil
}
