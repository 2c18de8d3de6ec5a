package mapped

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/mapping"
)

// matrixEvent is what happens to a table while a relay reads it.
type matrixEvent struct {
	name string

	// columns are those that it is about. If it has none in a table, the cell doesn't exist.
	columns func(c *cell) []string
	alters  func(t *matrixTable) []string // those that get other types

	encoding string   // of the database
	letter   string   // beyond ASCII, that the encoding has
	odd      string   // bytes of a text that has no UTF-8 form
	settings []string // of the relay's role
	zone     string   // of the database

	do       func(c *cell)
	provokes []string // patterns of errors in the server's log
}

// hostile are settings of a role or a database that change the text of values.
var hostile = []string{"DateStyle = 'SQL, DMY'", "IntervalStyle = 'sql_standard'", "bytea_output = 'escape'", "extra_float_digits = -3",
	"lc_monetary = 'POSIX'", "xmloption = 'document'", "standard_conforming_strings = off", "search_path = nowhere, public",
	"array_nulls = off", "quote_all_identifiers = on"}

// oddTimes are the ends of what PostgreSQL can store, and what lies beyond the years that texts usually have.
var oddTimes = []string{"'-infinity'", "'4714-11-24 00:00:00 BC'", "'0044-03-15 BC'", "'0001-01-01'", "'1969-12-31 23:59:59.999999'",
	"now()", "'20231-01-01'", "'294276-12-31 23:59:59.999999'", "'infinity'", "NULL"}

// classed are the columns of classes of matrixTypes.
func classed(classes ...string) func(t *matrixTable) []string {
	return func(t *matrixTable) (columns []string) {
		for c, class := range t.classes {
			if slices.Contains(classes, class) && t.typeOf(c, 0) != t.typeOf(c, 1) {
				columns = append(columns, c)
			}
		}
		slices.Sort(columns)
		return columns
	}
}

// alter is the event that columns get other types.
func alter(name string, columns func(t *matrixTable) []string, provokes ...string) matrixEvent {
	return matrixEvent{name: name, columns: func(c *cell) []string { return columns(c.table) }, alters: columns,
		do: func(c *cell) { c.change(c.table.alterSQL(columns(c.table))) }, provokes: provokes}
}

// replace is the event that a column is renamed and another of its name added.
func replace(name string, column func(m *mapping.Mapping) string) matrixEvent {
	return matrixEvent{name: name, columns: func(c *cell) []string { return slices.DeleteFunc([]string{column(&c.table.m)}, isEmpty) },
		do: func(c *cell) { c.change(c.table.replaceSQL(column(&c.table.m))) }}
}

func isEmpty(s string) bool { return s == "" }

// marked limits an event to tables whose rows are marked.
func marked(c *cell) []string { return slices.DeleteFunc([]string{c.table.m.Done.Column}, isEmpty) }

