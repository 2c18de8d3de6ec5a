package mapping

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

func TestWhatMovesDoesNotDependOnTheSessionThatInserts(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), servers.TestDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := schema.Up(t.Context(), conn, schema.UpConfig{}); err != nil {
		t.Fatal(err)
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE own (id bigserial PRIMARY KEY, topic text DEFAULT 't', body text DEFAULT 'x', at timestamptz, late timestamptz,
		local timestamp, day date, took interval, bytes bytea, ratio float8, due timestamp, sent_at timestamp)`)
	table, err := ReadTable(t.Context(), conn, TableName{Name: "own"})
	if err != nil {
		t.Fatal(err)
	}
	m := Mapping{Table: "own", ID: "id", Topic: "{topic}", Payload: "body", DeliverAt: "due",
		Done: Done{How: DoneTimestamp, Column: "sent_at"}}
	for _, column := range []string{"at", "late", "local", "day", "took", "bytes", "ratio"} {
		m.HeaderColumns = append(m.HeaderColumns, HeaderColumn{Name: column, Column: column})
	}
	begin, _, err := m.Move(table)
	if err != nil {
		t.Fatal(err)
	}
	exec(begin)
	exec(`SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Kathmandu'; SET bytea_output = escape; SET intervalstyle = iso_8601;
		SET extra_float_digits = -3`)
	exec(`INSERT INTO own (at, late, local, day, took, bytes, ratio, due)
		VALUES ('2026-02-01T00:00:00Z', 'infinity', '2026-02-01 05:45', '2026-02-01', '90 min', 'x', 1.0 / 3, '2026-02-01 05:45')`)
	var got string
	var marked bool
	err = conn.QueryRow(t.Context(), `SELECT headers::jsonb::text || (deliver_at = '2026-02-01T00:00:00Z') FROM outbox.messages`).Scan(&got)
	if err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
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
			if err != nil {
				t.Fatal(err)
			}
			m := Mapping{Table: quoted, ID: "id", Topic: "t", Payload: "body", Headers: "h", Done: Done{How: DoneBoolean, Column: "sent"},
				HeaderColumns: []HeaderColumn{{"a", column}, {"b", column}, {"b", "second"}, {"c", "second"}}}
			begin, back, err := m.Move(table)
			if err != nil {
				t.Fatal(err)
			}
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
	conn, err := pgx.Connect(t.Context(), servers.TestDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := schema.Up(t.Context(), conn, schema.UpConfig{}); err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	if _, _, err := m.Move(read()); err == nil || !strings.Contains(err.Error(), "--writer '"+role) {
		t.Errorf("the owner is no writer: %v", err)
	}
	exec(schema.Grants(role, "", ""))
	begin, _, err := m.Move(read())
	if err != nil {
		t.Fatal(err)
	}
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
