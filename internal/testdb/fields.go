package testdb

import (
	"context"
	"crypto/md5"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/pgoutbox/outbox/schema"
)

// Encodings are those of databases that tests of fields use, with the SQL of a text that the database stores and
// that has no UTF-8 form. Every byte of LATIN1 has one.
var Encodings = map[string]string{
	"UTF8":      "",
	"LATIN1":    "",
	"WIN1252":   `E'a\x81b'`,
	"EUC_KR":    `E'a\xc9\xa1b'`,
	"SQL_ASCII": `E'a\xe4b'`,
}

// NewEncoded makes an empty database with an encoding, dropped at the end of the test.
func (db DB) NewEncoded(encoding string) DB {
	db.T.Helper()
	cfg := db.Config()
	name := cfg.Database + "_" + strings.ToLower(encoding)
	db.Exec(fmt.Sprintf("CREATE DATABASE %s TEMPLATE template0 ENCODING '%s' LOCALE 'C'", name, encoding))
	db.T.Cleanup(func() {
		cfg.Database = "postgres"
		ctx := context.Background()
		conn, err := pgx.ConnectConfig(ctx, cfg)
		if err == nil {
			defer hangUp(conn)
			_, err = conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		}
		if err != nil {
			db.T.Error(err)
		}
	})
	return DB{db.T, strings.Replace(db.URL, "/"+cfg.Database, "/"+name, 1)}
}

// Field is one row with a column out of the ordinary.
type Field struct {
	Name   string
	Column string
	Value  string // SQL
	Dead   string // what the reason of its dead letter says; empty: it is delivered
}

