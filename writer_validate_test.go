package outbox_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
)

// limitCase is a message that the Go writer and outbox.publish must judge alike.
type limitCase struct {
	name    string
	message outbox.Message
	fault   string // what both errors contain, "" for a message that both accept
}

func headers(n int, size int) []outbox.Header {
	list := make([]outbox.Header, n)
	for i := range list {
		list[i].Name = string(rune('A'+i/26)) + string(rune('a'+i%26))
		list[i].Value = strings.Repeat("v", size-2)
	}
	return list
}

func limitCases() []limitCase {
	text := func(n int) string { return strings.Repeat("x", n) }
	with := func(name, value string) []outbox.Header { return []outbox.Header{{Name: name, Value: value}} }
	cases := []limitCase{
		{"topic at the limit", outbox.Message{Topic: text(outbox.MaxTopicBytes)}, ""},
		{"topic beyond", outbox.Message{Topic: text(outbox.MaxTopicBytes + 1)}, "has 250 bytes, the limit is 249"},
		{"topic of wide characters", outbox.Message{Topic: strings.Repeat("漢", 84)}, "has 252 bytes, the limit is 249"},
		{"no topic", outbox.Message{}, "is empty"},
		{"key at the limit", outbox.Message{Topic: "t", Key: text(outbox.MaxKeyBytes)}, ""},
		{"key beyond", outbox.Message{Topic: "t", Key: text(outbox.MaxKeyBytes + 1)}, "has 1025 bytes, the limit is 1024"},
		{"key with LF", outbox.Message{Topic: "t", Key: "a\nb"}, "contains CR or LF"},
		{"aggregate id beyond", outbox.Message{Topic: "t", Key: "k", AggregateID: text(outbox.MaxKeyBytes + 1)},
			"has 1025 bytes, the limit is 1024"},
		{"aggregate type beyond", outbox.Message{Topic: "t", AggregateType: text(outbox.MaxTypeBytes + 1)},
			"has 1025 bytes, the limit is 1024"},
		{"event type beyond", outbox.Message{Topic: "t", EventType: text(outbox.MaxTypeBytes + 1)}, "has 1025 bytes, the limit is 1024"},
		{"event type with CR", outbox.Message{Topic: "t", EventType: "a\r"}, "contains CR or LF"},
		{"content type beyond", outbox.Message{Topic: "t", ContentType: text(outbox.MaxTypeBytes + 1)},
			"has 1025 bytes, the limit is 1024"},
		{"types at the limit", outbox.Message{Topic: "t", AggregateType: text(outbox.MaxTypeBytes), AggregateID: text(outbox.MaxKeyBytes),
			EventType: text(outbox.MaxTypeBytes), ContentType: text(outbox.MaxTypeBytes)}, ""},
		{"payload at the limit", outbox.Message{Topic: "t", Payload: make([]byte, outbox.MaxPayloadBytes)}, ""},
		{"payload beyond", outbox.Message{Topic: "t", Payload: make([]byte, outbox.MaxPayloadBytes+1)},
			"has 1000001 bytes, the limit is 1000000"},
		{"headers at the limit",
			outbox.Message{Topic: "t", Headers: headers(outbox.MaxHeaders, outbox.MaxHeaderBytes/outbox.MaxHeaders)}, ""},
		{"too many headers", outbox.Message{Topic: "t", Headers: headers(outbox.MaxHeaders+1, 4)}, "65 headers"},
		{"headers too large", outbox.Message{Topic: "t", Headers: headers(1, outbox.MaxHeaderBytes+1)}, "32769 bytes"},
		{"header without a name", outbox.Message{Topic: "t", Headers: with("", "v")}, "empty name"},
		{"header name with CR", outbox.Message{Topic: "t", Headers: with("a\rb", "v")}, "CR or LF"},
		{"header value with LF", outbox.Message{Topic: "t", Headers: with("a", "v\n")}, "CR or LF"},
		{"header value with everything else", outbox.Message{Topic: "t", Headers: with("a", "ü漢\u0002\u2028 \"\\")}, ""},
		{"reserved header", outbox.Message{Topic: "t", Headers: with("outbox-id", "v")}, "begins with outbox-"},
		{"reserved header in other letters", outbox.Message{Topic: "t", Headers: with("OutBox-Mine", "v")}, "begins with outbox-"},
		{"header that is not quite reserved", outbox.Message{Topic: "t", Headers: with("outboxes", "v")}, ""},
		{"delivered before Unix", outbox.Message{Topic: "t", DeliverAt: time.Unix(-1, 0)}, "it must be in the years 1970 to 9999"},
		{"milliseconds taken for seconds", outbox.Message{Topic: "t", DeliverAt: time.Unix(1_700_000_000_000, 0)},
			"it must be in the years 1970 to 9999"},
		{"last moment", outbox.Message{Topic: "t", DeliverAt: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)}, ""},
	}
	// Every character that one of the two could see differently.
	for r := rune(1); r <= 0x200; r++ {
		fault := "no protocol can carry"
		switch {
		case r == '\r' || r == '\n':
			fault = "CR or LF"
		case r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("!#$%&'*+-.^_`|~", r)):
			fault = ""
		}
		cases = append(cases,
			limitCase{"header name with " + string(r), outbox.Message{Topic: "t", Headers: with("a"+string(r), "v")}, fault})
	}
	for r := rune(1); r <= 0x3100; r++ {
		switch {
		case unicode.IsSpace(r) || unicode.IsControl(r):
			cases = append(cases,
				limitCase{"topic with " + string(r), outbox.Message{Topic: "a" + string(r)}, "contains white space or a control character"})
		case r < 0x100 || r >= 0x1ff0 && r < 0x2070 || unicode.In(r, unicode.Zs, unicode.Zl, unicode.Zp, unicode.Cf):
			cases = append(cases, limitCase{"topic with " + string(r), outbox.Message{Topic: "a" + string(r)}, ""})
		}
	}
	return cases
}

