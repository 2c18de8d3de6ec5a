package health

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/mapping"
)

// states makes a table whose rows have random ids and a status, and whose relay began two hours ago.
func (d *database) states() {
	d.T.Helper()
	d.Table("")
	m, err := json.Marshal(mapping.Mapping{Table: "states", ID: "id", Topic: "{topic}", CreatedAt: "created_at",
		Done: mapping.Done{How: mapping.DoneStatus, Column: "status", Value: "SENT", Waiting: "NEW"}})
	if err != nil {
		d.T.Fatal(err)
	}
	d.MustExec(`CREATE TABLE states (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), topic text, created_at timestamptz, status text)`)
	d.MustExec(`UPDATE outbox.tables SET mapping = $1::text::jsonb`, string(m))
}

// A status of the author's own is no sign that the relay does nothing, unless the row came after it last did something.
func TestAStatusThatTheMappingDoesNotNameIsToldWithoutAnAlarm(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.states()
	d.MustExec(`INSERT INTO states (created_at, status) VALUES (now() - interval '3 hours', 'CANCELLED'), (now() - interval '4 hours', NULL),
		(now() - interval '5 hours', 'SENT')`)
	r := d.status()
	untold := strings.Join(r.destination("shop").Table.Untold, "; ")
	if r.Verdict.State != StateIdle || !strings.Contains(untold, `2 of the newest rows have a status that the mapping does not name, such as "CANCELLED"`) {
		t.Errorf("%q, and it tells %q", r.Verdict, untold)
	}
	d.MustExec(`INSERT INTO states (created_at, status) VALUES (now() - interval '1 hour', 'new')`)
	r = d.status()
	if v := r.Verdict; v.State != StateAtRisk || !strings.Contains(v.Cause, "a row of table states, from 1h ago") {
		t.Errorf("of a row that came since: %q", v)
	}
}

// The newest rows are found by their age where ids tell nothing of it.
func TestRowsThatWerePassedOverAreFoundAmongRandomIds(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"a small table": ``,
		"a large table": `CREATE INDEX ON states (created_at); ALTER TABLE states ADD filler text;
			ALTER TABLE states ALTER filler SET STORAGE PLAIN;
			INSERT INTO states (created_at, status, filler) SELECT now() - interval '1 day', 'SENT', repeat('x', 8000) FROM generate_series(1, 8500) i`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := setup(t)
			d.states()
			d.MustExec(`INSERT INTO states (created_at, status) SELECT now() - interval '1 day', 'SENT' FROM generate_series(1, 2000) i`)
			d.MustExec(`INSERT INTO states (id, created_at, status) VALUES ('00000000-0000-4000-8000-000000000000', now() - interval '1 hour', 'SENT')`)
			if sql != "" {
				d.MustExec(sql)
			}
			if p := d.status().destination("shop").Table.Passed; p.N != 1 {
				t.Errorf("%v rows were passed over, want 1", p)
			}
		})
	}
}

// A dead letter that its table drops when it comes back stays among the dead letters.
func TestADeadLetterThatDoesNotComeBackStays(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.states()
	d.MustExec(`UPDATE outbox.tables SET mapping = mapping || '{"Failure": {"DeadTable": "states_dead"}}'`)
	d.MustExec(`CREATE TABLE states_dead (LIKE states, PRIMARY KEY (id)); INSERT INTO states_dead SELECT gen_random_uuid(), 't', now(), 'NEW' FROM generate_series(1, 2);
		CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER drops BEFORE INSERT ON states FOR EACH ROW EXECUTE FUNCTION drops()`)
	requeue := func() (jobs.RowOutcome, error) {
		return jobs.RequeueRows(t.Context(), d.Conn, jobs.RowSelection{Destination: "shop"}, admin.Action{Actor: "anna"})
	}
	if _, err := requeue(); err == nil || !strings.Contains(err.Error(), "has taken 0 of 2 rows") {
		t.Errorf("got %v", err)
	}
	if n := d.Int(`SELECT count(*) FROM states_dead`); n != 2 {
		t.Errorf("%d dead letters are left", n)
	}
	d.MustExec(`DROP TRIGGER drops ON states`)
	if out, err := requeue(); err != nil || out.Rows != 2 || d.Int(`SELECT count(*) FROM states`) != 2 {
		t.Errorf("%d rows came back, %v", out.Rows, err)
	}
}
