package mapped

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
)

// presetTable makes the table of a preset, and that of its offsets, with ids and times of the given types.
func presetTable(db testdb.DB, p mapping.Preset, id, at string) {
	m := p.Mapping
	columns := make(map[string]string)
	for _, c := range m.MessageColumns() {
		columns[c] = "text"
	}
	for column, as := range map[string]string{m.ID: id + " PRIMARY KEY", m.Payload: "jsonb", m.Headers: "json", m.CreatedAt: at,
		m.Done.At: at, m.Done.AckAt: at, m.Done.UpdatedAt: at, m.Done.Flag: "boolean", m.Done.Partition: "integer",
		m.Failure.Attempts: "integer", m.Failure.Error: "text", m.Claim.Until: at, m.Claim.Since: at,
		m.Offsets.Partition: "integer", m.Offsets.Transaction: "xid8 DEFAULT pg_current_xact_id()"} {
		columns[column] = as
	}
	switch m.Done.How {
	case mapping.DoneTimestamp:
		columns[m.Done.Column] = at
	case mapping.DoneStatus:
		columns[m.Done.Column] = "text DEFAULT '" + m.Done.Waiting + "'"
	}
	delete(columns, "")
	var list []string
	for _, name := range slices.Sorted(maps.Keys(columns)) {
		list = append(list, fmt.Sprintf("%q %s", name, columns[name]))
	}
	if schema, _, found := strings.Cut(m.Table, "."); found {
		db.Exec("CREATE SCHEMA " + schema)
	}
	db.Exec("CREATE TABLE " + m.Table + " (" + strings.Join(list, ", ") + ")")
	if m.Offsets.Table != "" {
		db.Exec(mapping.OffsetsDDL(mapping.TableName{Name: m.Offsets.Table}))
	}
}

// presetRow inserts a row whose time is an expression. The payload is a number.
func presetRow(db testdb.DB, p mapping.Preset, n int, at string) {
	m := p.Mapping
	values := map[string]string{m.Payload: fmt.Sprint("'", n, "'"), cmp.Or(m.AggregateType, "topic"): "'t'"}
	if strings.Contains(m.Topic, "{topic}") {
		values["topic"] = "'t'"
	} else if strings.Contains(m.Topic, "{transaction_type}") {
		values["transaction_type"] = "'t'"
	}
	if m.CreatedAt != "" {
		values[m.CreatedAt] = at
	}
	if m.Offsets.Partition != "" {
		values[m.Offsets.Partition] = "0"
	}
	for name := range values {
		if !slices.Contains(append(m.MessageColumns(), m.Offsets.Partition), name) {
			delete(values, name)
		}
	}
	names := slices.Sorted(maps.Keys(values))
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = values[name]
	}
	db.Exec("INSERT INTO " + m.Table + ` ("` + strings.Join(names, `", "`) + `") VALUES (` + strings.Join(list, ", ") + ")")
}

// oddTimes are the ends of what PostgreSQL can store, and what lies beyond the years that texts usually have.
var oddTimes = []string{"'-infinity'", "'4714-11-24 00:00:00 BC'", "'0044-03-15 BC'", "'0001-01-01'", "'1969-12-31 23:59:59.999999'",
	"now()", "'20231-01-01'", "'294276-12-31 23:59:59.999999'", "'infinity'", "NULL"}

// A relay polls a table that is empty, or drained, like any other, and so one whose rows are of odd times.
func TestEveryPresetStartsOnATableOfWhateverRows(t *testing.T) {
	t.Parallel()
	for _, p := range mapping.Presets() {
		for _, id := range []string{"bigserial", "uuid DEFAULT gen_random_uuid()"} {
			for _, at := range []string{"timestamp with time zone", "timestamp", "moment"} {
				if strings.HasPrefix(id, "uuid") && p.Mapping.Offsets.Table != "" {
					continue // an offset is a number
				}
				t.Run(p.Name+" "+id+" "+at, func(t *testing.T) {
					t.Parallel()
					db := testdb.New(t)
					db.Exec(`CREATE DOMAIN precise AS timestamp(6);
						CREATE DOMAIN moment AS precise CHECK (VALUE > '-infinity' OR VALUE < 'infinity')`)
					presetTable(db, p, id, at)
					source, err := Open(p.Strategy, db.Config(), p.Mapping, Config{Name: "one", PollIdle: time.Millisecond})
					if err != nil {
						t.Fatal(err)
					}
					s, written := acquired(t, source), 0
					idle := func(when string) {
						t.Helper()
						for range 4 { // the first poll has no bound
							if ds, err := s.(strategy).take(t.Context(), 100); len(ds) > 0 || err != nil {
								t.Fatalf("%s: got %d messages, %v", when, len(ds), err)
							}
						}
					}
					deliver := func(times ...string) {
						t.Helper()
						for _, at := range times {
							written++
							presetRow(db, p, written, at)
						}
						ds := read(t, s, len(times))
						seen := make(map[string]bool)
						for i := range ds {
							seen[string(ds[i].Payload)] = true
							if ds[i].Invalid != nil {
								t.Errorf("message %s: %v", ds[i].Payload, ds[i].Invalid)
							}
						}
						if len(seen) != len(times) {
							t.Errorf("of %d rows came %v", len(times), seen)
						}
						if err := s.Settle(t.Context(), relay.Settlement{Through: &ds[len(ds)-1], Delivered: len(ds)}); err != nil {
							t.Fatal(err)
						}
					}
					idle("empty")
					deliver("now()")
					idle("drained")
					deliver(oddTimes...)
					deliver("now()")
					if err := s.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
					s = acquired(t, source)
					idle("drained, at the start")
					deliver(oddTimes...)
					idle("after rows of odd times")
				})
			}
		}
	}
}

// A relay that could mark no row, or would find none that waits, doesn't start. With an offset it needs no mark.
func TestNoRelayStartsOnATableWhoseRowsCanNeverWait(t *testing.T) {
	t.Parallel()
	for change, reason := range map[string]string{
		"ALTER status SET DEFAULT 'done'":           "has the default 'done'",
		"ALTER status TYPE varchar(3)":              "too short",
		"ADD CHECK (status IN ('new', 'taken'))":    "can't be 'done'",
		"ADD CHECK (status NOT IN ('new', 'open'))": "can't be 'new'",
	} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Exec("ALTER TABLE events " + change)
			for name, open := range strategies() {
				source, err := open(db.Config(), Config{Name: "one"})
				if err != nil {
					t.Fatal(err)
				}
				marks := name != "xmin" && name != "serial"
				s, err := source.Acquire(t.Context())
				if marks && (!outbox.IsPermanent(err) || !strings.Contains(err.Error(), reason)) || !marks && err != nil {
					t.Errorf("%s: got %v, want %q", name, err, reason)
				}
				if err == nil {
					_ = s.Close(t.Context())
				}
			}
		})
	}
}
