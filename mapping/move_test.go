package mapping

import (
	"cmp"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

func TestWhatMovesDoesNotDependOnTheSessionThatInserts(t *testing.T) {
	t.Parallel()
	conn, exec := installed(t)
	exec(`CREATE TABLE own (id bigserial PRIMARY KEY, topic text DEFAULT 't', body text DEFAULT 'x', at timestamptz, late timestamptz,
		local timestamp, day date, took interval, bytes bytea, ratio float8, due timestamp, sent_at timestamp)`)
	table, err := ReadTable(t.Context(), conn, TableName{Name: "own"})
	must(t, err)
	m := Mapping{Table: "own", ID: "id", Topic: "{topic}", Payload: "body", DeliverAt: "due",
		Done: Done{How: DoneTimestamp, Column: "sent_at"}}
	for _, column := range []string{"at", "late", "local", "day", "took", "bytes", "ratio"} {
		m.HeaderColumns = append(m.HeaderColumns, HeaderColumn{Name: column, Column: column})
	}
	begin, _, err := m.Move(table, SkipLocked)
	must(t, err)
	exec(begin)
	exec(`SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Kathmandu'; SET bytea_output = escape; SET intervalstyle = iso_8601;
		SET extra_float_digits = -3`)
	exec(`INSERT INTO own (at, late, local, day, took, bytes, ratio, due)
		VALUES ('2026-02-01T00:00:00Z', 'infinity', '2026-02-01 05:45', '2026-02-01', '90 min', 'x', 1.0 / 3, '2026-02-01 05:45')`)
	var got string
	var marked bool
	err = conn.QueryRow(t.Context(), `SELECT headers::jsonb::text || (deliver_at = '2026-02-01T00:00:00Z') FROM outbox.messages`).Scan(&got)
	must(t, err)
	want := `{"at": "2026-02-01 00:00:00+00", "day": "2026-02-01", "late": "infinity", "took": "01:30:00", ` +
		`"bytes": "\\x78", "local": "2026-02-01 05:45:00", "ratio": "0.3333333333333333"}true`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// The mark is by the clock of the session.
	if err := conn.QueryRow(t.Context(), `SELECT abs(extract(epoch FROM sent_at - localtimestamp)) < 600 FROM own`).Scan(&marked); err != nil || !marked {
		t.Errorf("marked by another clock: %v", err)
	}
}

// The same header by several ways, a header that is null or no string, an id as a text, and names that are hostile.
func TestWhatMovesIsWhatARelayWouldHaveRead(t *testing.T) {
	t.Parallel()
	for _, major := range []string{"14", "18"} {
		conn, err := pgx.Connect(t.Context(), servers.TestDatabase(t, servers.PostgresConfig{Major: major}))
		must(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		if _, err := schema.Up(t.Context(), conn, schema.UpConfig{}); err != nil {
			t.Fatal(err)
		}
		for n, name := range []string{strings.Repeat("x", 62), strings.Repeat("x", 61), strings.Repeat("ж", 31), strings.Repeat("ж", 30) + `"`} {
			quoted := schema.QuoteIdentifier(name)
			const column = `$outbox$; SELECT 1/0; --`
			sql := `TRUNCATE outbox.messages; CREATE TABLE ` + quoted + ` (id text PRIMARY KEY, body text, h json, "` + column + `" text, second text, sent boolean DEFAULT false)`
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
			table, err := ReadTable(t.Context(), conn, TableName{Name: name})
			must(t, err)
			m := Mapping{Table: quoted, ID: "id", Topic: "t", Payload: "body", Headers: "h", Done: Done{How: DoneBoolean, Column: "sent"},
				HeaderColumns: []HeaderColumn{{"a", column}, {"b", column}, {"b", "second"}, {"c", "second"}}}
			begin, back, err := m.Move(table, SkipLocked)
			must(t, err)
			sql = begin + begin + `INSERT INTO ` + quoted + ` VALUES ('A0000000-0000-4000-8000-00000000000A', 'x', '{"a":"1","a":"2","n":1.50,"o":{"k": [1]},"z":null}', 'col', 'sec'), ('none', 'x', 'null', NULL, NULL);` + back + back
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%d: %v", n, err)
			}
			var got string
			err = conn.QueryRow(t.Context(), `SELECT string_agg(CASE WHEN headers IS NOT NULL THEN message_id::text ELSE '' END || coalesce(headers::jsonb::text, 'none'), ' ' ORDER BY id)
				FROM outbox.messages`).Scan(&got)
			want := `a0000000-0000-4000-8000-00000000000a{"a": "2", "b": "col", "c": "sec", "n": "1.50", "o": "{\"k\": [1]}", "z": "null"} none`
			if err != nil || got != want {
				t.Errorf("%d: got %s, %v, want %s", n, got, err, want)
			}
		}
	}
}

// A superuser runs it, and the trigger has the rights of the table's owner.
func TestTheTriggerThatMovesHasTheRightsOfTheTablesOwner(t *testing.T) {
	t.Parallel()
	conn, _ := installed(t)
	role := conn.Config().Database + " mal"
	quoted := schema.QuoteIdentifier(role)
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE ROLE ` + quoted)
	t.Cleanup(func() {
		_, _ = conn.Exec(context.Background(), `RESET ROLE; DROP OWNED BY `+quoted+` CASCADE; DROP ROLE `+quoted)
	})
	exec(`CREATE SCHEMA mine AUTHORIZATION ` + quoted + `; SET search_path = mine; SET ROLE ` + quoted + `; CREATE TYPE col AS ENUM ('a');
		CREATE TABLE ran (who text); CREATE TABLE own (id int PRIMARY KEY, topic col, body text, sent boolean DEFAULT false);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO mine.ran VALUES (current_user); RETURN NEW; END';
		CREATE TRIGGER note BEFORE UPDATE ON own FOR EACH ROW EXECUTE FUNCTION note();
		CREATE FUNCTION cast_of(v col) RETURNS text LANGUAGE plpgsql AS 'BEGIN INSERT INTO mine.ran VALUES (''a cast''); RETURN 1; END'; RESET ROLE`)
	m := Mapping{Table: "own", ID: "id", Topic: "{topic}", Payload: "body", Done: Done{How: DoneBoolean, Column: "sent"}}
	read := func() *Table {
		table, err := ReadTable(t.Context(), conn, TableName{Name: "own"})
		must(t, err)
		return table
	}
	if _, _, err := m.Move(read(), SkipLocked); err == nil || !strings.Contains(err.Error(), "--writer '"+role) {
		t.Errorf("the owner is no writer: %v", err)
	}
	exec(schema.Grants(role, "", ""))
	begin, _, err := m.Move(read(), SkipLocked)
	must(t, err)
	exec(begin + `SET ROLE ` + quoted + `; CREATE CAST (col AS text) WITH FUNCTION cast_of(col); RESET ROLE; INSERT INTO own VALUES (1, 'a')`)
	var got string
	if err := conn.QueryRow(t.Context(), `SELECT string_agg(who, ',') FROM ran`).Scan(&got); err != nil || got != role {
		t.Errorf("code of the owner ran as %s: %v", got, err)
	}
	exec(`ALTER TABLE own OWNER TO CURRENT_USER`)
	if _, err := conn.Exec(t.Context(), `INSERT INTO own VALUES (2, 'a')`); err == nil || !strings.Contains(err.Error(), "has another owner") {
		t.Errorf("the table is somebody else's: %v", err)
	}
}

// A row that a relay would not deliver, or that it would deliver later, is left alone, or is due later.
func TestWhatMovesIsWhatARelayWouldDeliverAndWhen(t *testing.T) {
	t.Parallel()
	conn, _ := installed(t)
	status := Done{How: DoneStatus, Column: "state", Waiting: "new", Value: "sent"}
	times := Failure{Attempts: "tried", Error: "error", NextAttempt: "next"}
	for name, c := range map[string]struct {
		columns  string
		m        Mapping
		strategy string
		insert   string // id first
		messages string // each with the time from which it is due
		rows     string // what the table has then
	}{
		"timestamp": {"at timestamptz", Mapping{Done: Done{How: DoneTimestamp, Column: "at"}}, SkipLocked,
			`(1, '2020-01-01'), (2, NULL)`, `2`, `1 2020-01-01 00:00:00+00, 2 marked`},
		"boolean": {"at boolean", Mapping{Done: Done{How: DoneBoolean, Column: "at"}}, Advisory,
			`(1, true), (2, NULL), (3, false)`, `2, 3`, `1 t, 2 t, 3 t`},
		"status": {"state text", Mapping{Done: status, Failure: Failure{FailedValue: "failed"}}, Advisory,
			`(1, 'draft'), (2, 'sent'), (3, 'new'), (4, 'failed'), (5, NULL)`, `3`, `1 draft, 2 sent, 3 sent, 4 failed, 5`},
		"claimed by a status": {"state text, since timestamptz", Mapping{Done: status, Claim: Claim{Status: "busy", Since: "since"}}, Lease,
			`(1, 'busy', now()), (2, 'new', now())`, `2`, `1 busy marked, 2 sent marked`},
		"claimed until": {"until timestamptz", Mapping{Claim: Claim{Until: "until"}}, Lease,
			`(1, '2130-01-01'), (2, NULL), (3, '-infinity'), (4, 'infinity')`, `1 2130-01-01, 2, 3`, `4 infinity`},
		"claimed until, by another strategy": {"until timestamptz", Mapping{Claim: Claim{Until: "until"}}, SkipLocked,
			`(1, '2130-01-01'), (2, 'infinity')`, `1, 2`, ``},
		"claimed until, without a zone": {"until timestamp", Mapping{Claim: Claim{Until: "until"}}, Lease,
			`(1, '2130-01-01'), (2, 'infinity')`, `1 2130-01-01`, `2 infinity`},
		"the next attempt": {"next timestamptz, tried int, error text", Mapping{Failure: times}, SkipLocked,
			`(1, '2130-01-01', 1, 'x'), (2, 'infinity', 1, 'x'), (3, 'infinity', 0, 'x'), (4, '2130-01-01', 0, 'x'), (5, '2130-01-01', 0, NULL)`,
			`1 2130-01-01, 3, 4, 5 2130-01-01`, `2 infinity 1 x`},
		"the latest of all": {"due timestamp, until timestamptz, next timestamp, tried int, error text",
			Mapping{DeliverAt: "due", Claim: Claim{Until: "until"}, Failure: times}, Lease,
			`(1, '2130-01-03', '2130-01-02', '2130-01-01'), (2, '2130-01-01', '2130-01-03', NULL), (3, NULL, NULL, '2130-01-03'),
			(4, '2130-01-01', 'infinity', '2130-01-02'), (5, NULL, 'infinity', NULL), (6, '2130-01-01', NULL, 'infinity'),
			(7, 'infinity', '2130-01-01', NULL), (8, '-infinity', NULL, NULL), (9, '1960-01-01', NULL, NULL)`,
			`1 2130-01-03, 2 2130-01-03, 3 2130-01-03, 4 2130-01-02, 5, 7 9999-12-31, 8, 9`, `6 2130-01-01 00:00:00 infinity`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := conn.Exec(t.Context(), `SET timezone = UTC; DROP TABLE IF EXISTS own; TRUNCATE outbox.messages;
				CREATE TABLE own (id int PRIMARY KEY, `+c.columns+`, body text DEFAULT '-')`); err != nil {
				t.Fatal(err)
			}
			table, err := ReadTable(t.Context(), conn, TableName{Name: "own"})
			must(t, err)
			m := c.m
			m.Table, m.ID, m.Topic, m.Key, m.Payload, m.RowsMayBeDeleted = "own", "id", "t", "{id}", "body", true
			m.Done.How = cmp.Or(m.Done.How, DoneDelete)
			begin, _, err := m.Move(table, c.strategy)
			must(t, err)
			if _, err := conn.Exec(t.Context(), begin+`INSERT INTO own VALUES `+c.insert); err != nil {
				t.Fatal(err)
			}
			var messages, rows string
			if err := conn.QueryRow(t.Context(), `SELECT
				(SELECT coalesce(string_agg(concat_ws(' ', key, deliver_at::date), ', ' ORDER BY key), '') FROM outbox.messages),
				(SELECT coalesce(string_agg(regexp_replace(btrim(translate(own::text, '(),"', '   ')), ' +', ' ', 'g'), ', ' ORDER BY id), '') FROM own)`,
			).Scan(&messages, &rows); err != nil {
				t.Fatal(err)
			}
			rows = regexp.MustCompile(time.Now().UTC().Format("2006-")+`\S+ \S+\+00`).ReplaceAllString(strings.ReplaceAll(rows, " -", ""), "marked")
			if messages != c.messages || rows != c.rows {
				t.Errorf("messages %q, rows %q\nwant     %q, rows %q", messages, rows, c.messages, c.rows)
			}
		})
	}
}
