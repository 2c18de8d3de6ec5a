package admin

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/schema"
)

// The backlog is compared with its definition while transactions begin, commit and roll back.
func TestTheBacklogIsWhatTheCursorHasNotPassed(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "1 minute")
	rng := rand.New(rand.NewPCG(1, 2))
	var open []pgx.Tx
	nonzero, windows := 0, 0
	for step := range 150 {
		switch {
		case len(open) < 6:
			tx, err := d.another().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if rng.IntN(2) == 0 {
				if _, err := tx.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
					t.Fatal(err)
				}
			}
			open = append(open, tx)
		case rng.IntN(2) == 0:
			i := rng.IntN(len(open))
			_, err := open[i].Exec(t.Context(), `INSERT INTO outbox.messages (topic, key) SELECT 't', 'k' || i FROM generate_series(1, $1) i`, 1+rng.IntN(3))
			if err != nil {
				t.Fatal(err)
			}
		default:
			i := rng.IntN(len(open))
			end := open[i].Commit
			if rng.IntN(4) == 0 {
				end = open[i].Rollback
			}
			if err := end(t.Context()); err != nil {
				t.Fatal(err)
			}
			tx, err := open[i].Conn().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			open[i] = tx
		}
		switch rng.IntN(12) {
		case 0: // open a window
			d.exec(`UPDATE outbox.cursors SET windows = windows || pg_current_snapshot() WHERE cardinality(windows) < 3`)
		case 1: // settle a part of the oldest
			d.exec(`UPDATE outbox.cursors c SET last_id = coalesce((SELECT id FROM outbox.messages
				WHERE pg_visible_in_snapshot(xid, c.windows[1]) AND NOT pg_visible_in_snapshot(xid, c.prev) ORDER BY random() LIMIT 1), last_id)
				WHERE cardinality(windows) > 0`)
		case 2: // close it
			d.exec(`UPDATE outbox.cursors SET prev = windows[1], windows = windows[2:], last_id = 0 WHERE cardinality(windows) > 0`)
		}
		want := d.int(`SELECT count(*) FROM outbox.messages m, outbox.cursors c WHERE NOT pg_visible_in_snapshot(m.xid, c.prev)
			AND NOT coalesce(pg_visible_in_snapshot(m.xid, c.windows[1]) AND m.id <= c.last_id, false)`)
		backlogs, err := Backlogs(t.Context(), d.Conn)
		if err != nil {
			t.Fatal(err)
		}
		if len(backlogs) != 1 || backlogs[0].Pending.N != want || backlogs[0].Pending.Estimated {
			t.Fatalf("step %d: %+v, want %d pending", step, backlogs, want)
		}
		if backlogs[0].Oldest.IsZero() != (want == 0) {
			t.Fatalf("step %d: %d pending, oldest %v", step, want, backlogs[0].Oldest)
		}
		if want > 0 {
			nonzero++
		}
		if d.int(`SELECT cardinality(windows) FROM outbox.cursors`) > 0 {
			windows++
		}
	}
	if nonzero < 20 || windows < 20 {
		t.Fatalf("the schedule is too tame: %d steps with a backlog, %d with windows", nonzero, windows)
	}
	for _, tx := range open {
		_ = tx.Rollback(t.Context())
	}
}

func TestALargeBacklogIsEstimated(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "1 minute")
	d.write(25_000)
	got := d.status().Destinations[0].Pending
	if !got.Estimated || got.N != 25_000 {
		t.Errorf("pending is %v", got)
	}
	d.exec(`UPDATE outbox.cursors SET windows = ARRAY[pg_current_snapshot()], last_id = 10000`)
	if got := d.status().Destinations[0].Pending; !got.Estimated || got.N != 15_000 {
		t.Errorf("in the window: pending is %v", got)
	}
	d.exec(`UPDATE outbox.cursors SET last_id = 24990`)
	if got := d.status().Destinations[0].Pending; got != (Count{N: 10}) {
		t.Errorf("at its end: pending is %v", got)
	}
}