var matrixEvents = []matrixEvent{
	{name: "the first row"},

	{name: "rows of odd times", columns: func(c *cell) []string { return slices.DeleteFunc([]string{c.table.m.CreatedAt}, isEmpty) },
		do: func(c *cell) {
			for n, at := range oddTimes {
				rounded := c.table.typeOf(c.table.m.CreatedAt, 0) == "timestamp(3) with time zone"
				if !rounded || !strings.Contains(at, ".") { // or it may be too late
					values, r := c.table.values(len(c.rows)+1, fmt.Sprint("k", n%2+1), c.letter, "")
					values[c.table.m.CreatedAt] = at
					c.insertRow(values, r)
				}
			}
		}},
	alter("ids altered", classed("number", "uuid"), `operator does not exist`),
	alter("keys altered", classed("key"), `operator does not exist`),
	alter("texts altered", classed("text")),
	alter("payload altered", classed("payload")),
	alter("headers altered", classed("headers")),
	alter("times altered", classed("time")),
	alter("marks altered", classed("flag", "status", "count")),
	replace("payload replaced", func(m *mapping.Mapping) string { return m.Payload }),
	replace("key replaced", func(m *mapping.Mapping) string { return columnsOf(m.Key)[0] }),
	replace("mark replaced", func(m *mapping.Mapping) string { return m.Done.Column }),
	{name: "other columns dropped and added", do: func(c *cell) {
		c.change("ALTER TABLE " + c.table.name + " DROP spare, ADD more text DEFAULT 'x'")
	}},
	{name: "a column renamed for a while", columns: func(c *cell) []string {
		if c.strategy == mapping.Replication {
			return nil // what is inserted then is what the publication doesn't send
		}
		return []string{c.table.m.Payload}
	}, do: renamedForAWhile, provokes: []string{`column .* does not exist`}},

	{name: "other columns updated", do: func(c *cell) { c.touch("SET spare = 'other'") }},
	{name: "payloads updated", do: func(c *cell) {
		for _, r := range c.touch(fmt.Sprintf(`SET %[1]q = replace(%[1]q::text, '"s": "', '"s": "+')::%s`, c.table.m.Payload, c.table.typeOf(c.table.m.Payload, 0))) {
			r.payloads = append(r.payloads, strings.Replace(r.payload, `"s": "`, `"s": "+`, 1))
		}
	}},
	{name: "rows deleted", do: func(c *cell) {
		for _, r := range c.touch("") {
			r.gone = true
		}
	}},
	{name: "rows emptied", do: func(c *cell) {
		for _, r := range c.rows {
			r.gone = true
		}
		c.change("TRUNCATE " + c.table.name)
	}},
	{name: "rows locked for a while", do: lockedForAWhile},
	{name: "rows marked by hand", columns: marked, do: func(c *cell) {
		for _, r := range c.touch(fmt.Sprintf("SET %q = %s", c.table.m.Done.Column, c.doneSQL())) {
			r.gone = true
		}
	}},
	{name: "rows reset by hand", columns: func(c *cell) []string {
		if c.mapping.Done.How == "" || c.start != "drained" {
			return nil
		}
		return marked(c)
	}, do: func(c *cell) {
		value := "NULL"
		if w := c.table.m.Done.Waiting; w != "" {
			value = "'" + w + "'"
		}
		for _, r := range c.touch(fmt.Sprintf("SET %q = %s", c.table.m.Done.Column, value)) {
			r.repeats++
		}
	}},
	{name: "another table of the name", columns: func(c *cell) []string {
		if c.strategy == mapping.Replication || c.strategy == mapping.Serial {
			return nil // the publication doesn't have it, and its sequence is behind the offset: both are refused
		}
		return []string{""}
	}, do: func(c *cell) {
		for _, r := range c.rows {
			r.gone = true
		}
		_, name, found := strings.Cut(c.table.name, ".")
		if !found {
			name = c.table.name
		}
		c.change(fmt.Sprintf("CREATE TABLE %[1]s_new (LIKE %[1]s INCLUDING ALL); "+
			"GRANT SELECT, UPDATE, DELETE ON %[1]s_new TO matrix_relay; "+
			"ALTER TABLE %[1]s RENAME TO %[2]s_old; ALTER TABLE %[1]s_new RENAME TO %[2]s", c.table.name, name))
	}},

	{name: "all tables published", do: func(c *cell) { c.change("CREATE PUBLICATION everything FOR ALL TABLES") }},

	{name: "settings of texts", settings: hostile},
	{name: "settings of timeouts", settings: []string{"statement_timeout = '300ms'", "lock_timeout = '1ms'", "idle_session_timeout = '1s'",
		"idle_in_transaction_session_timeout = '1ms'", "transaction_timeout = '400ms'", "tcp_user_timeout = 1000"}},
	{name: "settings of transactions", settings: []string{"default_transaction_isolation = serializable",
		"default_transaction_read_only = on",
		"default_transaction_deferrable = on", "synchronous_commit = off", "client_min_messages = error", "row_security = on",
		"transform_null_equals = on"}},
	{name: "settings of plans", settings: []string{"enable_indexscan = off", "enable_nestloop = off", "enable_sort = off",
		"plan_cache_mode = force_generic_plan", "jit = on", "jit_above_cost = 0", "debug_parallel_query = on",
		"max_parallel_workers_per_gather = 4", "work_mem = '64kB'", "geqo_threshold = 2", "constraint_exclusion = on",
		"client_min_messages = debug5", "enable_material = off", "enable_hashagg = off"}},
	{name: "time zone east", zone: "Asia/Kolkata", settings: []string{"client_encoding = 'LATIN1'", "timezone_abbreviations = 'India'"}},
	{name: "time zone west", zone: "America/New_York", settings: []string{"client_encoding = 'SQL_ASCII'"}},
	{name: "time zone of POSIX", zone: "<+03>-3"},

	{name: "LATIN1", encoding: "LATIN1", letter: "ü"},
	{name: "WIN1251", encoding: "WIN1251", letter: "ж", odd: `a\230b`, provokes: []string{`has no equivalent`}},
	{name: "EUC_JP", encoding: "EUC_JP", letter: "ж", odd: `a\251\241b`, provokes: []string{`has no equivalent`}},
	{name: "SQL_ASCII", encoding: "SQL_ASCII", letter: "ü", odd: `a\344b`, provokes: []string{`invalid byte sequence for encoding "UTF8"`}},
}

