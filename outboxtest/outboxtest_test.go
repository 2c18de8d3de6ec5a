package outboxtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/outboxtest"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

func TestMain(m *testing.M) { servers.Main(m) }

func database(t *testing.T) string {
	t.Helper()
	url := servers.TestDatabase(t)
	outboxtest.Migrate(t, url)
	return url
}

// begin returns a transaction that the end of the test rolls back.
func begin(t testing.TB, url string) pgx.Tx {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func write(t *testing.T, tx pgx.Tx, msgs ...outbox.Message) []outbox.ID {
	t.Helper()
	var w outbox.Writer
	ids, err := w.Write(t.Context(), tx, msgs...)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// fullMessage has everything that a writer can set.
func fullMessage() outbox.Message {
	return outbox.Message{ID: outbox.NewID(), Topic: "orders",
		Key: "k", AggregateType: "order", AggregateID: "4711", EventType: "OrderPlaced",
		Payload: []byte(`{"total": 10}`), ContentType: "application/json",
		Headers:   []outbox.Header{{Name: "b", Value: "1"}, {Name: "aa", Value: `"<`}},
		DeliverAt: time.Date(2031, 1, 2, 3, 4, 5, 6000, time.UTC)}
}

func TestPublishedReadsEveryFieldInsideTheTransaction(t *testing.T) {
	t.Parallel()
	url := database(t)
	want := []outbox.Message{fullMessage(), {ID: outbox.NewID(), Topic: "null"}, {ID: outbox.NewID(), Topic: "empty", Payload: []byte{}}}
	check := func(q any) {
		t.Helper()
		got := outboxtest.Published(t, q)
		for i := range got {
			if got[i].Position == 0 || got[i].CreatedAt.IsZero() {
				t.Errorf("position %d, created at %v", got[i].Position, got[i].CreatedAt)
			}
			got[i].Position, got[i].CreatedAt = 0, time.Time{}
		}
		if g, w := fmt.Sprintf("%#v", got), fmt.Sprintf("%#v", want); g != w {
			t.Errorf("got  %s\nwant %s", g, w)
		}
	}

	tx := begin(t, url)
	write(t, tx, want...)
	check(tx)
	other := begin(t, url)
	outboxtest.RequireNone(t, other)

	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	sqlTx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer sqlTx.Rollback()
	var w outbox.Writer
	if _, err := w.WriteSQL(t.Context(), sqlTx, want...); err != nil {
		t.Fatal(err)
	}
	check(sqlTx)
	outboxtest.RequireNone(t, db)
}

func TestRequirePublishedFindsMessagesInOrderAmongOthers(t *testing.T) {
	t.Parallel()
	tx := begin(t, database(t))
	write(t, tx, outbox.Message{Topic: "a", Key: "1"}, outbox.Message{Topic: "b"},
		outbox.Message{Topic: "a", Key: "2"}, outbox.Message{Topic: "c"})

	found := outboxtest.RequirePublished(t, tx, outboxtest.Match{Topic: "a"}, outboxtest.Match{Topic: "a"}, outboxtest.Match{Topic: "c"})
	if len(found) != 3 || found[0].Key != "1" || found[1].Key != "2" || found[2].Topic != "c" {
		t.Errorf("found %+v", found)
	}
	outboxtest.RequireOnly(t, tx, outboxtest.Match{Topic: "a"},
		outboxtest.Match{}, outboxtest.Match{Key: "2"}, outboxtest.Match{Topic: "c"})
	outboxtest.RequireNone(t, tx, outboxtest.Match{Topic: "d"}, outboxtest.Match{Topic: "b", Key: "1"})
	if found := outboxtest.Published(t, tx, outboxtest.Match{Topic: "b"}, outboxtest.Match{Key: "2"}); len(found) != 2 ||
		found[0].Topic != "b" {
		t.Errorf("found %+v", found)
	}
}

func TestEveryFieldOfAMatchCounts(t *testing.T) {
	t.Parallel()
	tx := begin(t, database(t))
	m := fullMessage()
	write(t, tx, m)
	fits := []outboxtest.Match{
		{},
		{ID: m.ID, Topic: m.Topic, Key: m.Key, AggregateType: m.AggregateType, AggregateID: m.AggregateID, EventType: m.EventType,
			ContentType: m.ContentType, Payload: m.Payload, Headers: m.Headers, DeliverAt: m.DeliverAt.Add(1)},
		{JSON: `{ "total":10 }`},
		{Headers: m.Headers[1:]},
		{Where: func(m outbox.Message) bool { return m.Position > 0 }},
	}
	for _, match := range fits {
		outboxtest.RequireOnly(t, tx, match)
	}
	for want, match := range map[string]outboxtest.Match{
		"ID is " + m.ID.String():                   {ID: outbox.NewID()},
		`Topic is "orders"`:                        {Topic: "x"},
		`Key is "k"`:                               {Key: "x"},
		`AggregateType is "order"`:                 {AggregateType: "x"},
		`AggregateID is "4711"`:                    {AggregateID: "x"},
		`EventType is "OrderPlaced"`:               {EventType: "x"},
		`ContentType is "application/json"`:        {ContentType: "x"},
		"Payload is `{\"total\": 10}`":             {Payload: []byte("x")},
		"doesn't fit: Payload is":                  {JSON: `{"total": 10.5}`},
		`header "x" is missing`:                    {Headers: []outbox.Header{{Name: "x"}}},
		`header "b" is "1"`:                        {Headers: []outbox.Header{{Name: "b", Value: "2"}}},
		"DeliverAt is 2031-01-02T03:04:05.000006Z": {DeliverAt: time.Now()},
		"Where says no":                            {Where: func(outbox.Message) bool { return false }},
	} {
		text := failure(t, func(t testing.TB) { outboxtest.RequirePublished(t, tx, match) })
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
}

func TestAFailureShowsWhatWasThere(t *testing.T) {
	t.Parallel()
	url := database(t)
	tx := begin(t, url)
	ids := write(t, tx, outbox.Message{Topic: "orders", Key: "1", EventType: "OrderPlaced", Payload: []byte(`{"id":1}`)},
		outbox.Message{Topic: "orders", Key: "2", Payload: []byte{0xff, 0}})

	got := failure(t, func(t testing.TB) {
		outboxtest.RequirePublished(t, tx, outboxtest.Match{Topic: "orders", Key: "1"},
			outboxtest.Match{Topic: "orders", EventType: "OrderPaid"})
	})
	want := `outboxtest: no message fits {Topic: "orders", EventType: "OrderPaid"} after the one that fits {Topic: "orders", Key: "1"}
this transaction sees 2 messages:
  1. {ID: ` + ids[0].String() + `, Topic: "orders", Key: "1", EventType: "OrderPlaced", Payload: ` + "`{\"id\":1}`" + `}
     doesn't fit: EventType is "OrderPlaced"
  2. {ID: ` + ids[1].String() + `, Topic: "orders", Key: "2", Payload: 2 bytes in hexadecimal, ff00…}
     doesn't fit: EventType is ""`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}

	for want, fail := range map[string]func(t testing.TB){
		"want 1 message and no other\nthis transaction sees 2 messages:": func(t testing.TB) {
			outboxtest.RequireOnly(t, tx, outboxtest.Match{Key: "1"})
		},
		"want no message\nthis transaction sees 2 messages:": func(t testing.TB) { outboxtest.RequireNone(t, tx) },
		"want no message that fits {Key: \"2\"}\nthis transaction sees 1 message:": func(t testing.TB) {
			outboxtest.RequireNone(t, tx, outboxtest.Match{Key: "2"})
		},
		"int can't query: pass a pgx.Tx": func(t testing.TB) { outboxtest.Published(t, 3) },
		"this transaction sees no message": func(t testing.TB) {
			outboxtest.RequirePublished(t, begin(t, url), outboxtest.Match{Topic: "x"})
		},
		"connect to the test's database": func(t testing.TB) { outboxtest.Migrate(t, "postgres://127.0.0.1:1/x") },
		"fits, but stands before": func(t testing.TB) {
			outboxtest.RequirePublished(t, tx, outboxtest.Match{Key: "2"}, outboxtest.Match{Key: "1"})
		},
	} {
		if text := failure(t, fail); !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}

	if _, err := tx.Exec(t.Context(), `INSERT INTO outbox.messages (topic, headers) VALUES ('nonsense', '[1]')`); err != nil {
		t.Fatal(err)
	}
	if text := failure(t, func(t testing.TB) { outboxtest.Published(t, tx) }); !strings.Contains(text,
		`of topic "nonsense": headers are a JSON array, they must be an object`) {
		t.Error(text)
	}
}

// failure runs a test that must end by Fatal, and returns its text.
func failure(t *testing.T, test func(t testing.TB)) string {
	t.Helper()
	failing := &failingTest{TB: t}
	var all sync.WaitGroup
	all.Go(func() { test(failing) })
	all.Wait()
	if failing.text == "" {
		t.Fatal("the test did not fail")
	}
	return failing.text
}

type failingTest struct {
	testing.TB
	text string
}

func (f *failingTest) Fatal(args ...any) {
	f.text = fmt.Sprint(args...)
	runtime.Goexit()
}

func (f *failingTest) Fatalf(format string, args ...any) { f.Fatal(fmt.Sprintf(format, args...)) }

func TestARecorderIsABroker(t *testing.T) {
	t.Parallel()
	relaytest.RunBroker(t, func(*testing.T) relaytest.BrokerHarness {
		recorder := new(outboxtest.Recorder)
		return relaytest.BrokerHarness{
			Open:   func(*testing.T) relay.Broker { return recorder },
			Topics: [2]string{"a", "b"}, Anonymous: true,
			Read: func(context.Context) ([]outbox.Message, error) { return recorder.Messages(), nil },
		}
	})
}

func TestARecorderKeepsCopies(t *testing.T) {
	t.Parallel()
	var r outboxtest.Recorder
	m := outbox.Message{Topic: "t", Payload: []byte("a"), Headers: []outbox.Header{{Name: "n", Value: "v"}}}
	if errs := r.Publish(t.Context(), []*outbox.Message{&m}); errs != nil {
		t.Fatal(errs)
	}
	m.Payload[0], m.Headers[0].Value = 'b', "w"
	got := r.Messages()
	got[0].Payload[0] = 'c'
	if again := r.Messages(); len(again) != 1 || string(again[0].Payload) != "a" || again[0].Headers[0].Value != "v" {
		t.Errorf("%+v", again)
	}
}

func TestWaitReturnsOnceEnoughWasPublished(t *testing.T) {
	t.Parallel()
	var r outboxtest.Recorder
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() { r.Publish(t.Context(), []*outbox.Message{{Topic: "t"}}) })
	}
	got, err := r.Wait(t.Context(), 10)
	if err != nil || len(got) != 10 {
		t.Errorf("%d messages: %v", len(got), err)
	}
	all.Wait()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got, err = r.Wait(ctx, 11)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "10 of 11") || len(got) != 10 {
		t.Errorf("%d messages: %v", len(got), err)
	}
	errs := r.Publish(ctx, []*outbox.Message{{Topic: "t"}})
	if len(errs) != 1 || !outbox.IsUnavailable(errs[0]) || len(r.Messages()) != 10 {
		t.Errorf("publish after the end: %v", errs)
	}
}