// relays registers relays that live.
func (d *database) relays(names ...string) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.relays (name, instance, backend_pid, backend_start, host, pid, version)
		SELECT name, gen_random_uuid(), 1, now(), 'h', 1, 'v' FROM unnest($1::text[]) AS name`, names)
}

func TestTheVerdictNamesStateCauseAndNextStep(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		arrange     func(d *database)
		state       State
		cause, next string
	}{
		{"nothing has ever run", func(d *database) {}, StateNoRelay, "no relay has ever", "outbox relay"},
		{"all is delivered", func(d *database) { d.cursor("kafka", "1 minute") }, StateIdle, "", ""},
		{"messages come", func(d *database) { d.cursor("kafka", "1 minute"); d.write(3) }, StateFlowing, "", ""},
		{"the relay died", func(d *database) { d.cursor("kafka", "-1 minute") }, StateNoRelay, "relay-1 vanished 1m", "outbox relay"},
		{"the owner is seconds late", func(d *database) {
			d.cursor("kafka", "-3 seconds")
			d.relays("relay-1")
		}, StateNoRelay, "relay-1 vanished 3s ago", "start relay-1 again: outbox relay"},
		{"another destination's relay lives", func(d *database) {
			d.cursor("kafka", "-59 minutes")
			d.relays("relay-1", "relay-2")
		}, StateNoRelay, "; relay-2 run without", "start relay-1 again: outbox relay, or add the destination to the configuration of a relay that runs"},
		{"nobody has delivered for hours", func(d *database) {
			d.cursor("kafka", "-61 minutes")
			d.relays("relay-2")
		}, StateNoRelay, "relay-2 run without", "given up by: outbox destinations drop kafka"},
		{"the broker is down", func(d *database) {
			d.cursor("kafka", "1 minute")
			d.exec(`UPDATE outbox.cursors SET state = 'stalled', last_error = 'connection refused'`)
		}, StateStalled, "kafka: the broker does not answer: connection refused", "check the broker"},
		{"a topic is missing", func(d *database) {
			d.cursor("kafka", "1 minute")
			d.held("kafka", "k", 7, "2000-01-01")
			d.exec(`UPDATE outbox.cursors SET state = 'failing', last_error = 'topic "t" doesn''t exist; create it'`)
		}, StateFailing, `kafka: topic "t" doesn't exist; create it`, "delivered by itself"},
		{"messages fail again and again", func(d *database) {
			d.cursor("kafka", "1 minute")
			d.write(1)
			d.held("kafka", "k", 7, "2100-01-01")
			d.exec(`UPDATE outbox.holds SET held_at = now() - interval '31 seconds'`)
		}, StateFailing, "1 held in 1 lane, tried again since 31s ago; last error: refused: too large", "cure the cause"},
		{"the relay gave up", func(d *database) {
			d.cursor("kafka", "-1 minute")
			d.exec(`UPDATE outbox.cursors SET state = 'stopped', last_error = 'message refused'`)
		}, StateStopped, "message refused", "outbox relay"},
		{"a lane is blocked", func(d *database) {
			d.cursor("kafka", "1 minute")
			d.held("kafka", "k", 7, "infinity")
		}, StateBlocked, "1 lane is held until an operator acts; last error: refused: too large", "outbox dead ls --blocked --destination kafka"},
		{"a lane waits for a retry", func(d *database) {
			d.cursor("kafka", "1 minute")
			d.held("kafka", "k", 7, "2100-01-01")
		}, StateIdle, "1 held in 1 lane", ""},
		{"it is far behind", func(d *database) {
			d.cursor("kafka", "1 minute")
			d.exec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour')`)
		}, StateFlowing, "1 pending, the oldest for 1h", ""},
		{"the relay was stopped", func(d *database) {
			d.cursor("kafka", "1 minute")
			d.exec(`UPDATE outbox.cursors SET lease_until = '-infinity'`)
		}, StateNoRelay, "relay-1 ended", "outbox relay"},
		{"the clock was set back while the relay died", func(d *database) {
			d.cursor("kafka", "3 hours")
		}, StateNoRelay, "vanished, and then the clock was set back", "outbox relay"},
		{"a segment is detached", func(d *database) {
			d.cursor("kafka", "1 minute")
			d.write(1)
			d.exec(`ALTER TABLE outbox.messages DETACH PARTITION outbox.messages_3`)
		}, StateBroken, "ATTACH PARTITION outbox.messages_3 FOR VALUES IN (3)", "outbox relay"},
		{"a dump was restored", func(d *database) {
			d.cursor("kafka", "-1 minute")
			d.exec(`UPDATE outbox.cursors SET system_identifier = 1`)
		}, StateBroken, "from another cluster", "outbox rebase --destination kafka"},
		{"the cursor is ahead of the cluster", func(d *database) {
			d.cursor("kafka", "-1 minute")
			d.exec(`UPDATE outbox.cursors SET prev = '1000000:1000000:'`)
		}, StateBroken, "from another cluster", "outbox rebase --destination kafka"},
		{"one of two destinations is bad", func(d *database) {
			d.cursor("a", "1 minute")
			d.cursor("b", "-1 minute")
			d.cursor("c", "1 minute")
		}, StateNoRelay, "b: no live relay", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := setup(t)
			c.arrange(d)
			v := d.status().Verdict
			if v.State != c.state || !strings.Contains(v.Cause, c.cause) || !strings.Contains(v.Next, c.next) {
				t.Errorf("got %q", v)
			}
			if strings.Contains(v.Next, "drop") && !strings.Contains(c.next, "drop") {
				t.Errorf("it proposes to drop: %q", v)
			}
			if v.State.OK() && v.Next != "" {
				t.Errorf("%s asks for an action: %q", v.State, v.Next)
			}
		})
	}
}