func (c *cell) doneSQL() string {
	if c.table.m.Done.How == mapping.DoneStatus {
		return "'" + c.table.m.Done.Value + "'"
	}
	return "now()"
}

// change runs statements in one transaction. If they wait for a transaction of the relay, which waits for the broker,
// the broker goes on.
func (c *cell) change(sql string) {
	c.Helper()
	c.changes = true
	ended := make(chan error, 1)
	go func() { ended <- c.conn.PgConn().Exec(c.Context(), sql).Close() }()
	look := c.db.Connect()
	for {
		select {
		case err := <-ended:
			if err != nil {
				c.Fatalf("%s: %v", sql, err)
			}
			return
		case <-time.After(50 * time.Millisecond):
		}
		var waits bool
		err := look.QueryRow(c.Context(), "SELECT cardinality(pg_blocking_pids($1)) > 0", int32(c.conn.PgConn().PID())).Scan(&waits)
		if err != nil {
			c.Fatal(err)
		}
		if waits {
			c.release()
		}
	}
}

// touch changes, or deletes, the rows that nobody has locked, and returns them.
func (c *cell) touch(set string) (touched []*matrixRow) {
	c.Helper()
	verb := "UPDATE " + c.table.name + " " + set
	if set == "" {
		verb = "DELETE FROM " + c.table.name
	}
	rows, err := c.conn.Query(c.Context(), fmt.Sprintf("%s WHERE ctid IN (SELECT ctid FROM %s FOR UPDATE SKIP LOCKED) RETURNING %q::text",
		verb, c.table.name, c.table.m.ID))
	if err != nil {
		c.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		id := string(rows.RawValues()[0])
		for _, r := range c.rows {
			if r.ID == id {
				touched = append(touched, r)
			}
		}
	}
	if err := rows.Err(); err != nil {
		c.Fatal(err)
	}
	return touched
}

// lockedForAWhile has another transaction lock what it can, and change it in the end.
func lockedForAWhile(c *cell) {
	tx, err := c.db.Connect().Begin(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	if _, err := tx.Exec(c.Context(), "SELECT FROM "+c.table.name+" FOR UPDATE SKIP LOCKED"); err != nil {
		c.Fatal(err)
	}
	c.insert("k1", "")
	c.insert("k2", "")
	c.release()
	time.Sleep(200 * time.Millisecond) // the relay finds them locked meanwhile
	if _, err := tx.Exec(c.Context(), "UPDATE "+c.table.name+" SET spare = 'locked' WHERE ctid IN (SELECT ctid FROM "+c.table.name+
		" FOR UPDATE SKIP LOCKED)"); err != nil {
		c.Fatal(err)
	}
	if err := tx.Commit(c.Context()); err != nil {
		c.Fatal(err)
	}
}

// renamedForAWhile takes a mapped column away, and gives it back. Until then the relay says what it lacks.
func renamedForAWhile(c *cell) {
	c.change(fmt.Sprintf("ALTER TABLE %s RENAME %q TO away", c.table.name, c.table.m.Payload))
	c.release()
	c.verdict("a column was renamed", func(v health.Verdict) bool {
		return v.State == health.StateBroken && strings.Contains(v.Cause, fmt.Sprintf("no column %q", c.table.m.Payload))
	})
	c.change(fmt.Sprintf("ALTER TABLE %s RENAME away TO %q", c.table.name, c.table.m.Payload))
}

// insertOdd writes a row that is a dead letter, because a text of it has no UTF-8 form.
func (c *cell) insertOdd() {
	values, r := c.table.values(len(c.rows)+1, "odd", "", "")
	for _, name := range append(columnsOf(c.table.m.Topic), c.table.m.EventType, c.table.m.AggregateType) {
		if c.table.classes[name] == "text" && name != c.table.m.Offsets.Topic { // that one must have a UTF-8 form
			values[name] = fmt.Sprintf("convert_from('%s', '%s')", c.event.odd, c.event.encoding)
		}
	}
	r.dead = "can't be read as UTF-8"
	c.insertRow(values, r)
}
