package mapped

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// samples has texts of values of every type whose text can be asked for, by the type.
var samples = map[string][]string{
	"smallint":         {"-7"},
	"integer":          {"7"},
	"bigint":           {"9223372036854775807"},
	"numeric":          {"1.50", "NaN", "infinity"},
	"oid":              {"4294967295"},
	"real":             {"0.1", "3.3333333e29"},
	"double precision": {"0.3333333333333333", "1e-300", "-infinity"},
	"money":            {"-1234567.89"},
	"text":             {"ü", ""},
	"varchar(9)":       {"a "},
	"char(9)":          {"a"},
	`"char"`:           {"x", ""},
	"name":             {"n"},
	"bit(3)":           {"101"},
	"varbit":           {"1"},
	"bytea":            {`\x00ff5c`, ""}, "boolean": {"true", "false"}, "uuid": {"a0000000-0000-0000-0000-00000000000a"},
	"date": {"2026-02-01", "0044-03-15 BC", "infinity"}, "time": {"04:05:06.7"}, "timetz": {"04:05:06+05:30"},
	"timestamp":   {"2026-02-01 03:04:05.6", "0044-03-15 BC", "20231-01-01", "-infinity"},
	"timestamptz": {"2026-07-01 03:04:05.6+02", "0044-03-15 BC", "20231-01-01", "infinity", "1883-11-18 12:00:00-04:56:02"},
	"interval":    {"1 year 2 mons -3 days 04:05:06.7", "-1 day"},
	"inet":        {"10.0.0.1", "10.0.0.0/8"},
	"cidr":        {"10.0.0.0/8", "10.0.0.1/32"},
	"macaddr":     {"08:00:2b:01:02:03"},
	"macaddr8":    {"08:00:2b:01:02:03:04:05"},
	"json":        {`{"a" : 1}`},
	"jsonb":       {`{"a" : 1}`},
	"jsonpath":    {"$.a"},
	"xml":         {`<?xml version="1.0" encoding="UTF-8"?><a/>`, "text"},
	"point":       {"(0.1,2)"}, "line": {"{1,2,3}"}, "lseg": {"((0,0),(1,1))"}, "box": {"((0,0),(1,1))"},
	"path":          {"[(0,0),(1,1)]"},
	"polygon":       {"((0,0),(1,1))"},
	"circle":        {"<(0,0),0.1>"},
	"tsvector":      {"a:1 b"},
	"tsquery":       {"a & b"},
	"pg_lsn":        {"16/B374D848"},
	"xid8":          {"12"},
	"xid":           {"12"},
	"cid":           {"12"},
	"tid":           {"(1,2)"},
	"txid_snapshot": {"10:20:10,14"},
	"pg_snapshot":   {"10:20:10,14"},
	"int4range":     {"[1,5)"}, "numrange": {"[1.50,)"}, "daterange": {"[2026-02-01,2026-03-01)"}, "tsrange": {"[2026-02-01,)"},
	"int4multirange": {"{[1,2),[5,6)}"},
	"float8[]":       {"{0.1,NULL}"},
	"boolean[]":      {"{t,NULL}"},
	"bytea[]":        {`{"\\x00ff"}`},
	"date[]":         {"{2026-02-01}"}, "interval[]": {"{1 day -1 hour}"}, "text[]": {`{"a\"b","",NULL}`},
	"mood":        {"sad"},
	"mood[]":      {"{sad}"},
	"flag":        {"true"},
	"fixed":       {"ab"},
	"fixed_still": {"ab"},
	"raw":         {`\x00ff`},
	"instant":     {"2026-07-01 03:04:05.6+02"},
	"pair":        {"(0.1,2026-02-01,x)", "(,,)"},
	"address":     {"10.0.0.1"},
}

// varying are types whose text no setting makes the same for all, so no mapping may name them.
var varying = []string{"regclass", "regtype", "regproc", "regrole", "regclass[]",
	"tstzrange", "tstzmultirange", "timestamptz[]", "instant[]", "at_pair"}

const typesDDL = `CREATE TYPE mood AS ENUM ('fine', 'sad'); CREATE DOMAIN flag AS boolean; CREATE DOMAIN fixed AS char(9); 
	CREATE DOMAIN fixed_still AS fixed;
	CREATE DOMAIN raw AS bytea; CREATE DOMAIN instant AS timestamptz; CREATE TYPE pair AS (f float8, d date, c char(3)); 
	CREATE DOMAIN address AS inet;
	CREATE TYPE at_pair AS (i int, at timestamptz);`

