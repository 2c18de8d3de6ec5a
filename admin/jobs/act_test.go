package jobs

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/schema"
)

// holds lists a destination's, each as lane, position, state and attempts.
func (d *database) holds(destination string) []string {
	d.T.Helper()
	rows, err := d.Query(d.T.Context(), `
		SELECT format('%s %s %s %s', lane, id, CASE WHEN retry_at IS NULL THEN 'waits' WHEN retry_at = 'infinity' THEN 'blocked'
		       WHEN retry_at <= clock_timestamp() THEN 'due' ELSE 'later' END, attempts)
		FROM outbox.holds WHERE destination = $1 ORDER BY lane, id`, destination)
	if err != nil {
		d.T.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.T.Fatal(err)
	}
	return list
}

func TestRequeueMakesHoldsThatAreDueInOrder(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.Dead("kafka", "a", 3, 5)
	d.Dead("kafka", "b", 4, 9)
	d.Dead("kafka", "c", 8)
	d.Held("kafka", "b", 6, "2100-01-01") // a later head, which gives way
	d.Held("kafka", "c", 2, "2100-01-01") // an earlier head, which stays
	out, err := Requeue(t.Context(), d.Conn, find.Selection{Destination: "kafka"}, 0, anna)
	if err != nil || out.Done != 5 {
		t.Fatalf("%+v, %v", out, err)
	}
	want := []string{"a 3 due 0", "a 5 waits 0", "b 4 due 0", "b 6 waits 2", "b 9 waits 0", "c 2 later 2", "c 8 waits 0"}
	if got := d.holds("kafka"); !slices.Equal(got, want) {
		t.Errorf("holds are %q, want %q", got, want)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.dead_letters`); n != 0 {
		t.Errorf("%d dead letters are left", n)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.holds WHERE payload = 'secret' AND headers::text = '{"a":"b"}'`); n != 5 {
		t.Errorf("%d messages kept payload and headers", n)
	}
	var actor, verb, destination, reason string
	var detail struct{ Messages int }
	err = d.QueryRow(t.Context(), `SELECT actor, verb, destination, reason, detail FROM outbox.audit`).Scan(&actor, &verb, &destination, &reason, &detail)
	if err != nil || actor != anna.Actor || verb != "requeue" || destination != "kafka" || reason != anna.Reason || detail.Messages != 5 {
		t.Errorf("the audit says %s %s %s %s %+v: %v", actor, verb, destination, reason, detail, err)
	}
}

func TestRequeueDoesNotReleaseABlockedLane(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.Dead("kafka", "a", 3)
	d.Held("kafka", "a", 6, "infinity")
	_, err := Requeue(t.Context(), d.Conn, find.Selection{All: true}, 0, anna)
	if err == nil || !strings.Contains(err.Error(), "outbox dead ls --blocked --destination kafka") {
		t.Errorf("got %v", err)
	}
	if got := d.holds("kafka"); !slices.Equal(got, []string{"a 6 blocked 2"}) {
		t.Errorf("holds are %q", got)
	}
}

func TestABlockedLaneGoesOnAfterRequeueOrDiscard(t *testing.T) {
	t.Parallel()
	for verb, want := range map[string][]string{
		"requeue": {"a 6 due 0", "a 7 waits 2", "b 8 blocked 2"},
		"discard": {"a 7 due 2", "b 8 blocked 2"},
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			d := setup(t)
			d.Cursor("kafka", "1 minute")
			d.Held("kafka", "a", 6, "infinity")
			d.Held("kafka", "a", 7, "")
			d.Held("kafka", "b", 8, "infinity")
			list, err := find.DeadLetters(t.Context(), d.Conn, find.Selection{Blocked: true}, find.Page{})
			if err != nil || len(list) != 2 || list[0].Behind != 1 || list[1].Behind != 0 || list[0].Reason != "blocked" {
				t.Fatalf("list: %+v, %v", list, err)
			}
			do := Requeue
			if verb == "discard" {
				do = Discard
			}
			out, err := do(t.Context(), d.Conn, find.Selection{Blocked: true, Key: "a"}, 0, anna)
			if err != nil || out.Done != 1 || out.Groups[0] != (JobGroup{"kafka", "orders", "blocked", 1}) {
				t.Fatalf("%+v, %v", out, err)
			}
			if got := d.holds("kafka"); !slices.Equal(got, want) {
				t.Errorf("holds are %q, want %q", got, want)
			}
		})
	}
}

