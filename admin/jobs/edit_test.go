package jobs

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
)

func text(s string) *string { return &s }

// fields are what an edit can change of the dead letters, the holds and the trash, as the database has them.
func (d *database) fields() (s string) {
	d.T.Helper()
	err := d.QueryRow(d.T.Context(), `SELECT string_agg(concat_ws(' ', topic, event_type, content_type, headers::text, convert_from(payload, 'UTF8')), '; ')
		FROM (SELECT topic, event_type, content_type, headers, payload FROM outbox.dead_letters
		UNION ALL SELECT topic, event_type, content_type, headers, payload FROM outbox.holds
		UNION ALL SELECT topic, event_type, content_type, headers, payload FROM outbox.trash) m`).Scan(&s)
	if err != nil {
		d.T.Fatal(err)
	}
	return s
}

const asWritten = `orders {"a":"b"} {"n": 12345678901234567890, "keep": "<a>", "gone": 1, "in": {"x": 1}}`

func editable(t *testing.T) (*database, find.Selection) {
	t.Helper()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.Dead("kafka", "a", 3)
	d.MustExec(`UPDATE outbox.dead_letters SET payload = convert_to('{"n": 12345678901234567890, "keep": "<a>", "gone": 1, "in": {"x": 1}}', 'UTF8')`)
	return d, find.Selection{Positions: []int64{3}, Destination: "kafka"}
}

func TestAnEditChangesWhatIsNamedAndKeepsTheOriginal(t *testing.T) {
	t.Parallel()
	d, s := editable(t)
	edit := Edit{Topic: text("bills"), EventType: text("made"), Headers: map[string]*string{"c": text("d"), "a": nil},
		Merge: []byte(`{"gone": null, "in": {"y": [1]}}`)}
	dry := anna
	dry.DryRun = true
	if l, err := EditDead(t.Context(), d.Conn, s, edit, dry); err != nil || l.Topic != "bills" || d.fields() != asWritten {
		t.Errorf("a dry run found %+v, %v, and left %s", l, err, d.fields())
	}
	if n := d.Int(`SELECT count(*) FROM outbox.audit`); n != 0 {
		t.Errorf("a dry run left %d rows in the audit", n)
	}
	if _, err := EditDead(t.Context(), d.Conn, s, edit, anna); err != nil {
		t.Fatal(err)
	}
	want := `bills made {"c":"d"} {"in":{"x":1,"y":[1]},"keep":"<a>","n":12345678901234567890}`
	if got := d.fields(); got != want {
		t.Errorf("it is %s, want %s", got, want)
	}
	// A second edit keeps the first original.
	l, err := EditDead(t.Context(), d.Conn, s, Edit{ContentType: text("application/json"), Payload: []byte("plain")}, anna)
	if err != nil {
		t.Fatal(err)
	}
	var fields []string
	for _, c := range l.Changes() {
		fields = append(fields, c.Field)
	}
	if !slices.Equal(fields, []string{"content_type", "event_type", "header.a", "header.c", "payload", "topic"}) ||
		l.Original.Topic != "orders" {
		t.Errorf("the difference is in %q, of %+v", fields, l.Original)
	}
	var detail string
	err = d.QueryRow(t.Context(), `SELECT concat_ws(' ', actor, verb, destination, reason, detail ->> 'fields') FROM outbox.audit ORDER BY id LIMIT 1`).Scan(&detail)
	if err != nil || detail != `anna@example edit kafka the broker is mended ["event_type", "header.a", "header.c", "payload", "topic"]` {
		t.Errorf("the audit says %s, %v", detail, err)
	}
	// Restored it is as it was written, to the byte.
	if l, err := EditDead(t.Context(), d.Conn, s, Edit{Restore: true}, anna); err != nil || l.Original != nil || d.fields() != asWritten {
		t.Errorf("restored it is %s, %+v, %v", d.fields(), l.Original, err)
	}
	if _, err := EditDead(t.Context(), d.Conn, s, Edit{Restore: true}, anna); err == nil || !strings.Contains(err.Error(), "never edited") {
		t.Errorf("restored twice: %v", err)
	}
}

