package mapped

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
)

// samples has values of every type whose text can be asked for, by the type.
var samples = map[string][]string{
	"smallint":         {"-7"},
	"integer":          {"7"},
	"bigint":           {"9223372036854775807"},
	"numeric":          {"1.50", "'NaN'", "'infinity'"},
	"oid":              {"4294967295"},
	"real":             {"0.1", "1e30::real / 3"},
	"double precision": {"1.0 / 3", "1e-300", "'-infinity'"},
	"money":            {"(-1234567.89)::numeric::money"},
	"text":             {"'ü'", "''"},
	"varchar(9)":       {"'a '"},
	"char(9)":          {"'a'"},
	`"char"`:           {"'x'", "''"},
	"name":             {"'n'"},
	"bit(3)":           {"B'101'"},
	"varbit":           {"B'1'"},
	"bytea":            {`'\x00ff5c'`, "''"}, "boolean": {"true", "false"}, "uuid": {"'a0000000-0000-0000-0000-00000000000a'"},
	"date": {"'2026-02-01'", "'0044-03-15 BC'", "'infinity'"}, "time": {"'04:05:06.7'"}, "timetz": {"'04:05:06+05:30'"},
	"timestamp":   {"'2026-02-01 03:04:05.6'", "'0044-03-15 BC'", "'20231-01-01'", "'-infinity'"},
	"timestamptz": {"'2026-07-01 03:04:05.6+02'", "'0044-03-15 BC'", "'20231-01-01'", "'infinity'", "'1883-11-18 12:00:00-04:56:02'"},
	"interval":    {"'1 year 2 mons -3 days 04:05:06.7'", "'-1 day'"},
	"inet":        {"'10.0.0.1'", "'10.0.0.0/8'"},
	"cidr":        {"'10.0.0.0/8'", "'10.0.0.1/32'"},
	"macaddr":     {"'08:00:2b:01:02:03'"},
	"macaddr8":    {"'08:00:2b:01:02:03:04:05'"},
	"json":        {`'{"a" : 1}'`},
	"jsonb":       {`'{"a" : 1}'`},
	"jsonpath":    {"'$.a'"},
	"xml":         {`'<?xml version="1.0" encoding="UTF-8"?><a/>'`, "'text'"},
	"point":       {"'(0.1,2)'"}, "line": {"'{1,2,3}'"}, "lseg": {"'((0,0),(1,1))'"}, "box": {"'((0,0),(1,1))'"},
	"path":          {"'[(0,0),(1,1)]'"},
	"polygon":       {"'((0,0),(1,1))'"},
	"circle":        {"'<(0,0),0.1>'"},
	"tsvector":      {"'a:1 b'"},
	"tsquery":       {"'a & b'"},
	"pg_lsn":        {"'16/B374D848'"},
	"xid8":          {"'12'"},
	"xid":           {"'12'"},
	"cid":           {"'12'"},
	"tid":           {"'(1,2)'"},
	"txid_snapshot": {"'10:20:10,14'"},
	"pg_snapshot":   {"'10:20:10,14'"},
	"int4range":     {"'[1,5)'"}, "numrange": {"'[1.50,)'"}, "daterange": {"'[2026-02-01,2026-03-01)'"}, "tsrange": {"'[2026-02-01,)'"},
	"int4multirange": {"'{[1,2),[5,6)}'"},
	"float8[]":       {"ARRAY[0.1, NULL]"},
	"boolean[]":      {"ARRAY[true, NULL]"},
	"bytea[]":        {`ARRAY['\x00ff'::bytea]`},
	"date[]":         {"ARRAY['2026-02-01'::date]"}, "interval[]": {"ARRAY['1 day -1 hour'::interval]"}, "text[]": {`ARRAY['a"b', '', NULL]`},
	"mood":        {"'sad'"},
	"mood[]":      {"ARRAY['sad'::mood]"},
	"flag":        {"true"},
	"fixed":       {"'ab'"},
	"fixed_still": {"'ab'"},
	"raw":         {`'\x00ff'`},
	"instant":     {"'2026-07-01 03:04:05.6+02'"},
	"pair":        {"ROW(0.1, '2026-02-01', 'x')", "ROW(NULL, NULL, NULL)"},
	"address":     {"'10.0.0.1'"},
}

// varying are types whose text no setting makes the same for all, so no mapping may name them.
var varying = []string{"regclass", "regtype", "regproc", "regrole", "regclass[]",
	"tstzrange", "tstzmultirange", "timestamptz[]", "instant[]", "at_pair"}

const typesDDL = `CREATE TYPE mood AS ENUM ('fine', 'sad'); CREATE DOMAIN flag AS boolean; CREATE DOMAIN fixed AS char(9); 
	CREATE DOMAIN fixed_still AS fixed;
	CREATE DOMAIN raw AS bytea; CREATE DOMAIN instant AS timestamptz; CREATE TYPE pair AS (f float8, d date, c char(3)); 
	CREATE DOMAIN address AS inet;
	CREATE TYPE at_pair AS (i int, at timestamptz);`

// hostile are settings of a role or a database that change the text of values.
var hostile = []string{"DateStyle = 'SQL, DMY'", "IntervalStyle = 'sql_standard'", "bytea_output = 'escape'", "extra_float_digits = -3",
	"lc_monetary = 'C.UTF-8'", "xmloption = 'document'", "standard_conforming_strings = off", "search_path = nowhere, public",
	"array_nulls = off",
	"quote_all_identifiers = on"}

// A value has one text, whoever reads it and by whatever way: keys decide where a message goes and behind which it
// waits.
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
	slot := db.Value("SELECT 'mapped_' || oid::text FROM pg_database WHERE datname = current_database()")
	db.Exec(`CREATE PUBLICATION vary FOR TABLE vary WITH (publish = 'insert')`)
	db.Exec(mapping.CreateSlotSQL(slot))
	t.Cleanup(db.DropSlots)
	rows := 0
	for i := range 5 {
		var names, values []string
		for _, c := range columns {
			name, as, _ := strings.Cut(c, " ")
			if all := samples[as]; i < len(all) {
				names, values = append(names, name), append(values, "CAST("+all[i]+" AS "+as+")")
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
				all = append(all, fmt.Sprintf("%s %s: %q %v", d.ID, h.Name, value, there))
			}
		}
		return all
	}
	polled := func() []string {
		t.Helper()
		source, err := Open(mapping.Advisory, db.Config(), m, Config{Name: "one", PollIdle: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
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
	logged := m
	logged.Done = mapping.Done{}
	same("by the log", texts(acquired(t, openLog(t, database{db}, logNames{Slot: slot, Publication: "vary"}, logged))))
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
		source, err := Open(mapping.Advisory, db.Config(), m, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := source.Acquire(t.Context()); !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "whose text depends on") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
