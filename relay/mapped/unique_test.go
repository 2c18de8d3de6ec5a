package mapped

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
)

// A row is marked by its id, and so would be all rows of that id: those that were not read yet would be lost.
func TestATableWhoseIdsRepeatIsRefused(t *testing.T) {
	t.Parallel()
	for _, strategy := range mapping.Strategies() {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.Exec(`CREATE TABLE ev (tenant int, id bigint, topic text NOT NULL DEFAULT 't', payload text, part int NOT NULL DEFAULT 0,
				xid xid8 NOT NULL DEFAULT '3', until timestamptz, sent boolean DEFAULT false, PRIMARY KEY (tenant, id)) PARTITION BY LIST (tenant);
				CREATE TABLE ev_1 PARTITION OF ev FOR VALUES IN (1); CREATE TABLE ev_2 PARTITION OF ev DEFAULT`)
			db.Exec(mapping.OffsetsDDL(mapping.TableName{Name: "ev_offsets"}))
			m := offsetMapping()
			if strategy != mapping.XMin && strategy != mapping.Serial {
				m.Done, m.Claim.Until = mapping.Done{How: mapping.DoneBoolean, Column: "sent"}, "until"
			}
			source := opened(t)(Open(strategy, db.Config(), m, Config{Name: "one", Slot: "none", Publication: "none"}))
			s, err := source.Acquire(t.Context())
			if err == nil {
				_ = s.Close(t.Context())
			}
			if !errors.Is(err, mapping.ErrMapping) || !strings.Contains(err.Error(), "two rows could have the same one") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// What a relay has required at its start it requires while it runs.
func TestASessionEndsWhenItsTableFitsNoMore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ change, says string }{
		"a child":       {`CREATE TABLE child (LIKE events INCLUDING ALL) INHERITS (events)`, "two rows could have the same one"},
		"no index":      {`ALTER TABLE events DROP CONSTRAINT events_pkey`, "has no unique index"},
		"another order": {`ALTER SEQUENCE events_id_seq CACHE 9`, "were changed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			cfg := Config{Name: "one", Lease: shortLease, PollIdle: time.Millisecond}
			source := opened(t)(Open(mapping.Advisory, db.Config(), events(), cfg))
			s := acquired(t, source)
			db.Exec(c.change)
			var err error
			for err == nil {
				_, err = s.Next(t.Context(), 1)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
}

// Rows of all partitions and children are sent, and each is marked by its own id, if one sequence numbers them.
func TestRowsOfPartitionsAndChildrenAreMarkedOneByOne(t *testing.T) {
	t.Parallel()
	const columns = `topic text DEFAULT 't', payload text, tenant int, sent boolean DEFAULT false`
	for name, ddl := range map[string]string{
		"partitions": `CREATE TABLE ev (id bigserial, ` + columns + `, PRIMARY KEY (tenant, id)) PARTITION BY LIST (tenant);
			CREATE TABLE ev_1 PARTITION OF ev FOR VALUES IN (1); CREATE TABLE ev_2 PARTITION OF ev FOR VALUES IN (2)`,
		"children": `CREATE TABLE ev (id bigserial PRIMARY KEY, ` + columns + `); CREATE TABLE ev_1 () INHERITS (ev); CREATE TABLE ev_2 () INHERITS (ev)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t)
			db.Exec(ddl)
			for n := range 6 {
				db.Exec(fmt.Sprintf(`INSERT INTO ev_%d (payload, tenant) VALUES ('%d', %[1]d)`, n%2+1, n))
			}
			m := mapping.Mapping{Table: "ev", ID: "id", Topic: "{topic}", Payload: "payload",
				Done: mapping.Done{How: mapping.DoneBoolean, Column: "sent"}}
			source := opened(t)(Open(mapping.Advisory, db.Config(), m, Config{Name: "one", PollIdle: time.Millisecond}))
			s := acquired(t, source)
			for n, d := range read(t, s, 6) {
				if string(d.Payload) != fmt.Sprint(n) {
					t.Errorf("got %q, want %d", d.Payload, n)
				}
				must(t, s.Settle(t.Context(), relay.Settlement{Through: &d, Delivered: 1}))
				db.Await(fmt.Sprintf(`SELECT count(*) = %d FROM ev WHERE sent`, n+1))
			}
		})
	}
}