// Fields lists what PostgreSQL stores in the columns of outbox.messages that a writer may set, where it goes beyond
// what a message is or is the last that a message may be. bad is a value of Encodings.
func Fields(bad string) []Field {
	text := func(n int) string { return fmt.Sprintf("repeat('x', %d)", n) }
	noise := func(n int) string { // what no compression makes smaller
		return fmt.Sprintf("(SELECT string_agg(md5(n::text), '') FROM generate_series(1, %d) n)", n/32)
	}
	fields := []Field{
		{"empty topic", "topic", "''", "Topic is empty"},
		{"longest topic", "topic", text(249), ""},
		{"longer topic", "topic", text(250), "Topic has 250 bytes, the limit is 249"},
		{"endless topic", "topic", noise(10240), "Topic has 10240 bytes, the limit is 249"},
		{"topic with a blank", "topic", "'a b'", "Topic contains white space"},
		{"topic with a control character", "topic", `E'a\x01b'`, "Topic contains white space or a control character"},
		{"topic with a line", "topic", `E'a\r\nb'`, "Topic contains white space or a control character"},
		{"topic of dots", "topic", "'..'", ""},

		{"NULL payload", "payload", "NULL", ""},
		{"empty payload", "payload", `''`, ""},
		{"payload of zeros", "payload", `'\x00000000'`, ""},
		{"payload above the writer's limit", "payload", `convert_to(repeat('x', 3000000), 'UTF8')`, ""},

		{"nil message id", "message_id", `'00000000-0000-0000-0000-000000000000'`, ""},

		{"headers of no name", "headers", `'{}'`, ""},
		{"headers null", "headers", `'null'`, "headers are a JSON null"},
		{"headers array", "headers", `'[]'`, "headers are a JSON array"},
		{"headers number", "headers", `'1e1000'`, "headers are a JSON number"},
		{"headers string", "headers", `'"x"'`, "headers are a JSON string"},
		{"headers nested", "headers", `'{"a": {"b": [1, null, {"c": "\""}]}, "d": 1e3, "e": null}'`, ""},
		{"header that is given twice", "headers", `'{"a": "x\ny", "b": "c", "a": "x"}'`, ""},
		{"headers given twice by the thousand", "headers", `(SELECT json_object_agg(n % 64, n) FROM generate_series(1, 10000) n)`, ""},
		{"headers with white space", "headers", `E'\n{ "a"\t:\r\n"x" , "b" : [ 1 ]\n}\n'`, ""},
		{"headers of white space", "headers", `E' {\n} '`, ""},
		{"headers beyond numeric", "headers", `'{"a": 1e1000000, "b": {"c": -1E-1000000}}'`, ""},
		{"headers with escapes that jsonb refuses, deep inside", "headers", `'{"a": {"b": "\u0000", "c": "\ud834"}}'`, ""},
		{"headers with escapes", "headers", `'{"\u0061": "\ud834\udd1e\u20ac\\u0000\\ud834"}'`, ""},
		{"header with NUL", "headers", `'{"a": "b\u0000"}'`, "contains a NUL byte"},
		{"header name with NUL", "headers", `'{"a\u0000": "b"}'`, "contains a NUL byte"},
		{"header with half a pair", "headers", `'{"a": "b\udd1e\ud834"}'`, "half of a surrogate pair"},
		{"header name with half a pair", "headers", `'{"a\uD834\u0041": "b"}'`, "half of a surrogate pair"},
		{"headers with an empty name", "headers", `'{"": "x"}'`, "has an empty name"},
		{"headers with a line", "headers", `'{"a": "x\ny"}'`, "contains CR or LF"},
		{"headers with names that not every broker takes", "headers", `'{"outbox-x": "y", "a b": "c"}'`, ""},
		{"as many headers as there may be", "headers", `(SELECT jsonb_object_agg(n, 'x') FROM generate_series(1, 64) n)`, ""},
		{"one header more", "headers", `(SELECT jsonb_object_agg(n, 'x') FROM generate_series(1, 65) n)`, "Headers has 65 headers, the limit is 64"},
		{"headers by the thousand", "headers", `(SELECT jsonb_object_agg(n, 'x') FROM generate_series(1, 10000) n)`, "the limit is 64"},
		{"largest headers", "headers", `jsonb_build_object('a', repeat('x', 32767))`, ""},
		{"larger headers", "headers", `jsonb_build_object('a', repeat('x', 32768))`, "Headers has 32769 bytes, the limit is 32768"},
		{"headers of megabytes", "headers", `jsonb_build_object('a', repeat('x', 3000000))`, "the limit is 32768"},

		{"delivered long ago", "deliver_at", `'-infinity'`, ""},
		{"delivered before Christ", "deliver_at", `'4000-01-01 BC'`, ""},
		{"never to be delivered", "deliver_at", `'infinity'`, "deliver_at is after the year 9999"},
		{"delivered after the calendar", "deliver_at", `'10000-01-01'`, "deliver_at is after the year 9999"},
	}
	for column, field := range map[string]string{"key": "Key", "aggregate_type": "AggregateType", "aggregate_id": "AggregateID",
		"event_type": "EventType", "content_type": "ContentType"} {
		fields = append(fields,
			Field{"empty " + column, column, "''", ""},
			Field{"longest " + column, column, text(1024), ""},
			Field{"longer " + column, column, text(1025), field + " has 1025 bytes, the limit is 1024"},
			Field{"endless " + column, column, noise(200000), field + " has 200000 bytes, the limit is 1024"},
			Field{column + " with a line", column, `E'a\nb'`, field + " contains CR or LF"},
			Field{column + " with odd characters", column, `E'\x01\t\\''"{}%\x7f'`, ""},
		)
	}
	if bad != "" {
		for _, column := range []string{"topic", "key", "aggregate_type", "aggregate_id", "event_type", "content_type"} {
			fields = append(fields, Field{column + " without a UTF-8 form", column, bad, column + " can't be read as UTF-8"})
		}
		fields = append(fields,
			Field{"headers without a UTF-8 form", "headers", `jsonb_build_object('a', ` + bad + `)`, "headers can't be read as UTF-8"},
			Field{"header name without a UTF-8 form", "headers", `jsonb_build_object(` + bad + `, 'a')`, "headers can't be read as UTF-8"})
	}
	slices.SortStableFunc(fields, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	return fields
}

// Insert is the statement that writes a row with the field out of the ordinary into table. others are the rest of its
// columns, in SQL.
func (f Field) Insert(table string, others map[string]string) string {
	row := maps.Clone(others)
	row[f.Column] = f.Value
	columns := slices.Sorted(maps.Keys(row))
	values := make([]string, len(columns))
	for i, c := range columns {
		values[i] = row[c]
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", table, strings.Join(columns, ", "), strings.Join(values, ", "))
}

// FieldsRun is a strategy over a table with the columns of outbox.messages.
type FieldsRun struct {
	Table string // that rows are inserted into
	Bad   string // a value of Encodings

	// Open returns the source of a relay of that name.
	Open func(relay string) relay.Source

	// Settled, if not nil, waits until the strategy reads as it will from then on. It is called while the first relay
	// runs.
	Settled func()

	// Dead finds the dead letters: message_id, reason, error.
	Dead string

	// Expect, if not nil, changes what the strategy is to do with a row, where its documents say so. Without its name
	// the row is left out.
	Expect func(Field) Field
}

// RunFields inserts every row of Fields between messages of one key. Each is to be delivered once or become a dead
// letter with its reason, and the messages around are to be delivered once and in order: from a backlog, while they
// come, and by a second relay that follows the first.
func (db DB) RunFields(run FieldsRun) {
	t := db.T
	t.Helper()
	ctx := await.Context(t)
	fields := Fields(run.Bad)
	if run.Expect != nil {
		for i := range fields {
			fields[i] = run.Expect(fields[i])
		}
		fields = slices.DeleteFunc(fields, func(f Field) bool { return f.Name == "" })
	}
	conn, good := db.Connect(), 0
	write := func(fields []Field) {
		exec := func(sql string) {
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Fatalf("%.200s: %v", sql, err)
			}
		}
		for _, f := range fields {
			name := schema.QuoteLiteral(f.Name)
			exec("BEGIN")
			for _, sql := range []string{
				Field{Column: "payload", Value: fmt.Sprintf("'%d'", good)}.Insert(run.Table,
					map[string]string{"topic": "'t'", "key": "'good'"}),
				f.Insert(run.Table, map[string]string{"topic": "'t'", "key": "'odd ' || " + name, "message_id": "md5(" +
					name + ")::uuid", "payload": "''"}),
				Field{Column: "payload", Value: fmt.Sprintf("'%d'", good+1)}.Insert(run.Table,
					map[string]string{"topic": "'t'", "key": "'good'"}),
			} {
				exec(sql)
			}
			exec("COMMIT")
			good += 2
		}
	}
	broker, wanted := relaytest.NewMemory(), 0
	count := func(fields []Field) {
		for _, f := range fields {
			wanted += 2
			if f.Dead == "" {
				wanted++
			}
		}
	}
	relayed := func(name string, during func()) {
		r, err := relay.New(run.Open(name), broker, relay.Config{Logger: slog.New(slog.NewTextHandler(log{t}, nil))})
		if err != nil {
			t.Fatal(err)
		}
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- r.Run(running) }()
		if during != nil {
			during()
		}
		if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= wanted }); err != nil {
			t.Errorf("%d of %d messages came to %s: %v", len(broker.Messages()), wanted, name, err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	third := len(fields) / 3
	write(fields[:third])
	count(fields[:third])
	relayed("first", func() {
		if run.Settled != nil {
			run.Settled()
		}
		write(fields[third : 2*third])
		count(fields[third : 2*third])
	})
	write(fields[2*third:])
	count(fields[2*third:])
	relayed("second", nil)
	relayed("third", nil) // finds nothing, and settles nothing again

	dead := make(map[string]string)
	rows, err := conn.Query(ctx, run.Dead)
	if err != nil {
		t.Fatal(err)
	}
	var id, reason, why string
	_, err = pgx.ForEachRow(rows, []any{&id, &reason, &why}, func() error {
		dead[id] = reason + ": " + why
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	delivered, next := make(map[string]int), 0
	for _, m := range broker.Messages() {
		if m.Key != "good" {
			delivered[m.ID.String()]++
			continue
		}
		if string(m.Payload) != fmt.Sprint(next) {
			t.Errorf("message %s of the good key came where %d was due", m.Payload, next)
		}
		next++
	}
	if next != good {
		t.Errorf("%d of %d good messages came", next, good)
	}
	for _, f := range fields {
		sum := md5.Sum([]byte(f.Name)) // as the rows were inserted
		id := fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:])
		if f.Column == "message_id" {
			id = "00000000-0000-0000-0000-000000000000"
		}
		switch why, isDead := dead[id]; {
		case f.Dead == "" && (delivered[id] != 1 || isDead):
			t.Errorf("%s: delivered %d times, dead letter %q: want it delivered once", f.Name, delivered[id], why)
		case f.Dead != "" && (delivered[id] != 0 || !strings.Contains(why, f.Dead) || !strings.HasPrefix(why, "invalid")):
			t.Errorf("%s: delivered %d times, dead letter %.200q: want a dead letter that says %q", f.Name, delivered[id], why, f.Dead)
		}
	}
}

type log struct{ t testing.TB }

func (l log) Write(p []byte) (int, error) {
	l.t.Helper()
	if l.t.Context().Err() == nil { // a count of lines may come when the test is over
		l.t.Logf("%.400s", p)
	}
	return len(p), nil
}