// The relay delivers one head after the other, each at the moment at which the operator's verb waits for it.
func TestARequeuedMessageHasATimeThoughTheHeadsBeforeItAreJustDelivered(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.Held("kafka", "a", 5, "2020-01-01")
	d.Held("kafka", "a", 6, "")
	d.Dead("kafka", "a", 7)
	var settlements []pgx.Tx
	for _, id := range []int{5, 6} {
		tx, err := d.Another().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `DELETE FROM outbox.holds WHERE id = $1`, id); err != nil {
			t.Fatal(err)
		}
		settlements = append(settlements, tx)
	}
	operator := d.Another()
	requeued := make(chan error, 1)
	go func() {
		_, err := Requeue(t.Context(), operator, find.Selection{Destination: "kafka"}, 0, anna)
		requeued <- err
	}()
	for _, tx := range settlements {
		ours := int64(tx.Conn().PgConn().PID())
		await.Until(t, "the verb waits", func() bool {
			return len(requeued) > 0 || d.Int(`SELECT count(*) FROM pg_stat_activity WHERE $1::integer = ANY (pg_blocking_pids(pid))`, ours) > 0
		})
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-requeued; err != nil {
		t.Fatal(err)
	}
	if got := d.holds("kafka"); !slices.Equal(got, []string{"a 7 due 0"}) {
		t.Errorf("holds are %q", got)
	}
}

