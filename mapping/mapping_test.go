package mapping

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestNamesOfTablesAreReadAndQuoted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"outbox": `"outbox"`, "p2p.transaction_outbox": `"p2p"."transaction_outbox"`,
		`"a.b"."C ""d"""`: `"a.b"."C ""d"""`, `x'; DROP TABLE y; --`: `"x'; DROP TABLE y; --"`,
	} {
		name, err := ParseTableName(text)
		if err != nil || name.String() != want {
			t.Errorf("%s is read as %s, %v, want %s", text, name, err, want)
		}
	}
	for _, text := range []string{"", ".a", "a.", "a.b.c", `"a`, `"a"b`, "a\x00"} {
		if name, err := ParseTableName(text); err == nil {
			t.Errorf("%q is read as %s", text, name)
		}
	}
}

func TestTemplatesNameColumns(t *testing.T) {
	t.Parallel()
	parts, err := ParseTemplate("outbox.event.{aggregate_type}-{id}")
	want := []TemplatePart{{Text: "outbox.event."}, {Column: "aggregate_type"}, {Text: "-"}, {Column: "id"}}
	if err != nil || !slices.Equal(parts, want) {
		t.Errorf("got %+v, %v", parts, err)
	}
	for _, text := range []string{"{", "}", "{}", "a{b", "{a{b}}", "a}b"} {
		if _, err := ParseTemplate(text); err == nil {
			t.Errorf("%q is taken for a template", text)
		}
	}
}

func TestEveryFaultOfAMappingIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	m := Mapping{Table: "a.b.c", Topic: "{", Types: []string{"x"},
		Done: Done{How: DoneStatus}, Claim: Claim{Until: "a", Status: "b"}, Lock: []int64{1, 2, 3}}
	err := m.Validate()
	if err == nil {
		t.Fatal("no fault was found")
	}
	for _, want := range []string{`"a.b.c" has 3 parts`, "for the id",
		"for the payload", `"{" is not a template`, "event type", "no column is named for it", "not both its values",
		"by a time and by a status", "the time since when", "3 numbers"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error doesn't say %q: %v", want, err)
		}
	}
	m = Mapping{Table: "o", ID: "id", Payload: "p", Topic: "t", Claim: Claim{Status: "sent", Since: "at"},
		Failure: Failure{FailedValue: "new"}, Done: Done{How: DoneStatus, Column: "s", Waiting: "new", Value: "sent"}}
	err = m.Validate()
	for _, want := range []string{`wait have the status "new", and so have those that are failed`, `claimed rows have the status "sent"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error doesn't say %q: %v", want, err)
		}
	}
}

func TestPresetsAreValidAndHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, p := range Presets() {
		if err := p.Mapping.Validate(); err != nil || seen[p.Name] || p.Strategy == "" || p.About == "" {
			t.Errorf("%+v: %v", p, err)
		}
		seen[p.Name] = true
		if found, ok := FindPreset(p.Name); !ok || found.Mapping.Table != p.Mapping.Table {
			t.Errorf("%s is not found by its name", p.Name)
		}
	}
}

func TestAMappingThatDoesntFitNamesTheColumnAndTheTable(t *testing.T) {
	t.Parallel()
	conn := tableOf(t, `CREATE DOMAIN short AS varchar(20); CREATE TYPE state AS ENUM ('new', 'sent');
		CREATE TABLE odd (id bigserial PRIMARY KEY, topic short, payload xml, state state, sent text, other int)`)
	table, err := ReadTable(t.Context(), conn, TableName{Name: "odd"})
	must(t, err)
	if c := table.Column("id"); c.Kind != KindInteger || c.Sequence == 0 || c.Cache != 1 || !c.NotNull {
		t.Errorf("id is %+v", c)
	}
	if c := table.Column("topic"); c.Kind != KindText {
		t.Errorf("a column of a domain is %+v", c)
	}
	good := Mapping{Table: "odd", ID: "id", Topic: "{topic}",
		Payload: "sent", Done: Done{How: DoneStatus, Column: "state", Value: "sent", Waiting: "new"}}
	if err := good.Fit(table); err != nil {
		t.Errorf("a mapping that fits: %v", err)
	}
	bad := Mapping{Table: "odd", ID: "other", Topic: "{topic}",
		Payload: "payload", CreatedAt: "missing", Done: Done{How: DoneTimestamp, Column: "sent"}}
	err = bad.Fit(table)
	if !errors.Is(err, ErrMapping) {
		t.Fatalf("got %v, want ErrMapping", err)
	}
	for _, want := range []string{`column "other" of table "public"."odd" has no unique index`,
		`"payload" of table "public"."odd" is of type xml`,
		`table "public"."odd" has no column "missing" (created_at)`,
		`"sent" of table "public"."odd" is of type text, which can't be the done`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error doesn't say %q: %v", want, err)
		}
	}
	if _, err := conn.Exec(t.Context(), "CREATE VIEW seen AS SELECT * FROM odd"); err != nil {
		t.Fatal(err)
	}
	_, err = ReadTable(t.Context(), conn, TableName{Name: "seen"})
	if !errors.Is(err, ErrMapping) || !strings.Contains(err.Error(), "is a view") {
		t.Errorf("of a view: %v", err)
	}
	if _, err := ReadTable(t.Context(), conn, TableName{Name: "nowhere"}); !errors.Is(err, ErrMapping) {
		t.Errorf("a table that isn't there: %v", err)
	}
}

// A strategy that moves an offset writes no time of the next attempt: a list by that column would be empty.
func TestNoColumnShowsWhatIsBlockedWhereNoRowIsMarked(t *testing.T) {
	t.Parallel()
	m := Mapping{ID: "id", Failure: Failure{NextAttempt: "next_at"}}
	if got := m.Blocked(); got != "" {
		t.Errorf("got %q", got)
	}
	m.Done = Done{How: DoneTimestamp, Column: "done_at"}
	if got := m.Blocked(); got != `m."done_at" IS NULL AND m."next_at" = 'infinity'` {
		t.Errorf("got %q", got)
	}
}
