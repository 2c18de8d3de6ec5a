package mapping

import (
	"context"
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
