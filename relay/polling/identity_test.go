package polling

import (
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// Ids repeat: here the sequence was set back between two messages of a key.
func TestHoldsAndDeadLettersOfTheSameIdAreDifferentMessages(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	refused := errText("no")
	all := make(map[string][]relay.Delivery)
	for _, destination := range []string{"held", "dead"} {
		s := testdb.Acquire(t, db.source(destination, SnapshotConfig{}))
		for n := range 2 {
			db.Exec(`SELECT setval('outbox.messages_id_seq', 1, false)`)
			db.Exec(`INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', 'k', $1::text::bytea)`, destination+string(rune('1'+n)))
			for {
				ds := testdb.Next(t, s, 10)
				d := &ds[len(ds)-1]
				mine := string(d.Payload) == destination+string(rune('1'+n))
				outcome := relay.Settlement{Through: d}
				switch {
				case !mine:
				case destination == "held":
					outcome.Hold = []relay.Hold{{Delivery: d, Blocked: n == 0, Err: refused}}
				default:
					outcome.Dead = []relay.Dead{{Delivery: d, Reason: relay.ReasonRefused, Err: refused}}
				}
				if err := s.Settle(t.Context(), outcome); err != nil {
					t.Fatal(err)
				}
				if mine {
					all[destination] = append(all[destination], *d)
					break
				}
			}
		}
		if destination == "dead" {
			if got := db.Value(`SELECT string_agg(convert_from(payload, 'UTF8') || error, ' ' ORDER BY dead_at) FROM outbox.dead_letters`); got != "dead1no dead2no" {
				t.Errorf("dead letters %q", got)
			}
			continue
		}
		held := testdb.Held(t, s, "k", 10)
		if len(held) != 2 {
			t.Fatalf("%d holds", len(held))
		}
		one, other := &held[0], &held[1]
		if one.ID != all["held"][0].ID {
			one, other = other, one
		}
		// Each outcome concerns the message that it names and no other.
		steps := []struct {
			s    relay.Settlement
			left string
		}{
			{relay.Settlement{HeldRetry: []relay.Hold{{Delivery: one, Blocked: true, Err: errText("again")}}}, "held1again held2no"},
			{relay.Settlement{HeldDelivered: []*relay.Delivery{other}}, "held1again"},
			{relay.Settlement{HeldDead: []relay.Dead{{Delivery: other, Reason: relay.ReasonRefused}}}, "held1again"},
			{relay.Settlement{HeldDead: []relay.Dead{{Delivery: one, Reason: relay.ReasonRefused, Err: errText("dead")}}}, ""},
		}
		for _, step := range steps {
			if err := s.Settle(t.Context(), step.s); err != nil {
				t.Fatal(err)
			}
			got := db.Value(`SELECT coalesce(string_agg(convert_from(payload, 'UTF8') || error, ' ' ORDER BY payload), '') FROM outbox.holds`)
			if got != step.left {
				t.Errorf("holds %q, want %q", got, step.left)
			}
		}
		if got := db.Value(`SELECT string_agg(convert_from(payload, 'UTF8'), ' ') FROM outbox.dead_letters`); got != "held1" {
			t.Errorf("dead letters %q", got)
		}
		db.Exec(`DELETE FROM outbox.dead_letters`)
	}
}

// A plain INSERT can store a key that no index takes.
func TestAMessageWithAnOverlongKeyCanBeHeldAndBuried(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{}))
	db.Exec(`INSERT INTO outbox.messages (topic, key, payload) SELECT 't', string_agg(md5(i::text), ''), 'x' FROM generate_series(1, 400) i`)
	d := &testdb.Next(t, s, 10)[0]
	if err := s.Settle(t.Context(), relay.Settlement{Through: d, Hold: []relay.Hold{{Delivery: d, Blocked: true}}}); err != nil {
		t.Fatal(err)
	}
	lanes, _, err := s.Lanes(t.Context(), "", 10)
	if err != nil || len(lanes) != 1 {
		t.Fatal(lanes, err)
	}
	held := testdb.Held(t, s, lanes[0], 10)
	if len(held) != 1 || !strings.HasPrefix(held[0].Key, "c4ca4238a0b923820dcc509a6f75849b") || len(held[0].Key) != 400*32 {
		t.Fatal(held)
	}
	if err := s.Settle(t.Context(),
		relay.Settlement{HeldDead: []relay.Dead{{Delivery: &held[0], Reason: relay.ReasonInvalid}}}); err != nil {
		t.Fatal(err)
	}
	if got := db.Value(`SELECT (SELECT count(*) FROM outbox.holds) || ' ' || (SELECT count(*) FROM outbox.dead_letters)`); got != "0 1" {
		t.Errorf("holds and dead letters: %s", got)
	}
}

func TestAHoldBehindOneThatIsJustDiscardedIsDue(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{Lease: time.Minute}))
	db.Exec(`INSERT INTO outbox.messages (topic, key, payload) SELECT 't', 'k', 'x' FROM generate_series(1, 2)`)
	db.HoldBehindADiscarded(t, s, testdb.Next(t, s, 2))
}

// A message that was edited is sent as it is now. If it dies again, its original is there still.
func TestTheOriginalOfAnEditedMessageSurvivesAnotherDeath(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s := testdb.Acquire(t, db.source("d", SnapshotConfig{}))
	db.Exec(`INSERT INTO outbox.messages (topic, key, payload) VALUES ('t', 'k', 'written')`)
	d := &testdb.Next(t, s, 10)[0]
	if err := s.Settle(t.Context(), relay.Settlement{Through: d, Hold: []relay.Hold{{Delivery: d, Blocked: true}}}); err != nil {
		t.Fatal(err)
	}
	db.Exec(`UPDATE outbox.holds SET payload = 'edited', original = '{"topic": "t"}', original_payload = 'written'`)
	held := testdb.Held(t, s, "k", 10)
	if len(held) != 1 || string(held[0].Payload) != "edited" {
		t.Fatal(held)
	}
	if err := s.Settle(t.Context(),
		relay.Settlement{HeldDead: []relay.Dead{{Delivery: &held[0], Reason: relay.ReasonRefused}}}); err != nil {
		t.Fatal(err)
	}
	got := db.Value(`SELECT format('%s %s %s', original ->> 'topic', convert_from(original_payload, 'UTF8'), convert_from(payload, 'UTF8')) FROM outbox.dead_letters`)
	if got != "t written edited" {
		t.Errorf("the dead letter is %s", got)
	}
}

type errText string

func (e errText) Error() string { return string(e) }
