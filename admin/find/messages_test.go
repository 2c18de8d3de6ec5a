package find

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/internal/admintest"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/schema"
)

const long = 5 * time.Minute // more than any search here takes

func (d *database) find(f Search) FoundMessages {
	d.T.Helper()
	if f.Within == 0 {
		f.Within = long
	}
	found, err := Messages(d.T.Context(), d.Conn, f)
	if err != nil {
		d.T.Fatal(err)
	}
	return found
}

func TestMessagesAreFoundByWhatIsKnownOfThem(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Messages(2 * rowsPerStep * 2) // several steps of a search in each segment
	const n = 2 * rowsPerStep * 2
	minute := time.Date(2026, 5, 1, 12, 1, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		filter MessageFilter
		want   int
		first  int
		limit  int
	}{
		"id":          {MessageFilter{MessageIDs: []outbox.ID{admintest.MessageID(t, 77)}}, 1, 77, 0},
		"key":         {MessageFilter{Key: "k3", Topic: "topic-1", Since: minute, Until: minute.Add(time.Minute)}, 2, 103, 0},
		"topic, time": {MessageFilter{Topic: "topic-1", Since: minute, Until: minute.Add(time.Minute)}, 20, 118, 0},
		"header":      {MessageFilter{Header: "tenant", HeaderValue: "4", Until: minute}, 12, 59, 0},
		"any header":  {MessageFilter{Header: "tenant", Until: minute}, 59, 59, 0},
		"no header":   {MessageFilter{Header: "colour"}, 0, 0, 0},
		"transaction": {MessageFilter{Transaction: d.Int(`SELECT xid::text::bigint FROM outbox.messages ORDER BY xid LIMIT 1`)}, 3, n / 2, 3},
		"no id":       {MessageFilter{MessageIDs: []outbox.ID{admintest.MessageID(t, n+1)}}, 0, 0, 0},
	} {
		for _, summarized := range []bool{false, true} {
			if summarized {
				d.MustExec(`VACUUM outbox.messages`)
			}
			found := d.find(Search{MessageFilter: c.filter, Limit: c.limit})
			if len(found.Messages) != c.want || c.want > 0 && found.Messages[0].MessageID != admintest.MessageID(t, c.first) {
				t.Errorf("%s: %d found, the first %+v", name, len(found.Messages), append(found.Messages, Message{})[0])
			}
			if c.limit == 0 && (!found.Complete || found.Next != "" || found.Segments != schema.SegmentCount || found.Looked < 0) {
				t.Errorf("%s: %+v", name, found)
			}
		}
	}
	for _, m := range d.find(Search{MessageFilter: MessageFilter{MessageIDs: []outbox.ID{admintest.MessageID(t, 77)}}}).Messages {
		if m.Key != "k7" || m.Payload != nil || m.Transaction == "" || !strings.Contains(string(m.Headers), "tenant") {
			t.Errorf("%+v", m)
		}
	}
}

// Headers that json can store and no text of the database can be don't end a search. The message isn't found by them.
func TestASearchByHeaderBearsHeadersThatCanNotBeRead(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"UTF8", "LATIN1"} {
		db := testdb.New(t).NewEncoded(encoding)
		db.Install()
		d := &database{&admintest.Database{T: t, URL: db.URL, Conn: db.Connect()}}
		for _, headers := range []string{`{"tenant": "7"}`, `{"tenant": "7", "a": "\u0000"}`, `{"tenant": "7", "a": "\ud834"}`, `{"\u0000": "7"}`,
			`{"tenant": "6", "tenant": "\u0037", "n": 1e1000000}`, `{"tenant": null}`, `["tenant"]`, `"tenant"`, `{"tenant": [7]}`, `{"tenant": "\u20ac"}`} {
			d.MustExec(`INSERT INTO outbox.messages (topic, headers) VALUES ('t', $1)`, headers)
		}
		d.MustExec(`DROP PUBLICATION everything`)  // messages are deleted
		for low, high := 1, 1<<20; high-low > 1; { // as deep as the server takes
			depth := (low + high) / 2
			_, err := d.Exec(t.Context(), `INSERT INTO outbox.messages (topic, headers) VALUES ('deep', $1)`,
				`{"tenant": "7", "a": `+strings.Repeat("[", depth)+strings.Repeat("]", depth)+`}`)
			if err == nil {
				low = depth
			} else {
				high = depth
			}
			d.MustExec(`DELETE FROM outbox.messages WHERE topic = 'deep' AND id < (SELECT max(id) FROM outbox.messages)`)
		}
		euro := map[string]int{"UTF8": 1}[encoding]
		for value, want := range map[string]int{"": 4 + euro, "7": 2, // and not the deep one
			"6": 0, "null": 1, "[7]": 1, "€": euro} {
			if encoding != "UTF8" && value == "€" {
				continue // no text of the database can be it
			}
			found := d.find(Search{MessageFilter: MessageFilter{Header: "tenant", HeaderValue: value}})
			if len(found.Messages) != want || !found.Complete {
				t.Errorf("%s: %d messages have the tenant %q, want %d", encoding, len(found.Messages), value, want)
			}
		}
		for topic, want := range map[string]int{"t": 10, "deep": 1} {
			all := d.find(Search{MessageFilter: MessageFilter{Topic: topic}})
			if _, err := json.Marshal(all); err != nil || len(all.Messages) != want {
				t.Errorf("%s: %d messages of topic %q, want %d, to be written as JSON: %v", encoding, len(all.Messages), topic, want, err)
			}
		}
	}
}

