package schema

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
)

// wide is a list of columns, or of values.
func wide(n int, format string) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(format, i))
	}
	return strings.Join(list, ", ")
}

// Each case has statements that work. They are run without the trigger, in a transaction that is rolled back, and then
// with it.
func TestWhatWorkedBeforeATableWasAttachedWorksAfter(t *testing.T) {
	servers.Long(t)
	onEachMajor(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		install(t, conn)
		var major int
		if err := conn.QueryRow(t.Context(), majorSQL).Scan(&major); err != nil {
			t.Fatal(err)
		}
		all := make([]string, 1600)
		for i := range all {
			all[i] = fmt.Sprintf("c%d", i)
		}
		for name, c := range map[string]struct {
			since      int
			table      string // its columns, or a whole statement
			attach     Attachment
			before     string // run once, when it is attached
			statements string
			want       string // of topic, key and payload, or of the reason, of all messages: a regular expression
		}{
			"1600 columns": {table: wide(1600, "c%d bool"), attach: Attachment{Key: []string{"c0"}},
				statements: `INSERT INTO t (c0) VALUES (true)`, want: `^t true {"c0":true,.*"c1599":null}$`},
			"1600 columns that are named": {table: wide(1600, "c%d bool"), attach: Attachment{Key: []string{"c0"}, Columns: all},
				statements: `INSERT INTO t (c0) VALUES (true)`, want: `^t true {"c0":true,.*"c1599":null}$`},
			"columns with the names of variables": {table: `topic text, key text PRIMARY KEY, payload text, r int, changed int, reason int, "$outbox$" int, "a""'\b" int`,
				attach:     Attachment{Columns: []string{"r", "payload", "changed", "$outbox$", `a"'\b`}, TopicColumn: "topic"},
				statements: `INSERT INTO t VALUES ('x', 'k', 'p', 1, 2, 3, 4, 5)`, want: `^x k {"r":1,"payload":"p","changed":2,"\$outbox\$":4,"a\\"'\\\\b":5}$`},
			"a json that jsonb can't have": {table: `id int PRIMARY KEY, j json`, statements: `INSERT INTO t VALUES (1, '{"a":"\u0000"}')`,
				want: `^t 1 {"id":1,"j":{"a":"\\u0000"}}$`},
			"a json in the key": {table: `a json, b int`, attach: Attachment{Key: []string{"a", "b"}}, statements: `INSERT INTO t VALUES ('{"a":"\u0000"}', 1)`,
				want: `^t \[{"a":"\\u0000"}, 1\]`},
			"values that are no numbers, or at no time": {table: `id float PRIMARY KEY, n numeric, d date, at timestamptz, r int4range, i interval, x xml, b bytea`,
				statements: `INSERT INTO t VALUES ('infinity', 'NaN', '-infinity', 'infinity', 'empty', '1 year', '<a/>', '\x00'), ('NaN', 1e1000, '4713-01-01 BC', '294276-01-01', '[1,)', '-1 s', '', '')`,
				want:       `^t (Infinity|NaN) {"id":"(Infinity|NaN)"`},
			"types of its own": {table: `CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE TYPE pair AS (a int, b mood); CREATE DOMAIN code AS text CHECK (value <> '');
				CREATE TABLE t (id code PRIMARY KEY, m mood, p pair, l pair[])`,
				statements: `INSERT INTO t VALUES ('x', 'good', (1, 'bad'), ARRAY[(2, 'bad')::pair]); ALTER TYPE mood ADD VALUE IF NOT EXISTS 'so'`,
				want:       `^t x {"id":"x","m":"good","p":{"a":1,"b":"bad"},"l":\[{"a":2,"b":"bad"}\]}$`},
			"a cast to json that fails": {table: `CREATE TYPE mood AS ENUM ('good'); CREATE FUNCTION shown(mood) RETURNS json LANGUAGE sql AS 'SELECT to_json(1 / (length($1::text) - 4))';
				CREATE CAST (mood AS json) WITH FUNCTION shown(mood); CREATE TABLE t (id int PRIMARY KEY, m mood)`,
				statements: `INSERT INTO t VALUES (7, 'good')`, want: `^t 7 outbox attach: division by zero.* \(7,good\)$`},
			"a row that is large": {table: `id int PRIMARY KEY, b text`, statements: `INSERT INTO t VALUES (1, repeat('x', 1100000))`,
				want: `^t 1 {"id":1,"b":"x{1000}`},
			"a key that no message has": {table: `id text PRIMARY KEY`, statements: `INSERT INTO t VALUES (E'a\nb'), (repeat('k', 2000)), ('')`,
				want: `(?s)^t (a\nb |k{1000}| *{"id":""})`},
			"a topic that no message has": {table: `id int PRIMARY KEY, topic text`, attach: Attachment{TopicColumn: "topic"},
				statements: `INSERT INTO t VALUES (1, NULL), (2, ''), (3, repeat('t', 300)), (4, 'a b')`, want: `^(|t+|a b) \d {"id":`},
			"no value for the key": {table: `id int PRIMARY KEY, k int`, attach: Attachment{Key: []string{"k"}}, statements: `INSERT INTO t VALUES (1, NULL)`,
				want: `^t {"id":1,"k":null}`},
			"stored columns": {table: `id int, twice int GENERATED ALWAYS AS (id * 2) STORED, topic text GENERATED ALWAYS AS ('t' || id) STORED`,
				attach: Attachment{Key: []string{"twice"}, TopicColumn: "topic"}, statements: `INSERT INTO t VALUES (1); UPDATE t SET id = 2; DELETE FROM t`,
				want: `^(t1 2 {"id":1,"twice":2|t2 4 {"id":2,"twice":4)`},
			"a virtual column that came later": {since: 18, table: `id int PRIMARY KEY`, before: `ALTER TABLE t ADD v int GENERATED ALWAYS AS (id * 2) VIRTUAL`,
				statements: `INSERT INTO t VALUES (1)`, want: `^t 1 outbox attach: .*VIRTUAL`},
			"the key's column is gone": {table: `id int PRIMARY KEY, v int`, before: `INSERT INTO t VALUES (1, 1); ALTER TABLE t DROP id`,
				statements: `UPDATE t SET v = 2; DELETE FROM t`, want: `^t outbox attach: column "id" not found.*run outbox attach again.* \(2\)$`},
			"a column of the payload has another name": {table: `id int PRIMARY KEY, v int`, attach: Attachment{Columns: []string{"v"}},
				before: `ALTER TABLE t RENAME v TO w`, statements: `INSERT INTO t VALUES (1, 2)`, want: `^t 1 outbox attach: column "v" not found`},
			"columns have another type, in a session that knows the old one": {table: `id int PRIMARY KEY, v text, topic text`,
				attach:     Attachment{Columns: []string{"id", "v"}, TopicColumn: "topic"},
				before:     `INSERT INTO t VALUES (1, '1', 'x'); ALTER TABLE t ALTER id TYPE bigint, ALTER v TYPE int USING v::int, ALTER topic TYPE varchar(9); ALTER TABLE t ADD n int`,
				statements: `INSERT INTO t VALUES (2, 2, 'x'); UPDATE t SET n = 3; DELETE FROM t`, want: `^x \d {"id":\d,"v":"?\d"?}$`},
			"partitions whose columns have another order": {table: `CREATE TABLE t (id int, part text, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
				CREATE TABLE p (v text, gone int, part text NOT NULL, id int NOT NULL); ALTER TABLE p DROP gone; ALTER TABLE t ATTACH PARTITION p FOR VALUES IN ('p');
				CREATE TABLE q PARTITION OF t FOR VALUES IN ('q')`,
				attach: Attachment{Key: []string{"id"}, Columns: []string{"id", "v"}}, statements: `INSERT INTO t VALUES (1, 'p', 'x'); INSERT INTO p VALUES ('x', 'p', 2);
					UPDATE t SET part = 'q'; MERGE INTO t USING (VALUES (1)) s (id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 'x'; DELETE FROM t`,
				since: 15, want: `^t (1|2) {"id":(1|2),"v":"x"}$`},
			"conflicts, deferred constraints, savepoints, hidden rows": {table: `CREATE TABLE t (id int PRIMARY KEY, next int REFERENCES t DEFERRABLE INITIALLY DEFERRED);
				ALTER TABLE t ENABLE ROW LEVEL SECURITY; ALTER TABLE t FORCE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (id < 100)`,
				statements: `INSERT INTO t VALUES (1, 2); INSERT INTO t VALUES (2, 1); INSERT INTO t VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET next = excluded.next;
					INSERT INTO t VALUES (1, 1) ON CONFLICT DO NOTHING; SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; SET CONSTRAINTS ALL IMMEDIATE; TRUNCATE t`, want: `^t \d {"id":\d,"next":\d}$`},
			"a hostile session": {table: `id int PRIMARY KEY, v text, at timestamptz`, attach: Attachment{TopicColumn: "v"},
				statements: `SET LOCAL search_path = pg_temp, public; CREATE TEMP TABLE text (x int) ON COMMIT DROP; CREATE TEMP TABLE pg_attribute (x int) ON COMMIT DROP;
					SET LOCAL datestyle = 'SQL, DMY'; SET LOCAL statement_timeout = '1min'; SET LOCAL bytea_output = escape; INSERT INTO app.t VALUES (1, 'v', '2026-02-01 00:00Z')`,
				want: `^v 1 {"id":1,"v":"v","at":"2026-02-01T00:00:00\+00:00"}$`},
			"an unlogged table with a name of 63 bytes": {table: `CREATE UNLOGGED TABLE ` + strings.Repeat("ж", 31) + ` (id int PRIMARY KEY)`,
				attach: Attachment{Table: strings.Repeat("ж", 31)}, statements: `INSERT INTO ` + strings.Repeat("ж", 31) + ` VALUES (1)`, want: `^ж{31} 1 {"id":1}$`},
		} {
			t.Run(name, func(t *testing.T) {
				if c.since > major {
					return // the server can't do it
				}
				conn := connect(t, url)
				exec(t, conn, `DROP SCHEMA IF EXISTS app CASCADE; CREATE SCHEMA app; SET search_path = app`)
				if !strings.HasPrefix(c.table, "CREATE") {
					c.table = "CREATE TABLE t (" + c.table + ")"
				}
				exec(t, conn, c.table)
				exec(t, conn, "BEGIN;"+c.before+";"+c.statements+"; ROLLBACK")
				if c.attach.Table == "" {
					c.attach.Table = "t"
				}
				attach(t, conn, c.attach)
				exec(t, conn, c.before)
				exec(t, conn, `TRUNCATE outbox.messages`)
				exec(t, conn, "BEGIN;"+c.statements+"; COMMIT; RESET ALL")
				want := regexp.MustCompile(c.want)
				list := written(t, conn)
				if len(list) == 0 {
					t.Error("no message")
				}
				for _, m := range list {
					if !want.MatchString(m) {
						t.Errorf("%.500s", m)
					}
				}
			})
		}
	})
}

