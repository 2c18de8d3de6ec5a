package mapping

import (
	"strings"
	"testing"
)

// TestWhatIsMissingIsCreatedByItsStatements runs the statements: then nothing is missing, and they fit the table.
func TestWhatIsMissingIsCreatedByItsStatements(t *testing.T) {
	t.Parallel()
	conn := tableOf(t, `CREATE SCHEMA "My"; CREATE TABLE "My"."Box" (id bigserial PRIMARY KEY, topic text, body text,
		reason text, part int)`)
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
		must(t, err)
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

// A slot has passed over what was inserted without a publication, so the statement that makes one is not enough.
func TestAPublicationIsNotMadeBehindASlot(t *testing.T) {
	t.Parallel()
	conn, exec := connected(t)
	slot := "behind_" + conn.Config().Database
	exec(`CREATE TABLE box (id bigint PRIMARY KEY, topic text, body text)`)
	exec(CreateSlotSQL(slot))
	m := Mapping{Table: "box", ID: "id", Topic: "{topic}", Payload: "body"}
	missing := func() ([]Statement, error) { return Missing(t.Context(), conn, &m, Replication, slot, "P") }
	for _, sql := range []string{``, `CREATE PUBLICATION "P"`, `ALTER PUBLICATION "P" ADD TABLE box; ALTER PUBLICATION "P" SET (publish = 'update')`} {
		if sql != "" {
			exec(sql)
		}
		all, err := missing()
		if err == nil || !strings.Contains(err.Error(), "SELECT pg_drop_replication_slot('"+slot+"')") {
			t.Errorf("%q: %v, %v, want an error that names the slot", sql, all, err)
		}
	}
	exec("SELECT pg_drop_replication_slot('" + slot + "')")
	if all, err := missing(); err != nil || len(all) != 2 {
		t.Errorf("without the slot: %v, %v", all, err)
	}
	if conn.QueryRow(t.Context(), "SELECT 1 WHERE current_setting('server_version_num')::int >= 150000").Scan(new(int)) == nil {
		exec(`ALTER PUBLICATION "P" SET (publish = 'insert'); ALTER PUBLICATION "P" SET TABLE box WHERE (id > 1)`)
		if all, err := missing(); err == nil || !strings.Contains(err.Error(), "row filter") {
			t.Errorf("with a filter: %v, %v", all, err)
		}
	}
}

// A publication counts only as far as it sends inserts in the table's name.
func TestAPublicationThatLacksTheTableIsCompleted(t *testing.T) {
	t.Parallel()
	conn, exec := connected(t)
	exec(`CREATE TABLE other (id bigint PRIMARY KEY); CREATE TABLE plain (id bigint PRIMARY KEY, topic text, body text);
		CREATE TABLE parted (id bigint PRIMARY KEY, topic text, body text) PARTITION BY RANGE (id); CREATE TABLE part PARTITION OF parted DEFAULT`)
	const root = `ALTER PUBLICATION "P" SET (publish_via_partition_root = true);`
	for _, c := range []struct{ publication, table, want string }{
		{`FOR TABLE other`, "plain", `ALTER PUBLICATION "P" ADD TABLE "public"."plain";`},
		{``, "plain", `ALTER PUBLICATION "P" ADD TABLE "public"."plain";`},
		{`FOR TABLE plain`, "plain", ``},
		{`FOR ALL TABLES`, "plain", ``},
		{`FOR TABLE plain WITH (publish = 'update, delete')`, "plain", `ALTER PUBLICATION "P" SET (publish = 'insert, update, delete');`},
		{`FOR TABLE parted WITH (publish_via_partition_root = true)`, "parted", ``},
		{`FOR TABLE parted`, "parted", root},
		{`FOR ALL TABLES`, "parted", root},
		{`FOR TABLE other`, "parted", root + ` ALTER PUBLICATION "P" ADD TABLE "public"."parted";`},
	} {
		exec(`DROP PUBLICATION IF EXISTS "P"; CREATE PUBLICATION "P" ` + c.publication)
		m := Mapping{Table: c.table, ID: "id", Topic: "{topic}", Payload: "body"}
		look := func() (sql string) {
			t.Helper()
			missing, err := Missing(t.Context(), conn, &m, Replication, "none_"+conn.Config().Database, "P")
			must(t, err)
			for _, s := range missing {
				if strings.Contains(s.What, "publication") {
					sql = s.SQL
				}
			}
			return sql
		}
		got := look()
		if got != c.want {
			t.Errorf("%q, table %s: %q, want %q", c.publication, c.table, got, c.want)
		}
		if got != "" {
			exec(got)
		}
		if left := look(); left != "" {
			t.Errorf("%q, table %s: it was run, and is still to do: %s", c.publication, c.table, left)
		}
	}
}