func TestASearchTellsHowFarItCameAndGoesOnThere(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const n = 4 * rowsPerStep
	d.Messages(n)
	for name, f := range map[string]Search{"walk": {Limit: 1000}, "index": {MessageFilter: MessageFilter{Key: "k3"}, Limit: 700}} {
		want, seen := n, map[string]bool{}
		if f.Key != "" {
			want /= 10
		}
		for {
			found := d.find(f)
			for _, m := range found.Messages {
				if seen[m.MessageID.String()] {
					t.Fatalf("%s: %s was listed twice", name, m.MessageID)
				}
				seen[m.MessageID.String()] = true
			}
			if found.Complete {
				break
			}
			next, err := ParseNext(found.Next)
			if err != nil {
				t.Fatal(err)
			}
			f.AfterSegment, f.AfterTransaction, f.AfterPosition = next.AfterSegment, next.AfterTransaction, next.AfterPosition
		}
		if len(seen) != want {
			t.Errorf("%s: %d of %d were listed", name, len(seen), want)
		}
	}
	// A search whose time is over tells where it stands, and the transaction goes on.
	d.MustExec(`BEGIN; LOCK TABLE outbox.messages IN ACCESS EXCLUSIVE MODE`)
	other := database{&admintest.Database{T: t, URL: d.URL, Conn: d.Another()}}
	found := other.find(Search{MessageFilter: MessageFilter{Topic: "topic-1"}, Within: await.Expiry(100 * time.Millisecond)})
	if found.Complete || found.Next == "" || len(found.Messages) != 0 {
		t.Errorf("%+v", found)
	}
	d.MustExec(`COMMIT`)
	if _, err := ParseNext("9:1:1"); err == nil {
		t.Error("a segment that doesn't exist is a place")
	}
}

