package mapping

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
)

// TestWhatIsMissingIsCreatedByItsStatements runs the statements: then nothing is missing, and they fit the table.
func TestWhatIsMissingIsCreatedByItsStatements(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), servers.TestDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), `CREATE SCHEMA "My"; CREATE TABLE "My"."Box" (id bigserial PRIMARY KEY, topic text, body text,
		reason text, part int)`); err != nil {
		t.Fatal(err)
	}
	slot := "missing_" + conn.Config().Database
	m := Mapping{Table: "My.Box", ID: "id", Topic: "{topic}", Payload: "body", Failure: Failure{DeadTable: "My.Box_dead"},
		Offsets: Offsets{Table: "My.Offsets", Topic: "topic", Partition: "part"}}
	for _, c := range []struct {
		strategy string
		want     string
	}{
		{Advisory, "table of dead letters My.Box_dead"},
		{Serial, "table of offsets My.Offsets"},
		{Replication, "publication Pub, replication slot " + slot + ", which has what is committed from now on"},
	} {
		missing, err := Missing(t.Context(), conn, &m, c.strategy, slot, "Pub")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range missing {
			got = append(got, s.What)
			if _, err := conn.Exec(t.Context(), s.SQL); err != nil {
				t.Errorf("%s: %v", s.SQL, err)
			}
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s lacks %q, want %s", c.strategy, got, c.want)
		}
		if missing, err = Missing(t.Context(), conn, &m, c.strategy, slot, "Pub"); err != nil || len(missing) > 0 {
			t.Errorf("%s still lacks %v, %v", c.strategy, missing, err)
		}
	}
	m.Table = "gone"
	if _, err := Missing(t.Context(), conn, &m, Advisory, "", ""); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("without the table: %v", err)
	}
}
