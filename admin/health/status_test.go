package health

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

// The backlog is compared with its definition while transactions begin, commit and roll back.
func TestTheBacklogIsWhatTheCursorHasNotPassed(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	rng := rand.New(rand.NewPCG(1, 2))
	var open []pgx.Tx
	nonzero, windows := 0, 0
	for step := range 150 {
		switch {
		case len(open) < 6:
			tx, err := d.Another().Begin(t.Context())
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
			d.MustExec(`UPDATE outbox.cursors SET windows = windows || pg_current_snapshot() WHERE cardinality(windows) < 3`)
		case 1: // settle a part of the oldest
			d.MustExec(`UPDATE outbox.cursors c SET last_id = coalesce((SELECT id FROM outbox.messages
				WHERE pg_visible_in_snapshot(xid, c.windows[1]) AND NOT pg_visible_in_snapshot(xid, c.prev) ORDER BY random() LIMIT 1), last_id)
				WHERE cardinality(windows) > 0`)
		case 2: // close it
			d.MustExec(`UPDATE outbox.cursors SET prev = windows[1], windows = windows[2:], last_id = 0 WHERE cardinality(windows) > 0`)
		}
		want := d.Int(`SELECT count(*) FROM outbox.messages m, outbox.cursors c WHERE NOT pg_visible_in_snapshot(m.xid, c.prev)
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
		if d.Int(`SELECT cardinality(windows) FROM outbox.cursors`) > 0 {
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
	d.Cursor("kafka", "1 minute")
	d.Write(25_000)
	got := d.status().Destinations[0].Pending
	if !got.Estimated || got.N != 25_000 {
		t.Errorf("pending is %v", got)
	}
	d.MustExec(`UPDATE outbox.cursors SET windows = ARRAY[pg_current_snapshot()], last_id = 10000`)
	if got := d.status().Destinations[0].Pending; !got.Estimated || got.N != 15_000 {
		t.Errorf("in the window: pending is %v", got)
	}
	at := time.Now().Add(-time.Minute).Truncate(time.Microsecond)
	d.MustExec(`UPDATE outbox.cursors SET last_id = 24990, last_at = $1`, at)
	if got := d.status().Destinations[0]; got.Pending != (admin.Count{N: 10, Estimated: true}) || !got.Oldest.Equal(at) {
		t.Errorf("at its end: pending is %v, since %v", got.Pending, got.Oldest)
	}
	d.MustExec(`UPDATE outbox.cursors SET last_id = 25000`)
	if got := d.status().Destinations[0]; got.Pending != (admin.Count{}) || !got.Oldest.IsZero() {
		t.Errorf("behind its end: pending is %v, since %v", got.Pending, got.Oldest)
	}
}

// What few messages of many are selected is found, and the backlog isn't empty because a sample has none of them.
func TestAFilterThatSelectsFewOfManyMessagesIsNeverSeenAsIdle(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("topics", "1 minute")
	d.Cursor("headers", "1 minute")
	d.MustExec(`UPDATE outbox.cursors SET settings = '{"selects": {"topics": ["rare"]}}' WHERE destination = 'topics'`)
	d.MustExec(`UPDATE outbox.cursors SET settings = '{"selects": {"any": [{"header": "tenant"}]}}' WHERE destination = 'headers'`)
	d.MustExec(`INSERT INTO outbox.messages (topic, headers, created_at) SELECT CASE WHEN i % 3000 = 1501 THEN 'rare' ELSE 'orders' END,
		CASE WHEN i % 3000 = 1501 THEN '{"tenant": "a"}'::jsonb END, now() - make_interval(secs => 9001 - i) FROM generate_series(1, 9000) i`)
	pending := func() (topics, headers *Destination) {
		t.Helper()
		r := d.status()
		return r.destination("topics"), r.destination("headers")
	}
	topics, headers := pending()
	if topics.Pending != (admin.Count{N: 3}) || topics.Oldest.IsZero() || time.Since(topics.Oldest) > 8000*time.Second {
		t.Errorf("by topic: %v pending, since %v", topics.Pending, topics.Oldest)
	}
	if headers.Pending != (admin.Count{N: 1, Estimated: true}) || time.Since(headers.Oldest) < 9000*time.Second {
		t.Errorf("by header: %v pending, since %v", headers.Pending, headers.Oldest)
	}
	d.MustExec(`INSERT INTO outbox.messages (topic, payload) SELECT 'orders', convert_to(repeat('x', 200), 'UTF8') FROM generate_series(1, 100000) i`)
	topics, headers = pending()
	for range 3 {
		if topics.Pending.N == 0 || topics.Oldest.IsZero() || headers.Pending.N == 0 || headers.Oldest.IsZero() {
			t.Errorf("of many: %v since %v by topic, %v since %v by header", topics.Pending, topics.Oldest, headers.Pending, headers.Oldest)
		}
		before := topics.Pending
		if topics, headers = pending(); topics.Pending != before {
			t.Errorf("%v pending, and then %v", before, topics.Pending)
		}
	}
}

// A message that was written last, by a transaction between large ones, is seen behind all that was passed.
func TestAMessageBetweenManyThatWerePassedIsPending(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.Write(25_000)
	late, err := d.Another().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := late.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	d.Write(25_000)
	if _, err := late.Exec(t.Context(), `SELECT outbox.publish('late', 'x')`); err != nil {
		t.Fatal(err)
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.MustExec(`UPDATE outbox.cursors SET windows = ARRAY[pg_current_snapshot()], last_id = 50000, last_at = now()`)
	if got := d.status().Destinations[0]; got.Pending != (admin.Count{N: 1, Estimated: true}) || got.Oldest.IsZero() {
		t.Errorf("pending is %v, since %v", got.Pending, got.Oldest)
	}
	d.MustExec(`UPDATE outbox.cursors SET last_id = 50001`)
	if got := d.status().Destinations[0]; got.Pending != (admin.Count{}) {
		t.Errorf("pending is %v", got.Pending)
	}
}

// relays registers relays that live.
func (d *database) relays(names ...string) {
	d.T.Helper()
	d.MustExec(`INSERT INTO outbox.relays (name, instance, backend_pid, backend_start, host, pid, version)
		SELECT name, gen_random_uuid(), 1, now(), 'h', 1, 'v' FROM unnest($1::text[]) AS name`, names)
}

func TestARelayAnswersForItsOwnDestinations(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("a", "1 minute")
	d.Cursor("b", "-1 minute")
	r := d.status()
	for _, c := range []struct {
		names    []string
		state    State
		sentence string
	}{
		{[]string{"a"}, StateIdle, "idle"},
		{[]string{"a", "b"}, StateNoRelay, "no relay for 1m: b: no live relay"},
		{[]string{"a", "new"}, StateNoRelay, "no relay: new: no relay has worked"},
	} {
		v, each := r.On(c.names)
		if v.State != c.state || !strings.HasPrefix(v.Sentence(), c.sentence) || len(each) != len(c.names) || each["a"].State != StateIdle {
			t.Errorf("on %q: %q, %v", c.names, v, each)
		}
	}
}

func TestStatusNamesWhoKeepsASegmentAndWhoKeepsRowsBack(t *testing.T) {
	t.Parallel()
	d := setup(t, servers.PostgresConfig{TwoPhase: true})
	d.Cursor("kafka", "1 minute")
	d.Cursor("nats", "1 minute")
	d.MustExec(`INSERT INTO outbox.messages (topic, segment) VALUES ('t', 2), ('t', 5)`)
	d.MustExec(`UPDATE outbox.cursors SET prev = pg_current_snapshot() WHERE destination = 'nats'`)
	d.MustExec(`INSERT INTO outbox.messages (topic, segment) VALUES ('t', 5)`)

	writer, err := d.Another().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.Exec(t.Context(), `SET LOCAL application_name = 'orders'; INSERT INTO outbox.messages (topic) VALUES ('late')`); err != nil {
		t.Fatal(err)
	}
	prepared := d.Another()
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
	d.Cursor("kafka", "1 minute")
	d.Dead("kafka", "k", 1)
	d.Held("kafka", "l", 2, "infinity")
	d.Write(1)
	d.Selects("kafka", "orders")
	d.Cursor("nats", "1 minute")
	d.MustExec(`UPDATE outbox.cursors SET settings = '{"selects": {"any": [{"header": "tenant"}]}}' WHERE destination = 'nats'`)
	d.Viewer()
	if _, err := Status(t.Context(), d.Conn); err != nil {
		t.Error(err)
	}
	for _, blocked := range []bool{false, true} {
		if list, err := find.DeadLetters(t.Context(), d.Conn, find.Selection{Blocked: blocked}, find.Page{}); err != nil || len(list) != 1 {
			t.Errorf("blocked %v: %v, %v", blocked, list, err)
		}
		_, err := find.DeadLetters(t.Context(), d.Conn, find.Selection{Blocked: blocked}, find.Page{Payload: true})
		if err == nil || !strings.Contains(err.Error(), "outbox migrate grants") {
			t.Errorf("payload for a viewer: %v", err)
		}
	}
	_, err := jobs.Discard(t.Context(), d.Conn, find.Selection{All: true}, 0, anna)
	if err == nil || !strings.Contains(err.Error(), "outbox migrate grants") {
		t.Errorf("a viewer discards: %v", err)
	}
}

func TestStatusOfTablesThatAPolicyHidesIsAnError(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.MustExec(`ALTER TABLE outbox.holds ENABLE ROW LEVEL SECURITY`)
	d.Viewer()
	if _, err := Status(t.Context(), d.Conn); !errors.Is(err, schema.ErrHidden) {
		t.Errorf("%v, want ErrHidden", err)
	}
}

func TestARelayWhoseHeartbeatIsInTheFutureIsNotLive(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.MustExec(`INSERT INTO outbox.relays (name, instance, backend_pid, backend_start, host, pid, version, heartbeat_at)
		VALUES ('dead', gen_random_uuid(), 1, now(), 'h', 1, 'v', clock_timestamp() + interval '1 hour'),
		       ('live', gen_random_uuid(), 1, now(), 'h', 1, 'v', clock_timestamp())`)
	r := d.status()
	if len(r.Relays) != 2 || r.Relays[0].Live || !r.Relays[1].Live {
		t.Errorf("%+v", r.Relays)
	}
}

func TestDeadLettersAreSpokenOfUntilTheyAreAcknowledged(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.Dead("kafka", "a", 1, 2)
	state := func(want State) {
		t.Helper()
		if v := d.status().Verdict; v.State != want {
			t.Errorf("the verdict is %q, want %s", v, want)
		}
	}
	dry := anna
	dry.DryRun = true
	for _, action := range []admin.Action{dry, anna} {
		state(StateDead)
		out, err := jobs.Acknowledge(t.Context(), d.Conn, find.Selection{Destination: "kafka"}, 2, action)
		if err != nil || out.Total != 2 || action.DryRun != (out.Done == 0) ||
			out.Groups[0] != (jobs.JobGroup{Destination: "kafka", Topic: "orders", Reason: "exhausted", N: 2}) {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	state(StateIdle)
	list, err := find.DeadLetters(t.Context(), d.Conn, find.Selection{}, find.Page{})
	if err != nil || len(list) != 2 || list[0].AcknowledgedBy != anna.Actor || list[0].AcknowledgedAt.IsZero() {
		t.Errorf("%+v, %v", list, err)
	}
	d.Dead("kafka", "a", 3)
	state(StateDead)
	list, err = find.DeadLetters(t.Context(), d.Conn, find.Selection{New: true}, find.Page{})
	if err != nil || len(list) != 1 || list[0].Position != 3 {
		t.Errorf("new are %+v, %v", list, err)
	}
	if _, err := jobs.Acknowledge(t.Context(), d.Conn, find.Selection{Positions: []int64{1}}, 0, anna); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("one that is known already: %v", err)
	}
	if _, err := jobs.Acknowledge(t.Context(), d.Conn, find.Selection{Blocked: true, All: true}, 0, anna); err == nil {
		t.Error("a blocked message is acknowledged")
	}
	if n := d.Int(`SELECT count(*) FROM outbox.audit WHERE verb = 'acknowledge' AND (detail ->> 'messages')::int = 2`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
}

func TestAJobThatHasNotEndedIsInTheStatus(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.Dead("kafka", "a", 1)
	job, err := jobs.Start(t.Context(), d.Conn, jobs.BulkRequeue, find.Selection{All: true}, jobs.Options{Delay: time.Hour}, anna)
	if err != nil {
		t.Fatal(err)
	}
	if r := d.status(); len(r.Jobs) != 1 || r.Jobs[0].ID != job.ID {
		t.Errorf("the status has the jobs %+v", r.Jobs)
	}
}

// PostgreSQL has times that JSON can't write.
func TestTheStatusOfHoldsOfAnyTimeIsShown(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.OddTimes("kafka")
	if _, err := json.Marshal(d.status()); err != nil {
		t.Error(err)
	}
}
