package registry

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
)

const (
	avroText     = `{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}`
	avroNext     = `{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"n","type":"int","default":0}]}`
	protobufText = `syntax = "proto3"; message Order { int64 id = 1; }`
)

// setup starts a registry that counts its requests.
func setup(t *testing.T, options ...srfake.Option) (*srfake.Registry, *atomic.Int64) {
	t.Helper()
	registry := srfake.New(options...)
	t.Cleanup(registry.Close)
	var requests atomic.Int64
	registry.Intercept(func(http.ResponseWriter, *http.Request) bool {
		requests.Add(1)
		return false
	})
	return registry, &requests
}

func framer(t *testing.T, cfg Config) *Framer {
	t.Helper()
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func message(headers ...outbox.Header) *outbox.Message {
	return &outbox.Message{Topic: "orders", Payload: []byte("data"), Headers: headers}
}

// frame frames m and reads it back by the library's own reader.
func frame(t *testing.T, f *Framer, m *outbox.Message, protobuf bool) (id int, index []int) {
	t.Helper()
	if err := f.Frame(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	var reader sr.ConfluentHeader
	id, rest, err := reader.DecodeID(m.Payload)
	if err != nil {
		t.Fatal(err)
	}
	if protobuf {
		if index, rest, err = reader.DecodeIndex(rest, 10); err != nil {
			t.Fatal(err)
		}
	}
	if string(rest) != "data" {
		t.Fatalf("the data is %q", rest)
	}
	return id, index
}

func TestThePureFormatAgreesWithTheLibrarys(t *testing.T) {
	t.Parallel()
	var library sr.ConfluentHeader
	for _, index := range [][]int{nil, {0}, {1}, {1, 0}, {63, 64, 8191, 8192}} {
		want, err := library.AppendEncode(nil, 77, index)
		if err != nil {
			t.Fatal(err)
		}
		if got := format.AppendFrame(nil, 77, index); !slices.Equal(got, want) {
			t.Errorf("%v: %x, want %x", index, got, want)
		}
	}
}

func TestTheLatestVersionOfTheSubjectIsAskedForOnce(t *testing.T) {
	t.Parallel()
	registry, requests := setup(t)
	registry.SeedSchema("orders-value", 1, 11, sr.Schema{Schema: avroText})
	f := framer(t, Config{URLs: []string{registry.URL()}})
	now := time.Now()
	f.now = func() time.Time { return now }
	for range 100 {
		if id, _ := frame(t, f, message(), false); id != 11 {
			t.Fatalf("the id is %d", id)
		}
	}
	if n := requests.Load(); n != 1 {
		t.Errorf("%d requests for one subject", n)
	}
	registry.SeedSchema("orders-value", 2, 12, sr.Schema{Schema: avroNext})
	now = now.Add(4 * time.Minute)
	if id, _ := frame(t, f, message(), false); id != 11 {
		t.Errorf("the id is %d before it is asked for again", id)
	}
	now = now.Add(2 * time.Minute)
	if id, _ := frame(t, f, message(), false); id != 12 {
		t.Errorf("the id is %d though there is a newer one", id)
	}
}

func TestAHeaderNamesTheSchemaWithoutTheRegistry(t *testing.T) {
	t.Parallel()
	registry, requests := setup(t)
	f := framer(t, Config{URLs: []string{registry.URL()}})
	m := message(outbox.Header{Name: "a", Value: "b"}, outbox.Header{Name: "schema-id", Value: "42"},
		outbox.Header{Name: "schema-index", Value: "1, 0"})
	id, index := frame(t, f, m, true)
	if id != 42 || !slices.Equal(index, []int{1, 0}) || requests.Load() != 0 {
		t.Errorf("id %d, index %v, %d requests", id, index, requests.Load())
	}
	if !slices.Equal(m.Headers, []outbox.Header{{Name: "a", Value: "b"}}) {
		t.Errorf("the headers are %v", m.Headers)
	}
	for _, wrong := range []outbox.Header{{Name: "schema-id", Value: "0"},
		{Name: "schema-id", Value: "x"}, {Name: "schema-id", Value: "4294967296"}, {Name: "schema-id", Value: ""}} {
		if err := f.Frame(t.Context(), message(wrong)); !outbox.IsPermanent(err) {
			t.Errorf("%v: %v", wrong, err)
		}
	}
	err := f.Frame(t.Context(), message(outbox.Header{Name: "schema-id", Value: "1"}, outbox.Header{Name: "schema-index", Value: "1,x"}))
	if !outbox.IsPermanent(err) {
		t.Errorf("an index that is none: %v", err)
	}
	tombstone := &outbox.Message{Topic: "orders"}
	if err := f.Frame(t.Context(), tombstone); err != nil || tombstone.Payload != nil {
		t.Errorf("a tombstone became %q, %v", tombstone.Payload, err)
	}
}

func TestProtobufHasAnIndex(t *testing.T) {
	t.Parallel()
	registry, _ := setup(t)
	registry.SeedSchema("orders-value", 1, 3, sr.Schema{Schema: protobufText, Type: sr.TypeProtobuf})
	f := framer(t, Config{URLs: []string{registry.URL()}})
	if id, index := frame(t, f, message(), true); id != 3 || !slices.Equal(index, []int{0}) {
		t.Errorf("id %d, index %v", id, index)
	}
	if id, index := frame(t, f, message(outbox.Header{Name: "schema-index", Value: "2"}), true); id != 3 || !slices.Equal(index, []int{2}) {
		t.Errorf("id %d, index %v", id, index)
	}
	f = framer(t, Config{URLs: []string{registry.URL()}, Protobuf: true})
	if _, index := frame(t, f, message(outbox.Header{Name: "schema-id", Value: "3"}), true); !slices.Equal(index, []int{0}) {
		t.Errorf("index %v", index)
	}
}

func TestASchemaIsRegisteredOnlyIfAskedFor(t *testing.T) {
	t.Parallel()
	registry, requests := setup(t)
	schemas := []Schema{{Subject: "orders-value", Type: "avro", Text: avroText}}
	f := framer(t, Config{URLs: []string{registry.URL()}, Schemas: schemas})
	err := f.Frame(t.Context(), message())
	if err == nil || outbox.IsPermanent(err) || outbox.IsUnavailable(err) || !strings.Contains(err.Error(), "orders-value") {
		t.Fatalf("a schema that isn't registered: %v", err)
	}
	if registry.SubjectExists("orders-value") {
		t.Fatal("it was registered")
	}
	asked := requests.Load()
	if err := f.Frame(t.Context(), message()); err == nil || requests.Load() != asked {
		t.Errorf("a missing subject is asked for with each message: %v", err)
	}

	f = framer(t, Config{URLs: []string{registry.URL()}, Schemas: schemas, Register: true})
	first, _ := frame(t, f, message(), false)
	if s, ok := registry.GetSchema("orders-value", 1); !ok || s.ID != first {
		t.Errorf("the registry has %+v, the frame %d", s, first)
	}
	// A later version doesn't matter to whoever has the text.
	registry.SeedSchema("orders-value", 2, 99, sr.Schema{Schema: avroNext})
	f = framer(t, Config{URLs: []string{registry.URL()}, Schemas: schemas})
	if id, _ := frame(t, f, message(), false); id != first {
		t.Errorf("the id is %d, want %d", id, first)
	}
}

func TestAMissingSubjectIsFoundOnceItIsThere(t *testing.T) {
	t.Parallel()
	registry, _ := setup(t)
	f := framer(t, Config{URLs: []string{registry.URL()}, Subject: "shop.{event_type}"})
	now := time.Now()
	f.now = func() time.Time { return now }
	m := message()
	m.EventType = "Created"
	if err := f.Frame(t.Context(), m); err == nil || !strings.Contains(err.Error(), `"shop.Created"`) {
		t.Fatal(err)
	}
	registry.SeedSchema("shop.Created", 1, 5, sr.Schema{Schema: avroText})
	now = now.Add(missingFor)
	if id, _ := frame(t, f, m, false); id != 5 {
		t.Errorf("the id is %d", id)
	}
}

func TestARegistryThatDoesNotAnswerIsAnOutage(t *testing.T) {
	t.Parallel()
	registry, _ := setup(t, srfake.WithAuth("Basic dTpw")) // u:p
	registry.SeedSchema("orders-value", 1, 5, sr.Schema{Schema: avroText})
	f := framer(t, Config{URLs: []string{registry.URL()}, Username: "u", Password: "wrong"})
	err := f.Frame(t.Context(), message())
	if !outbox.IsUnavailable(err) || strings.Contains(err.Error(), "wrong") {
		t.Errorf("wrong credentials: %v", err)
	}
	f = framer(t, Config{URLs: []string{registry.URL()}, Username: "u", Password: "p"})
	frame(t, f, message(), false)

	gone, _ := setup(t)
	gone.Close()
	f = framer(t, Config{URLs: []string{gone.URL()}})
	if err := f.Frame(t.Context(), message()); !outbox.IsUnavailable(err) {
		t.Errorf("nobody listens: %v", err)
	}
	f = framer(t, Config{URLs: []string{gone.URL(), registry.URL()}, Username: "u", Password: "p"})
	frame(t, f, message(), false)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f = framer(t, Config{URLs: []string{registry.URL()}})
	if err := f.Frame(ctx, message()); !outbox.IsUnavailable(err) {
		t.Errorf("a context that has ended: %v", err)
	}
}

func TestFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := New(Config{URLs: []string{"registry:8081", "http://user:secret@registry"}, Username: "u", Token: "t", Subject: "{x}",
		Schemas: []Schema{{Subject: "a", Type: "xml", Text: "x"}, {Subject: "a", Type: "json"}}, Timeout: -1})
	if err == nil {
		t.Fatal("nothing is wrong")
	}
	for _, part := range []string{"URLs[0]", "URLs[1]", "keep one way to authenticate",
		"Subject", "Schemas[0].Type", "Schemas[1].Subject", "Schemas[1].Text", "Timeout"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("nothing about %s in:\n%v", part, err)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the password shows: %v", err)
	}
	if _, err := New(Config{Password: "p", Register: true}); err == nil ||
		!strings.Contains(err.Error(), "URLs: none") || !strings.Contains(err.Error(), "they are to be registered") {
		t.Errorf("%v", err)
	}
}