// written lists topic, key, why there is no valid message, and payload of messages.
func written(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT concat_ws(' ', topic, key, headers #>> '{}', convert_from(payload, 'UTF8')) FROM outbox.messages ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestInADatabaseOfAnotherEncodingNoChangeFails(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	config := conn.Config().Copy()
	config.Database += "_ascii"
	name := pgx.Identifier{config.Database}.Sanitize()
	exec(t, conn, `CREATE DATABASE `+name+` ENCODING SQL_ASCII LOCALE 'C' TEMPLATE template0`)
	ascii, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = ascii.Close(context.Background())
		if _, err := conn.Exec(context.Background(), `DROP DATABASE `+name); err != nil {
			t.Error(err)
		}
	})
	install(t, ascii)
	exec(t, ascii, `CREATE TABLE t (id int PRIMARY KEY, v text)`)
	attach(t, ascii, Attachment{Table: "t"})
	exec(t, ascii, `INSERT INTO t VALUES (1, encode('\x41'::bytea, 'escape')), (2, convert_from('\xe4ff', 'SQL_ASCII'))`)
	var valid, buried int
	err = ascii.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE headers IS NULL), count(*) FILTER (WHERE json_typeof(headers) = 'string'
		AND payload = '\x28322ce4ff29') FROM outbox.messages`).Scan(&valid, &buried)
	if err != nil || valid != 1 || buried != 1 {
		t.Errorf("%d valid, %d buried, %v", valid, buried, err)
	}
}

func TestWhatAnAttachedTableRefusesIfAsked(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	install(t, conn)
	exec(t, conn, `CREATE TABLE t (id text PRIMARY KEY, topic text)`)
	attach(t, conn, Attachment{Table: "t", TopicColumn: "topic", Invalid: "refuse"})
	for statement, want := range map[string]string{
		`INSERT INTO t VALUES ('1', NULL)`:                                                   "topic is empty",
		`INSERT INTO t VALUES (E'a\nb', 't')`:                                                "key contains CR or LF",
		`ALTER TABLE t DROP topic; INSERT INTO t VALUES ('1')`:                               `outbox attach: column "topic" not found`,
		`ALTER TABLE t ALTER id TYPE varchar; INSERT INTO t VALUES (repeat('x', 1100), 't')`: "key has 1100 bytes",
	} {
		if _, err := conn.Exec(t.Context(), statement); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", statement, err)
		}
	}
	exec(t, conn, `INSERT INTO t VALUES ('1', 't')`)
	if got := written(t, conn); len(got) != 1 {
		t.Errorf("got %q", got)
	}
}