func TestARelayAnswersForItsOwnDestinations(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("a", "1 minute")
	d.cursor("b", "-1 minute")
	r := d.status()
	for _, c := range []struct {
		names []string
		state State
		cause string
	}{
		{[]string{"a"}, StateIdle, ""},
		{[]string{"a", "b"}, StateNoRelay, "b: no live relay"},
		{[]string{"a", "new"}, StateNoRelay, "new: no relay has worked"},
	} {
		v, each := r.On(c.names)
		if v.State != c.state || !strings.HasPrefix(v.Cause, c.cause) || len(each) != len(c.names) || each["a"].State != StateIdle {
			t.Errorf("on %q: %q, %v", c.names, v, each)
		}
	}
}

func TestStatusNamesWhoKeepsASegmentAndWhoKeepsRowsBack(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "1 minute")
	d.cursor("nats", "1 minute")
	d.exec(`INSERT INTO outbox.messages (topic, segment) VALUES ('t', 2), ('t', 5)`)
	d.exec(`UPDATE outbox.cursors SET prev = pg_current_snapshot() WHERE destination = 'nats'`)
	d.exec(`INSERT INTO outbox.messages (topic, segment) VALUES ('t', 5)`)

	writer, err := d.another().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Exec(t.Context(), `SET LOCAL application_name = 'orders'; INSERT INTO outbox.messages (topic) VALUES ('late')`); err != nil {
		t.Fatal(err)
	}
	prepared := d.another()
	for _, sql := range []string{`BEGIN`, `INSERT INTO outbox.messages (topic) VALUES ('late')`, `PREPARE TRANSACTION 'two-phase ` + t.Name() + `'`} {
		if _, err := prepared.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}

	r := d.status()
	needed := map[string][]string{}
	for _, s := range r.Segments {
		needed[s.Name] = s.NeededBy
	}
	if len(r.Segments) != 16 || !slices.Equal(needed["messages_2"], []string{"kafka"}) ||
		!slices.Equal(needed["messages_5"], []string{"kafka", "nats"}) || needed["messages_1"] != nil {
		t.Errorf("segments are needed by %v", needed)
	}
	var seen []string
	for _, o := range r.Open {
		seen = append(seen, o.Application+o.Prepared)
		if o.Since.IsZero() || time.Since(o.Since) > time.Hour {
			t.Errorf("open since %v", o.Since)
		}
		if o.Prepared == "" && (o.PID == 0 || !strings.Contains(o.Query, "INSERT INTO outbox.messages")) {
			t.Errorf("open: %+v", o)
		}
	}
	if !slices.Equal(seen, []string{"orders", "two-phase " + t.Name()}) {
		t.Errorf("open transactions: %q", seen)
	}
	if err := writer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestStatusNeedsOnlyTheRightsOfAViewer(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "1 minute")
	d.dead("kafka", "k", 1)
	d.held("kafka", "l", 2, "infinity")
	d.write(1)
	d.viewer()
	if _, err := Status(t.Context(), d.Conn); err != nil {
		t.Error(err)
	}
	for _, blocked := range []bool{false, true} {
		if list, err := DeadLetters(t.Context(), d.Conn, Selection{Blocked: blocked}, Page{}); err != nil || len(list) != 1 {
			t.Errorf("blocked %v: %v, %v", blocked, list, err)
		}
		_, err := DeadLetters(t.Context(), d.Conn, Selection{Blocked: blocked}, Page{Payload: true})
		if err == nil || !strings.Contains(err.Error(), "outbox migrate grants") {
			t.Errorf("payload for a viewer: %v", err)
		}
	}
	_, err := Discard(t.Context(), d.Conn, Selection{All: true}, 0, anna)
	if err == nil || !strings.Contains(err.Error(), "outbox migrate grants") {
		t.Errorf("a viewer discards: %v", err)
	}
}

func TestStatusOfTablesThatAPolicyHidesIsAnError(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.exec(`ALTER TABLE outbox.holds ENABLE ROW LEVEL SECURITY`)
	d.viewer()
	if _, err := Status(t.Context(), d.Conn); !errors.Is(err, schema.ErrHidden) {
		t.Errorf("%v, want ErrHidden", err)
	}
}

func TestARelayWhoseHeartbeatIsInTheFutureIsNotLive(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.exec(`INSERT INTO outbox.relays (name, instance, backend_pid, backend_start, host, pid, version, heartbeat_at)
		VALUES ('dead', gen_random_uuid(), 1, now(), 'h', 1, 'v', clock_timestamp() + interval '1 hour'),
		       ('live', gen_random_uuid(), 1, now(), 'h', 1, 'v', clock_timestamp())`)
	r := d.status()
	if len(r.Relays) != 2 || r.Relays[0].Live || !r.Relays[1].Live {
		t.Errorf("%+v", r.Relays)
	}
}
