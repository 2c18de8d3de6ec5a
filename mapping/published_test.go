package mapping

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
)

// PostgreSQL refuses to change rows without a key, of tables that a publication has.
func TestAPublishedTableWithoutAKeyIsRefusedIfItsRowsAreMarked(t *testing.T) {
	t.Parallel()
	servers.OnMajors(t, func(t *testing.T, config servers.PostgresConfig) {
		conn, err := pgx.Connect(t.Context(), servers.TestDatabase(t, config))
		must(t, err)
		exec := func(sql string) error {
			_, err := conn.Exec(t.Context(), sql)
			return err
		}
		run := func(sql string) {
			t.Helper()
			if err := exec(sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		run(`CREATE PUBLICATION everything FOR ALL TABLES`)
		const keyless = `CREATE TABLE own (id bigint NOT NULL, topic text, payload text, sent boolean)`
		const parted = keyless + ` PARTITION BY LIST (id); CREATE TABLE "Own 1" PARTITION OF own FOR VALUES IN (1)`
		for tables, refused := range map[string]bool{
			keyless: true,
			keyless + `; ALTER TABLE own REPLICA IDENTITY FULL`:                                                                               false,
			keyless + `; ALTER TABLE own ADD PRIMARY KEY (id)`:                                                                                false,
			keyless + `; ALTER TABLE own ADD PRIMARY KEY (id) DEFERRABLE`:                                                                     true,
			keyless + `; ALTER TABLE own ADD PRIMARY KEY (id); ALTER TABLE own REPLICA IDENTITY NOTHING`:                                      true,
			keyless + `; ALTER TABLE own ALTER id SET NOT NULL, ADD CONSTRAINT k UNIQUE (id); ALTER TABLE own REPLICA IDENTITY USING INDEX k`: false,
			keyless + `; ALTER PUBLICATION everything SET (publish = 'insert, truncate')`:                                                     false,
			parted: true,
			parted + `; ALTER PUBLICATION everything SET (publish_via_partition_root = true)`: true,
			parted + `; ALTER TABLE own ADD PRIMARY KEY (id)`:                                 false,
		} {
			run(`DROP TABLE IF EXISTS own; ALTER PUBLICATION everything SET (publish = 'insert, update, delete, truncate', publish_via_partition_root = false)`)
			run(tables)
			run(`INSERT INTO own VALUES (1, 't', 'p', false)`)
			table, err := ReadTable(t.Context(), conn, TableName{Name: "own"})
			must(t, err)
			for _, done := range []Done{{How: DoneBoolean, Column: "sent"}, {How: DoneDelete}} {
				statement := `UPDATE own SET sent = true`
				if done.How == DoneDelete {
					statement = `DELETE FROM own`
				}
				if works := exec(`BEGIN; `+statement) == nil; works == refused {
					t.Errorf("%s: the server's own opinion of %s is another", tables, statement)
				}
				run(`ROLLBACK`)
				m := Mapping{Table: "own", ID: "id", Topic: "{topic}", Payload: "payload", Done: done}
				err := m.Allowed(t.Context(), conn, table)
				if (err != nil) != refused || refused && (!errors.Is(err, ErrMapping) || !strings.Contains(err.Error(), `publication "everything" has`)) {
					t.Errorf("%s, %s: %v", tables, done.How, err)
				}
			}
			for publishes, m := range map[string]Mapping{
				"update": {Done: Done{How: DoneDelete}, Claim: Claim{Until: "until"}},
				"delete": {Done: Done{How: DoneBoolean, Column: "sent"}, Failure: Failure{DeadTable: "dead"}},
			} {
				if tables != keyless {
					break
				}
				run(`ALTER PUBLICATION everything SET (publish = '` + publishes + `')`)
				if err := m.Allowed(t.Context(), conn, table); err == nil {
					t.Errorf("a publication of %ss: a row can't be marked, and nobody tells", publishes)
				}
			}
			m := Mapping{Table: "own", ID: "id", Topic: "{topic}", Payload: "payload"} // an offset
			if err := m.Allowed(t.Context(), conn, table); err != nil {
				t.Errorf("%s: no row is changed, and yet: %v", tables, err)
			}
		}
	})
}