func TestTheGoWriterAndThePublishFunctionHaveTheSameLimits(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		var w outbox.Writer
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range limitCases() {
			byGo := pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
				_, err := w.Write(t.Context(), tx, c.message)
				return err
			})
			bySQL := pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error { return publish(t, tx, c.message) })
			for who, err := range map[string]error{"the writer": byGo, "outbox.publish": bySQL} {
				if (err == nil) != (c.fault == "") || (err != nil && !strings.Contains(err.Error(), c.fault)) {
					t.Errorf("%q: %s says %v, want %q", c.name, who, err, c.fault)
				}
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func publish(t *testing.T, tx pgx.Tx, m outbox.Message) error {
	t.Helper()
	var deliverAt *time.Time
	if !m.DeliverAt.IsZero() {
		deliverAt = &m.DeliverAt
	}
	var list map[string]string
	if m.Headers != nil {
		list = map[string]string{}
	}
	for _, h := range m.Headers {
		list[h.Name] = h.Value
	}
	_, err := tx.Exec(t.Context(), `SELECT outbox.publish(topic => $1::text, payload => $2::bytea, key => $3::text, headers => $4::jsonb,
		aggregate_type => $5::text, aggregate_id => $6::text, event_type => $7::text, content_type => $8::text, deliver_at => $9::timestamptz)`,
		m.Topic, m.Payload, m.Key, list, m.AggregateType, m.AggregateID, m.EventType, m.ContentType, deliverAt)
	return err
}

func TestFaultsThatOnlyGoCanHaveAreRefusedToo(t *testing.T) {
	t.Parallel()
	for field, m := range map[string]outbox.Message{
		"Topic":         {Topic: "a\xff"},
		"Key":           {Topic: "t", Key: "\x00"},
		"AggregateType": {Topic: "t", AggregateType: "\xc3"},
		"AggregateID":   {Topic: "t", AggregateID: "a\x00"},
		"EventType":     {Topic: "t", EventType: "\xed\xa0\x80"},
		"ContentType":   {Topic: "t", ContentType: "\x00"},
		`Headers["a"]`:  {Topic: "t", Headers: []outbox.Header{{Name: "a", Value: "1"}, {Name: "a", Value: "2"}}},
		`Headers["b"]`:  {Topic: "t", Headers: []outbox.Header{{Name: "b", Value: "\x00"}}},
		"Headers[0]":    {Topic: "t", Headers: []outbox.Header{{Name: ""}}},
	} {
		_, err := new(outbox.Writer).Write(t.Context(), unusedTx{}, m)
		var invalid *outbox.ValidationError
		if !errors.As(err, &invalid) || invalid.Field != field || invalid.Reason == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// unusedTx panics when anything is sent.
type unusedTx struct{ pgx.Tx }

func TestAllFaultsOfACallAreReportedTogether(t *testing.T) {
	t.Parallel()
	w, err := outbox.NewWriter(outbox.WriterConfig{MaxPayloadBytes: 3})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Write(t.Context(), unusedTx{},
		outbox.Message{Topic: "fine"},
		outbox.Message{Topic: "a b", Payload: []byte("four")},
		outbox.Message{},
	)
	want := `outbox: write: message 1: Topic contains white space or a control character (' ' at byte 1)
message 1: Payload has 4 bytes, the limit is 3
message 2: Topic is empty, and every message needs one`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	var invalid *outbox.ValidationError
	if !errors.As(err, &invalid) || invalid.Index != 1 {
		t.Errorf("%+v", invalid)
	}
	_, err = w.Write(t.Context(), unusedTx{}, slices.Repeat([]outbox.Message{{}}, 1000)...)
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 21 || lines[20] != "and 980 more faults" {
		t.Errorf("a thousand faults became %d lines", len(lines))
	}
}

func TestAPayloadMayBeAsLargeAsConfigured(t *testing.T) {
	t.Parallel()
	conn := connect(t, database(t))
	w, err := outbox.NewWriter(outbox.WriterConfig{MaxPayloadBytes: 3 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var invalid *outbox.ValidationError
	inTx(t, conn, func(tx pgx.Tx) error {
		if _, err := w.Write(t.Context(), tx, outbox.Message{Topic: "t", Payload: make([]byte, 3<<20+1)}); !errors.As(err, &invalid) ||
			invalid.Field != "Payload" || invalid.Limit != 3<<20 || invalid.Size != 3<<20+1 {
			t.Errorf("%+v", err)
		}
		_, err := w.Write(t.Context(), tx, outbox.Message{Topic: "t", Payload: make([]byte, 3<<20)})
		return err
	})
}

func TestThePublishFunctionIsACallForEveryLanguage(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"14", "15", "16", "17", "18"} {
		t.Run("PostgreSQL "+major, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, database(t, servers.PostgresConfig{Major: major}))
			id := outbox.ID{0xa: 1}
			for _, sql := range []string{
				`SELECT outbox.publish('text', '{}')`,
				`SELECT outbox.publish('null', NULL)`,
				`SELECT outbox.publish('bytes', '\x00ff'::bytea)`,
				`SELECT outbox.publish('json', '{"a": 1}'::jsonb)`,
				`SELECT outbox.publish('json-text', '{}'::jsonb, content_type => 'text/x')`,
				`SELECT outbox.publish('named', payload => 'p'::text, key => 'k', aggregate_type => 'at', aggregate_id => 'ai',
					event_type => 'e', content_type => 'c', headers => '{"h": "v"}', deliver_at => '2031-01-01Z', message_id => '` + id.String() + `')`,
				`SELECT outbox.publish('empty', '', key => '', headers => '{}', aggregate_type => '', aggregate_id => '', event_type => '', content_type => '')`,
				`SET standard_conforming_strings = off; SELECT outbox.publish('old-strings', 'x', event_type => 'nrx')`,
				`SET standard_conforming_strings = on; INSERT INTO outbox.messages (topic) VALUES ('insert')`,
			} {
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
			want := []outbox.Message{
				{Topic: "text", Payload: []byte("{}")},
				{Topic: "null"},
				{Topic: "bytes", Payload: []byte{0, 0xff}},
				{Topic: "json", Payload: []byte(`{"a": 1}`), ContentType: "application/json"},
				{Topic: "json-text", Payload: []byte(`{}`), ContentType: "text/x"},
				{ID: id, Topic: "named", Payload: []byte("p"),
					Key: "k", AggregateType: "at", AggregateID: "ai", EventType: "e", ContentType: "c",
					Headers: []outbox.Header{{Name: "h", Value: "v"}}, DeliverAt: time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)},
				{Topic: "empty", Payload: []byte{}},
				{Topic: "old-strings", Payload: []byte("x"), EventType: "nrx"},
				{Topic: "insert"},
			}
			got := stored(t, conn)
			ids := make([]outbox.ID, len(got))
			for i := range got {
				ids[i] = got[i].ID
			}
			requireStored(t, got, ids, want)

			for sql, fault := range map[string]string{
				`SELECT outbox.publish('t', '{}', headers => '[1]')`:             "headers is a JSON array, it must be an object of strings",
				`SELECT outbox.publish('t', '{}', headers => '{"a": 1}')`:        `header "a" is a JSON number, it must be a string`,
				`SELECT outbox.publish('t', '{}', headers => '{"a": null}')`:     `header "a" is a JSON null, it must be a string`,
				`SELECT outbox.publish('t', '{}', deliver_at => 'infinity')`:     "deliver_at is infinity",
				`SELECT outbox.publish(NULL, '{}')`:                              "topic is empty",
				`INSERT INTO outbox.messages (payload) VALUES ('x')`:             `null value in column "topic"`,
				`INSERT INTO outbox.messages (topic, shard) VALUES ('t', 1)`:     `cannot insert a non-DEFAULT value into column "shard"`,
				`INSERT INTO outbox.messages (topic, segment) VALUES ('t', 8)`:   "no partition of relation",
				`INSERT INTO outbox.messages (topic, headers) VALUES ('t', '{')`: "invalid input syntax for type json",
			} {
				if _, err := conn.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), fault) {
					t.Errorf("%s: %v, want %s", sql, err, fault)
				}
			}
		})
	}
}

// A lane has one shard, however its key was written.
func TestAnEmptyKeyCountsAsNone(t *testing.T) {
	t.Parallel()
	conn := connect(t, database(t))
	var shards, lanes int
	err := conn.QueryRow(t.Context(), `
		WITH rows AS (
			INSERT INTO outbox.messages (topic, key, aggregate_id)
			VALUES ('t', NULL, 'a'), ('t', '', 'a'), ('t', 'a', 'b'), ('t', 'a', '')
			RETURNING shard)
		SELECT count(DISTINCT shard), count(*) FROM rows`).Scan(&shards, &lanes)
	if err != nil || shards != 1 || lanes != 4 {
		t.Fatalf("one lane has %d shards: %v", shards, err)
	}
}