func TestOneMessagesLifeIsShown(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Messages(10)
	for _, name := range []string{"passes", "waits", "holds", "blocks", "buries", "inbox:c"} {
		d.Cursor(name, "1 minute")
	}
	d.MustExec(`UPDATE outbox.cursors SET prev = pg_current_snapshot() WHERE destination <> 'waits'`)
	position := d.Int(`SELECT id FROM outbox.messages WHERE message_id = $1`, admintest.MessageID(t, 3).String())
	d.MustExec(`INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, payload, created_at, attempts, retry_at, error)
		SELECT x, 'k3', $1::bigint, $2::text::uuid, 'topic-0', 'k3', 1, 'secret', now(), 2, u::timestamptz, 'no' FROM (VALUES ('holds', '2100-01-01'), ('blocks', 'infinity')) v (x, u)`,
		position, admintest.MessageID(t, 3).String())
	d.MustExec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, payload, created_at, attempts, reason, error)
		VALUES ('buries', 'k3', $1::bigint, $2::text::uuid, 'topic-0', 'k3', 1, 'secret', now(), 10, 'exhausted', 'never')`, position, admintest.MessageID(t, 3).String())
	lives, err := ShowMessage(t.Context(), d.Conn, admintest.MessageID(t, 3), true)
	if err != nil || len(lives) != 1 {
		t.Fatalf("%+v, %v", lives, err)
	}
	l := lives[0]
	got := map[string]string{}
	for _, a := range l.Destinations {
		got[a.Destination] = a.State
	}
	want := map[string]string{"passes": StatePassed, "waits": StateWaiting, "holds": StateHeld, "blocks": StateBlocked, "buries": StateDead}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	if l.TraceID != "4bf92f3577b34da6a3ce929d0e0e4736" || string(l.Payload) != "secret" || l.Transaction == "" ||
		l.Key != "k3" || l.Position != position {
		t.Errorf("%+v", l)
	}
	// Without its row a message is known by what is set aside.
	d.MustExec(`TRUNCATE outbox.messages`)
	if lives, err = ShowMessage(t.Context(), d.Conn, admintest.MessageID(t, 3), false); err != nil || len(lives) != 1 ||
		lives[0].Segment != -1 || lives[0].Payload != nil {
		t.Errorf("%+v, %v", lives, err)
	}
	if _, err = ShowMessage(t.Context(), d.Conn, admintest.MessageID(t, 4), false); !errors.Is(err, admin.ErrNotFound) {
		t.Error(err)
	}
}

func TestViewersFindAndSeeMessagesWithoutPayloads(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Messages(10)
	d.Viewer()
	if found := d.find(Search{MessageFilter: MessageFilter{Key: "k3"}}); len(found.Messages) != 1 {
		t.Errorf("%+v", found)
	}
	if lives, err := ShowMessage(t.Context(), d.Conn, admintest.MessageID(t, 3), false); err != nil || len(lives) != 1 {
		t.Errorf("%+v, %v", lives, err)
	}
	if _, err := ShowMessage(t.Context(), d.Conn, admintest.MessageID(t, 3), true); err == nil {
		t.Error("a viewer was given a payload")
	}
}

// Of two indexes, one leads to the messages of a key and the other has their order. PostgreSQL 18 walks all of the
// other for a page of messages, if it is let.
func TestAKeyIsNotLookedForInTheOrderOfAll(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	d.MustExec(`INSERT INTO outbox.messages (topic, key, payload, segment) SELECT 'users', 'user-' || i % 1000, '{"n":1}', 3
		FROM generate_series(1, 100000) i`)
	d.MustExec(`VACUUM ANALYZE outbox.messages`)
	read := func() int64 {
		if d.Int(`SELECT current_setting('server_version_num')::int`) >= 150_000 {
			d.MustExec(`SELECT pg_stat_force_next_flush()`)
		} else { // it tells its statistics every half second
			time.Sleep(600 * time.Millisecond) // the half second
			d.MustExec(`SELECT 1`)
			time.Sleep(600 * time.Millisecond) // on the way to the collector
		}
		return d.Int(`SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'messages_3_xid_id_shard_idx'`)
	}
	before := read()
	for key, want := range map[string]int{"absent": 0, "user-7": 50} {
		if found := d.find(Search{MessageFilter: MessageFilter{Key: key}, Limit: 50}); len(found.Messages) != want {
			t.Errorf("%s: %d messages, want %d", key, len(found.Messages), want)
		}
	}
	if n := read() - before; n > 0 {
		t.Errorf("%d entries of the index by order were read", n)
	}
}

// A message is found by its id or key among as many as OUTBOX_FIND_AMONG says. The log has what each search takes.
func TestAMessageIsFoundAmongMany(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	n := 40_000
	if text := os.Getenv("OUTBOX_FIND_AMONG"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	d := setup(t)
	for segment := range schema.SegmentCount {
		d.MustExec(`INSERT INTO outbox.messages (message_id, topic, key, payload, headers, segment)
			SELECT gen_random_uuid(), 'topic-' || i % 20, 'key-' || i % ($1::int / 10), convert_to(repeat('x', 200), 'UTF8'),
				'{"tenant": "a"}', $2::int
			FROM generate_series(1, $1::int / $3::int) i`, n, segment, schema.SegmentCount)
	}
	d.MustExec(`VACUUM ANALYZE outbox.messages`)
	var text string
	if err := d.QueryRow(t.Context(), `SELECT message_id::text FROM outbox.messages OFFSET $1 LIMIT 1`, n/3).Scan(&text); err != nil {
		t.Fatal(err)
	}
	id, err := outbox.ParseID(text)
	if err != nil {
		t.Fatal(err)
	}
	absent := admintest.MessageID(t, 1)
	for name, c := range map[string]struct {
		filter MessageFilter
		want   int
	}{
		"an id":                   {MessageFilter{MessageIDs: []outbox.ID{id}}, 1},
		"an id that isn't there":  {MessageFilter{MessageIDs: []outbox.ID{absent}}, 0},
		"a key":                   {MessageFilter{Key: "key-17"}, 2 * schema.SegmentCount},
		"a key that isn't there":  {MessageFilter{Key: "absent"}, 0},
		"a key of one topic only": {MessageFilter{Key: "key-17", Topic: "topic-17"}, 2 * schema.SegmentCount},
	} {
		var took []time.Duration
		for range 15 {
			began := time.Now()
			found := d.find(Search{MessageFilter: c.filter})
			took = append(took, time.Since(began))
			if len(found.Messages) != c.want {
				t.Errorf("%s: %d found, want %d", name, len(found.Messages), c.want)
				break
			}
		}
		slices.Sort(took)
		t.Logf("%s, among %d: %v in the middle, %v at most", name, n, took[len(took)/2].Round(100*time.Microsecond),
			took[len(took)-1].Round(100*time.Microsecond))
	}
}

// PostgreSQL has times that JSON can't write.
func TestMessagesAndHoldsOfAnyTimeAreShown(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.OddTimes("kafka")
	found := d.find(Search{MessageFilter: MessageFilter{Topic: "odd"}})
	if len(found.Messages) != 4 {
		t.Errorf("%d messages are found", len(found.Messages))
	}
	if _, err := json.Marshal(found); err != nil {
		t.Error(err)
	}
}