func TestActionsThatAreRefusedChangeNothing(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.Dead("kafka", "a", 1, 2, 3)
	d.Dead("gone", "a", 4)
	for _, c := range []struct {
		name   string
		s      find.Selection
		max    int64
		action admin.Action
		kind   error
		want   string
	}{
		{"nothing selected", find.Selection{}, 0, anna, nil, "nothing is selected"},
		{"too many", find.Selection{Destination: "kafka"}, 2, anna, admin.ErrTooMany, "3 are selected, at most 2"},
		{"unknown id", find.Selection{Positions: []int64{99}}, 0, anna, admin.ErrNotFound, "no dead letter has such an id"},
		{"unknown blocked id", find.Selection{Blocked: true, Positions: []int64{99}}, 0, anna, admin.ErrNotFound, "no blocked message has"},
		{"nobody acts", find.Selection{All: true}, 0, admin.Action{}, nil, "no Actor"},
		{"no cursor", find.Selection{Destination: "gone"}, 0, anna, nil, "no relay delivers to it: start one"},
		{"blocked with a reason", find.Selection{Blocked: true, Reason: "refused"}, 0, anna, nil, "leave the reason out"},
	} {
		_, err := Requeue(t.Context(), d.Conn, c.s, c.max, c.action)
		if err == nil || !strings.Contains(err.Error(), c.want) || (c.kind != nil && !errors.Is(err, c.kind)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	dry := anna
	dry.DryRun = true
	out, err := Discard(t.Context(), d.Conn, find.Selection{All: true}, 0, dry)
	if err != nil || out.Total != 4 || len(out.Groups) != 2 || out.Groups[0].N != 3 {
		t.Errorf("dry run: %+v, %v", out, err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.dead_letters`); n != 4 {
		t.Errorf("%d dead letters are left of 4", n)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.audit`) + d.Int(`SELECT count(*) FROM outbox.holds`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

func TestDiscardDeletesWhatIsSelected(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Dead("kafka", "a", 1, 2)
	d.Dead("nats", "a", 2)
	out, err := Discard(t.Context(), d.Conn, find.Selection{Positions: []int64{2}, Destination: "kafka"}, 1, anna)
	if err != nil || out.Done != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.dead_letters WHERE (destination, id) IN (('kafka', 1), ('nats', 2))`); n != 2 {
		t.Errorf("%d of the others are left", n)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.audit WHERE verb = 'discard'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
}

// Only what has failed and waits for its time is made due.
func TestARetryWakesTheKeysThatFail(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "10 minutes")
	hold := func(lane, retryAt, failed string) {
		d.MustExec(`INSERT INTO outbox.holds (destination, lane, id, message_id, key, topic, shard, payload, created_at, attempts, retry_at, error)
			SELECT 'kafka', $1, nextval('outbox.messages_id_seq'), gen_random_uuid(), $1, 'orders', 0, 'x', now(), 3, `+retryAt+`, `+failed, lane)
	}
	const later = `now() + interval '1 hour'`
	hold("a", later, `'no'`)
	hold("a", "NULL", "NULL")
	hold("b", later, `'no'`)
	hold("blocked", `'infinity'`, `'no'`)
	hold("due", `now() - interval '1 second'`, `'no'`)
	hold("scheduled", later, "NULL")
	state := func(a, b string) {
		t.Helper()
		want := []string{"a 1 " + a + " 3", "a 2 waits 3", "b 3 " + b + " 3", "blocked 4 blocked 3", "due 5 due 3", "scheduled 6 later 3"}
		if got := d.holds("kafka"); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	preview := anna
	preview.DryRun = true
	if out, err := Retry(t.Context(), d.Conn, admin.Target{Destination: "kafka"}, preview); err != nil || out.Keys != 2 {
		t.Errorf("%+v, %v", out, err)
	}
	state("later", "later")
	nothing := []admin.Target{{Destination: "kafka", Key: "scheduled"}, {Destination: "kafka", Topic: "bills"}, {Destination: "nats"}}
	for _, target := range nothing {
		if _, err := Retry(t.Context(), d.Conn, target, anna); !errors.Is(err, admin.ErrNotFound) {
			t.Errorf("%v: %v", target, err)
		}
	}
	if out, err := Retry(t.Context(), d.Conn, admin.Target{Destination: "kafka", Key: "a"}, anna); err != nil || out.Keys != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	state("due", "later")
	if out, err := Retry(t.Context(), d.Conn, admin.Target{Destination: "kafka", Topic: "orders"}, anna); err != nil || out.Keys != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	state("due", "due")
	list, err := admin.Audit(t.Context(), d.Conn, admin.AuditFilter{Verb: "retry"})
	if err != nil || len(list) != 2 || list[0].Reason != anna.Reason {
		t.Errorf("%+v, %v", list, err)
	}
	d.Table("")
	_, err = Retry(t.Context(), d.Conn, admin.Target{Destination: "shop"}, anna)
	if err == nil || !strings.Contains(err.Error(), "in memory") {
		t.Errorf("of a table of its own: %v", err)
	}
}

func TestAKeyThatIsPrintedByItsHashIsFoundByWhatIsPrinted(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	long := strings.Repeat("ä", 1000)
	if _, err := admin.Pause(t.Context(), d.Conn, admin.Target{Destination: "kafka", Key: long}, admin.ControlOptions{}, anna); err != nil {
		t.Fatal(err)
	}
	d.Dead("kafka", schema.Lane(long), 1)
	d.Held("kafka", schema.Lane(long), 2, "infinity")
	list, err := admin.Controls(t.Context(), d.Conn, "kafka")
	if err != nil || len(list) != 1 || !strings.HasPrefix(list[0].Key, "~sha256:") {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, key := range []string{long, list[0].Key} {
		if held, err := find.Holds(t.Context(), d.Conn, find.HoldFilter{Key: key}); err != nil || len(held) != 1 {
			t.Errorf("holds of %.20s: %+v, %v", key, held, err)
		}
		if dead, err := find.DeadLetters(t.Context(), d.Conn, find.Selection{Key: key}, find.Page{}); err != nil || len(dead) != 1 {
			t.Errorf("dead letters of %.20s: %+v, %v", key, dead, err)
		}
	}
	if ended, err := admin.Resume(t.Context(), d.Conn, list[0].Target, false, anna); err != nil || len(ended) != 1 {
		t.Errorf("%+v, %v", ended, err)
	}
	// A key that only looks alike is one.
	for _, key := range []string{"~sha256:", "~sha256:" + strings.Repeat("g", 64) + ":x"} {
		if got := schema.LaneOf(key); got != schema.Lane(key) {
			t.Errorf("%s is %s", key, got)
		}
	}
}

func TestDeadLettersOfOneCauseAreAGroup(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.MustExec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, shard, created_at, attempts, reason, error)
		SELECT 'kafka', 'k', n, gen_random_uuid(), 't', 0, now(), 1, 'refused',
		       CASE WHEN n <= 7 THEN format('value of %s B in "%s" is larger than 10, see 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398%s', 100 * n, md5(n::text), n)
		            ELSE 'no schema ' || n END
		FROM generate_series(1, 10) n`)
	groups, err := find.GroupDead(t.Context(), d.Conn, find.Selection{})
	if err != nil {
		t.Fatal(err)
	}
	if g := groups.Groups; len(g) != 2 || g[0].Messages != 7 || g[0].New != 7 || g[0].Again != 0 || g[1].Messages != 3 ||
		groups.Looked != 10 || groups.Partial {
		t.Fatalf("%+v", groups)
	}
	all := find.Selection{Fingerprint: groups.Groups[1].Fingerprint}
	if letters, err := find.DeadLetters(t.Context(), d.Conn, all, find.Page{}); err != nil || len(letters) != 3 ||
		letters[0].Fingerprint != all.Fingerprint || letters[0].Deaths != 1 {
		t.Errorf("%+v, %v", letters, err)
	}
	o, err := Requeue(t.Context(), d.Conn, all, 0, admin.Action{Actor: "anna"})
	if err != nil || o.Done != 3 {
		t.Fatalf("%+v, %v", o, err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.holds WHERE deaths = 1 AND topic = 't' AND attempts = 0`); n != 3 {
		t.Errorf("%d messages know that they have died once", n)
	}
	if _, err := find.GroupDead(t.Context(), d.Conn, find.Selection{Blocked: true}); err == nil {
		t.Error("blocked messages were grouped")
	}
}