func TestTheOriginalSurvivesRequeueTrashAndABlockedLane(t *testing.T) {
	t.Parallel()
	d, s := editable(t)
	if _, err := EditDead(t.Context(), d.Conn, s, Edit{Topic: text("bills")}, anna); err != nil {
		t.Fatal(err)
	}
	kept := func(table string) {
		t.Helper()
		if n := d.Int(`SELECT count(*) FROM outbox.` + table + ` WHERE topic = 'bills' AND original ->> 'topic' = 'orders' AND original_payload = payload`); n != 1 {
			t.Errorf("%s have %d letters with their original", table, n)
		}
	}
	if _, err := Discard(t.Context(), d.Conn, s, 0, anna); err != nil {
		t.Fatal(err)
	}
	kept("trash")
	discarded := s
	discarded.Discarded = true
	job, err := Start(t.Context(), d.Conn, BulkRestore, discarded, Options{}, anna)
	if err == nil {
		_, err = Run(t.Context(), d.Conn, job.ID, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	kept("dead_letters")
	if _, err := Requeue(t.Context(), d.Conn, s, 0, anna); err != nil {
		t.Fatal(err)
	}
	kept("holds")
	d.MustExec(`UPDATE outbox.holds SET retry_at = 'infinity'`)
	blocked := s
	blocked.Blocked = true
	list, err := find.DeadLetters(t.Context(), d.Conn, blocked, find.Page{Payload: true})
	if err != nil || len(list) != 1 || len(list[0].Changes()) != 1 {
		t.Errorf("the blocked one is %+v, %v", list, err)
	}
	if _, err := Discard(t.Context(), d.Conn, blocked, 0, anna); err != nil {
		t.Fatal(err)
	}
	kept("trash")
}

func TestAnEditIsRefusedThatCouldNotBeMeant(t *testing.T) {
	t.Parallel()
	d, s := editable(t)
	d.Dead("other", "a", 3)
	for want, edit := range map[string]Edit{
		"nothing is edited":           {},
		"restore goes alone":          {Restore: true, Topic: text("t")},
		"exclude each other":          {Payload: []byte("x"), Merge: []byte("{}")},
		"not JSON":                    {Merge: []byte("{")},
		"Topic is empty":              {Topic: text("")},
		"Topic contains white space":  {Topic: text("a b")},
		"masked can't be written":     {Payload: []byte(`{"card": "***"}`)},
		"a value contains ***":        {Merge: []byte(`{"card": "***"}`)},
		"contains ***: give the part": {Headers: map[string]*string{"token": text("***")}},
	} {
		if _, err := EditDead(t.Context(), d.Conn, s, edit, anna); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if _, err := EditDead(t.Context(), d.Conn, find.Selection{Positions: []int64{3}}, Edit{Topic: text("t")},
		anna); err == nil || !strings.Contains(err.Error(), "one is edited at a time") {
		t.Errorf("two at once: %v", err)
	}
	if _, err := EditDead(t.Context(), d.Conn, find.Selection{Positions: []int64{9}}, Edit{Topic: text("t")},
		anna); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("none: %v", err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.dead_letters WHERE original IS NOT NULL OR topic <> 'orders'`); n != 0 {
		t.Errorf("%d are edited", n)
	}
}

func TestAViewerSeesThatALetterWasEditedWithoutItsPayloads(t *testing.T) {
	t.Parallel()
	d, s := editable(t)
	if _, err := EditDead(t.Context(), d.Conn, s, Edit{Topic: text("bills"), Payload: []byte("new")}, anna); err != nil {
		t.Fatal(err)
	}
	d.Viewer()
	list, err := find.DeadLetters(t.Context(), d.Conn, s, find.Page{})
	if err != nil || len(list) != 1 || list[0].Original == nil || list[0].Original.Payload != nil || len(list[0].Changes()) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := find.DeadLetters(t.Context(), d.Conn, s, find.Page{Payload: true}); err == nil {
		t.Error("a viewer reads payloads")
	}
}

// What json can store and jsonb can't is kept by an edit as well, and brought back.
func TestADeadLetterWhoseHeadersCanNotBeReadIsMended(t *testing.T) {
	t.Parallel()
	d, s := editable(t)
	const odd = `{"a":  "\u0000", "b": "c", "b": "\ud834"}`
	d.MustExec(`UPDATE outbox.dead_letters SET headers = $1, payload = 'x'`, odd)
	l, err := EditDead(t.Context(), d.Conn, s, Edit{Headers: map[string]*string{"a": nil, "b": text("d")}}, anna)
	if err != nil || d.fields() != `orders {"b":"d"} x` || l.Original == nil || string(l.Original.Headers) != odd {
		t.Fatalf("it is %s, %+v, %v", d.fields(), l.Original, err)
	}
	if l, err = EditDead(t.Context(), d.Conn, s, Edit{Restore: true}, anna); err != nil || d.fields() != "orders "+odd+" x" {
		t.Errorf("restored it is %s, %v", d.fields(), err)
	}
	if text, err := json.Marshal(l); err != nil {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := Discard(t.Context(), d.Conn, s, 1, anna); err != nil || d.fields() != "orders "+odd+" x" {
		t.Errorf("discarded it is %s, %v", d.fields(), err)
	}
}

func TestAnEditLeavesTheOtherHeadersAsTheyAreDelivered(t *testing.T) {
	t.Parallel()
	d, s := editable(t)
	for _, c := range []struct {
		stored  string
		headers map[string]*string
		want    string // the headers, or what the error says
	}{
		{`null`, map[string]*string{"a": text("b")}, `{"a":"b"}`},
		{`[1]`, map[string]*string{"a": text("b")}, `{"a":"b"}`},
		{`"x"`, map[string]*string{"a": nil}, ``},
		{`{"z": "1", "a": "2", "m": "3"}`, map[string]*string{"a": text("x"), "b": text("y")}, `{"z":"1","a":"x","m":"3","b":"y"}`},
		{`{"n": 1, "o": {"p": [null, "x"]}, "e": null, "b": "x\ny"}`, map[string]*string{"b": text("c")},
			`{"n":"1","o":"{\"p\": [null, \"x\"]}","e":"null","b":"c"}`},
		{`{"a": "1", "b": "2", "a": "<3>"}`, map[string]*string{"b": nil}, `{"a":"<3>"}`},
		{`{"": "1", "b": "2"}`, map[string]*string{"": nil}, `{"b":"2"}`},
		{`{"z": "\ud83d", "b": "c"}`, map[string]*string{"b": text("d")}, `header "z" can't be delivered`},
		{`{"\uDE00": "x", "b": "c"}`, map[string]*string{"b": text("d")}, `one half of a surrogate pair`},
		{`{"z": "\ud83d", "b": "c"}`, map[string]*string{"z": text("d")}, `{"z":"d","b":"c"}`},
		{`{"z": "\ud83d\uDE00 \\ud83d", "b": "c"}`, map[string]*string{"b": text("d")}, `{"z":"😀 \\ud83d","b":"d"}`},
		{`{"z": "\ud83d"}`, nil, `{"z": "\ud83d"}`},
		{`[1,  2]`, nil, `[1,  2]`},
	} {
		d.MustExec(`UPDATE outbox.dead_letters SET headers = $1::text::json, topic = 'orders', original = NULL`, c.stored)
		_, err := EditDead(t.Context(), d.Conn, s, Edit{Topic: text("bills"), Headers: c.headers}, anna)
		var got string
		if err := d.QueryRow(t.Context(), `SELECT coalesce(headers::text, '') FROM outbox.dead_letters WHERE topic = 'bills' UNION ALL SELECT ''`).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			got = err.Error()
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%s with %v is %s, want %s", c.stored, c.headers, got, c.want)
		}
	}
}