// A value has one text, whoever reads it and by whatever way: keys decide where a message goes and behind which it
// waits. The matrix has the log.
func TestTheTextOfAValueDependsOnNeitherTheWayNorTheRole(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(typesDDL)
	m := mapping.Mapping{Table: "vary", ID: "id", Topic: "t", Payload: "p",
		Done: mapping.Done{How: mapping.DoneDelete}, RowsMayBeDeleted: true}
	var columns []string
	for name := range samples {
		c := "c" + fmt.Sprint(len(columns))
		columns = append(columns, fmt.Sprintf("%s %s", c, name))
		m.HeaderColumns = append(m.HeaderColumns, mapping.HeaderColumn{Name: name, Column: c})
	}
	db.Exec("CREATE TABLE vary (id bigserial PRIMARY KEY, p text, " + strings.Join(columns, ", ") + ")")
	rows := 0
	for i := range 5 {
		var names, values []string
		for _, c := range columns {
			name, as, _ := strings.Cut(c, " ")
			if all := samples[as]; i < len(all) {
				names, values = append(names, name), append(values, schema.QuoteLiteral(all[i])+"::"+as)
			}
		}
		db.Exec("INSERT INTO vary (" + strings.Join(names, ", ") + ") VALUES (" + strings.Join(values, ", ") + ")")
		rows++
	}
	texts := func(s relay.Session) (all []string) {
		t.Helper()
		for _, d := range read(t, s, rows) {
			if d.Invalid != nil {
				t.Fatal(d.Invalid)
			}
			for _, h := range m.HeaderColumns {
				value, there := d.Header(h.Name)
				all = append(all, fmt.Sprintf("%s: %q %v", h.Name, value, there))
			}
		}
		return all
	}
	polled := func() []string {
		t.Helper()
		source := opened(t)(Open(mapping.Advisory, db.Config(), m, Config{Name: "one", PollIdle: time.Millisecond}))
		s := acquired(t, source)
		defer func() { _ = s.Close(t.Context()) }()
		return texts(s)
	}
	want := polled()
	same := func(way string, got []string) {
		t.Helper()
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: %s, want %s", way, got[i], want[i])
			}
		}
	}
	for _, setting := range append(hostile, "timezone = 'Asia/Kolkata'") {
		db.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET ` + strings.ReplaceAll(setting, "'", "''") + `', current_database()); END $$`)
	}
	same("by a query", polled())
	same("by the trigger of migrate from", moved(t, db, m, rows))
}

// moved copies the rows of the table under hostile settings, and lists the headers of the messages that the trigger of
// mapping.Move writes: half of them each time, as a message has at most 64.
func moved(t *testing.T, db testdb.DB, m mapping.Mapping, rows int) []string {
	t.Helper()
	conn := db.Connect()
	if _, err := schema.Up(t.Context(), conn, schema.UpConfig{}); err != nil {
		t.Fatal(err)
	}
	all := make([]string, rows*len(m.HeaderColumns))
	table, err := mapping.ReadTable(t.Context(), conn, mapping.TableName{Name: m.Table})
	must(t, err)
	for half := range 2 {
		part := m
		part.HeaderColumns = nil
		for i, h := range m.HeaderColumns {
			if i%2 == half { // no protocol carries the names of all types
				part.HeaderColumns = append(part.HeaderColumns, mapping.HeaderColumn{Name: h.Column, Column: h.Column})
			}
		}
		begin, back, err := part.Move(table, mapping.SkipLocked)
		must(t, err)
		db.Exec(begin)
		var names []string
		for _, h := range m.HeaderColumns {
			names = append(names, h.Column)
		}
		list := strings.Join(names, ", ")
		db.Exec("BEGIN; SET LOCAL " + strings.Join(append(hostile, "timezone = 'Asia/Kolkata'"), "; SET LOCAL ") + `;
			INSERT INTO public.vary (p, ` + list + `) SELECT p, ` + list + ` FROM public.vary ORDER BY id; COMMIT`)
		db.Exec(back)
		for i, h := range m.HeaderColumns {
			if i%2 != half {
				continue
			}
			answer, _ := conn.Query(t.Context(), `SELECT coalesce(headers ->> $1, ''), headers ->> $1 IS NOT NULL FROM outbox.messages
				ORDER BY id`, h.Column) // its error is returned with the rows
			n := 0
			var value string
			var there bool
			if _, err := pgx.ForEachRow(answer, []any{&value, &there}, func() error {
				all[n*len(m.HeaderColumns)+i] = fmt.Sprintf("%s: %q %v", h.Name, value, there)
				n++
				return nil
			}); err != nil || n != rows {
				t.Fatalf("%d messages: %v", n, err)
			}
		}
		db.Exec("TRUNCATE outbox.messages")
	}
	return all
}

func TestATypeWhoseTextVariesIsNoHeader(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(typesDDL)
	for i, name := range varying {
		table := fmt.Sprint("vary", i)
		db.Exec("CREATE TABLE " + table + " (id bigserial PRIMARY KEY, p text, c " + name + ")")
		m := mapping.Mapping{Table: table, ID: "id", Topic: "t", Payload: "p",
			Done: mapping.Done{How: mapping.DoneDelete}, RowsMayBeDeleted: true,
			HeaderColumns: []mapping.HeaderColumn{{Name: "h", Column: "c"}}}
		source := opened(t)(Open(mapping.Advisory, db.Config(), m, Config{}))
		if _, err := source.Acquire(t.Context()); !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "whose text depends on") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
