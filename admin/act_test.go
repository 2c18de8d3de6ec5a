package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
)

// holds lists a destination's, each as lane, position, state and attempts.
func (d *database) holds(destination string) []string {
	d.t.Helper()
	rows, err := d.Query(d.t.Context(), `
		SELECT format('%s %s %s %s', lane, id, CASE WHEN retry_at IS NULL THEN 'waits' WHEN retry_at = 'infinity' THEN 'blocked'
		       WHEN retry_at <= clock_timestamp() THEN 'due' ELSE 'later' END, attempts)
		FROM outbox.holds WHERE destination = $1 ORDER BY lane, id`, destination)
	if err != nil {
		d.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		d.t.Fatal(err)
	}
	return list
}

func TestRequeueMakesHoldsThatAreDueInOrder(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "1 minute")
	d.dead("kafka", "a", 3, 5)
	d.dead("kafka", "b", 4, 9)
	d.dead("kafka", "c", 8)
	d.held("kafka", "b", 6, "2100-01-01") // a later head, which gives way
	d.held("kafka", "c", 2, "2100-01-01") // an earlier head, which stays
	out, err := Requeue(t.Context(), d.Conn, Selection{Destination: "kafka"}, 0, anna)
	if err != nil || out.Done != 5 {
		t.Fatalf("%+v, %v", out, err)
	}
	want := []string{"a 3 due 0", "a 5 waits 0", "b 4 due 0", "b 6 waits 2", "b 9 waits 0", "c 2 later 2", "c 8 waits 0"}
	if got := d.holds("kafka"); !slices.Equal(got, want) {
		t.Errorf("holds are %q, want %q", got, want)
	}
	if n := d.int(`SELECT count(*) FROM outbox.dead_letters`); n != 0 {
		t.Errorf("%d dead letters are left", n)
	}
	if n := d.int(`SELECT count(*) FROM outbox.holds WHERE payload = 'secret' AND headers::text = '{"a":"b"}'`); n != 5 {
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
	d.cursor("kafka", "1 minute")
	d.dead("kafka", "a", 3)
	d.held("kafka", "a", 6, "infinity")
	_, err := Requeue(t.Context(), d.Conn, Selection{All: true}, 0, anna)
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
			d.cursor("kafka", "1 minute")
			d.held("kafka", "a", 6, "infinity")
			d.held("kafka", "a", 7, "")
			d.held("kafka", "b", 8, "infinity")
			list, err := DeadLetters(t.Context(), d.Conn, Selection{Blocked: true}, Page{})
			if err != nil || len(list) != 2 || list[0].Behind != 1 || list[1].Behind != 0 || list[0].Reason != "blocked" {
				t.Fatalf("list: %+v, %v", list, err)
			}
			do := Requeue
			if verb == "discard" {
				do = Discard
			}
			out, err := do(t.Context(), d.Conn, Selection{Blocked: true, Key: "a"}, 0, anna)
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
	d.cursor("kafka", "1 minute")
	d.held("kafka", "a", 5, "2020-01-01")
	d.held("kafka", "a", 6, "")
	d.dead("kafka", "a", 7)
	var settlements []pgx.Tx
	for _, id := range []int{5, 6} {
		tx, err := d.another().Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `DELETE FROM outbox.holds WHERE id = $1`, id); err != nil {
			t.Fatal(err)
		}
		settlements = append(settlements, tx)
	}
	operator := d.another()
	requeued := make(chan error, 1)
	go func() {
		_, err := Requeue(t.Context(), operator, Selection{Destination: "kafka"}, 0, anna)
		requeued <- err
	}()
	for _, tx := range settlements {
		ours := int64(tx.Conn().PgConn().PID())
		await.Until(t, "the verb waits", func() bool {
			return len(requeued) > 0 || d.int(`SELECT count(*) FROM pg_stat_activity WHERE $1::integer = ANY (pg_blocking_pids(pid))`, ours) > 0
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

func TestDeadLettersAreSpokenOfUntilTheyAreAcknowledged(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "1 minute")
	d.dead("kafka", "a", 1, 2)
	state := func(want State) {
		t.Helper()
		if v := d.status().Verdict; v.State != want {
			t.Errorf("the verdict is %q, want %s", v, want)
		}
	}
	dry := anna
	dry.DryRun = true
	for _, action := range []Action{dry, anna} {
		state(StateDead)
		out, err := Acknowledge(t.Context(), d.Conn, Selection{Destination: "kafka"}, 2, action)
		if err != nil || out.Total != 2 || action.DryRun != (out.Done == 0) ||
			out.Groups[0] != (JobGroup{"kafka", "orders", "exhausted", 2}) {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	state(StateIdle)
	list, err := DeadLetters(t.Context(), d.Conn, Selection{}, Page{})
	if err != nil || len(list) != 2 || list[0].AcknowledgedBy != anna.Actor || list[0].AcknowledgedAt.IsZero() {
		t.Errorf("%+v, %v", list, err)
	}
	d.dead("kafka", "a", 3)
	state(StateDead)
	if list, err := DeadLetters(t.Context(), d.Conn, Selection{New: true}, Page{}); err != nil || len(list) != 1 || list[0].Position != 3 {
		t.Errorf("new are %+v, %v", list, err)
	}
	if _, err := Acknowledge(t.Context(), d.Conn, Selection{Positions: []int64{1}}, 0, anna); !errors.Is(err, ErrNotFound) {
		t.Errorf("one that is known already: %v", err)
	}
	if _, err := Acknowledge(t.Context(), d.Conn, Selection{Blocked: true, All: true}, 0, anna); err == nil {
		t.Error("a blocked message is acknowledged")
	}
	if n := d.int(`SELECT count(*) FROM outbox.audit WHERE verb = 'acknowledge' AND (detail ->> 'messages')::int = 2`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
}

func TestSelectionsSelect(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "1 minute")
	d.dead("kafka", "a", 1, 2)
	d.dead("nats", "a", 2)
	d.dead("nats", "b", 3)
	d.exec(`UPDATE outbox.dead_letters SET topic = 'carts', reason = 'refused' WHERE id = 3`)
	d.exec(`UPDATE outbox.dead_letters SET dead_at = '2020-01-01' WHERE id = 1`)
	second, _ := outbox.ParseID("00000000-0000-7000-8000-000000000002")
	for _, c := range []struct {
		s    Selection
		want string
	}{
		{Selection{}, "kafka 1, kafka 2, nats 2, nats 3"},
		{Selection{Destination: "nats"}, "nats 2, nats 3"},
		{Selection{MessageIDs: []outbox.ID{second}}, "kafka 2, nats 2"},
		{Selection{Positions: []int64{1, 3}}, "kafka 1, nats 3"},
		{Selection{Topic: "carts"}, "nats 3"},
		{Selection{Reason: "exhausted", Destination: "nats"}, "nats 2"},
		{Selection{Key: "b"}, "nats 3"},
		{Selection{Before: d.status().At.AddDate(-1, 0, 0)}, "kafka 1"},
		{Selection{Blocked: true}, ""},
	} {
		list, err := DeadLetters(t.Context(), d.Conn, c.s, Page{})
		if err != nil {
			t.Fatalf("%+v: %v", c.s, err)
		}
		var got []string
		for _, l := range list {
			got = append(got, fmt.Sprint(l.Destination, " ", l.Position))
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%+v selects %q, want %s", c.s, got, c.want)
		}
	}
}

func TestPagesFollowEachOther(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.dead("kafka", "a", 1, 2, 3)
	d.dead("nats", "a", 1, 2)
	var got []string
	page := Page{Limit: 2}
	for {
		list, err := DeadLetters(t.Context(), d.Conn, Selection{}, page)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			break
		}
		for _, l := range list {
			got = append(got, fmt.Sprint(l.Destination, l.Position))
			page.AfterDestination, page.AfterPosition, page.AfterMessageID = l.Destination, l.Position, l.MessageID
		}
	}
	if want := []string{"kafka1", "kafka2", "kafka3", "nats1", "nats2"}; !slices.Equal(got, want) {
		t.Errorf("pages are %q", got)
	}
}

func TestPayloadsAreReadOnlyWhenAskedFor(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.dead("kafka", "a", 1)
	for _, payload := range []bool{false, true} {
		list, err := DeadLetters(t.Context(), d.Conn, Selection{}, Page{Payload: payload})
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		if got := string(list[0].Payload); got != map[bool]string{true: "secret"}[payload] {
			t.Errorf("payload %v: %q", payload, got)
		}
		var headers map[string]string
		if err := json.Unmarshal(list[0].Headers, &headers); err != nil || headers["a"] != "b" {
			t.Errorf("headers are %s", list[0].Headers)
		}
	}
}

func TestActionsThatAreRefusedChangeNothing(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "1 minute")
	d.dead("kafka", "a", 1, 2, 3)
	d.dead("gone", "a", 4)
	for _, c := range []struct {
		name   string
		s      Selection
		max    int64
		action Action
		kind   error
		want   string
	}{
		{"nothing selected", Selection{}, 0, anna, nil, "nothing is selected"},
		{"too many", Selection{Destination: "kafka"}, 2, anna, ErrTooMany, "3 are selected, at most 2"},
		{"unknown id", Selection{Positions: []int64{99}}, 0, anna, ErrNotFound, "no dead letter has such an id"},
		{"unknown blocked id", Selection{Blocked: true, Positions: []int64{99}}, 0, anna, ErrNotFound, "no blocked message has"},
		{"nobody acts", Selection{All: true}, 0, Action{}, nil, "no Actor"},
		{"no cursor", Selection{Destination: "gone"}, 0, anna, nil, "no relay delivers to it: start one"},
		{"blocked with a reason", Selection{Blocked: true, Reason: "refused"}, 0, anna, nil, "leave the reason out"},
	} {
		_, err := Requeue(t.Context(), d.Conn, c.s, c.max, c.action)
		if err == nil || !strings.Contains(err.Error(), c.want) || (c.kind != nil && !errors.Is(err, c.kind)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	dry := anna
	dry.DryRun = true
	out, err := Discard(t.Context(), d.Conn, Selection{All: true}, 0, dry)
	if err != nil || out.Total != 4 || len(out.Groups) != 2 || out.Groups[0].N != 3 {
		t.Errorf("dry run: %+v, %v", out, err)
	}
	if n := d.int(`SELECT count(*) FROM outbox.dead_letters`); n != 4 {
		t.Errorf("%d dead letters are left of 4", n)
	}
	if n := d.int(`SELECT count(*) FROM outbox.audit`) + d.int(`SELECT count(*) FROM outbox.holds`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

func TestDiscardDeletesWhatIsSelected(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.dead("kafka", "a", 1, 2)
	d.dead("nats", "a", 2)
	out, err := Discard(t.Context(), d.Conn, Selection{Positions: []int64{2}, Destination: "kafka"}, 1, anna)
	if err != nil || out.Done != 1 {
		t.Fatalf("%+v, %v", out, err)
	}
	if n := d.int(`SELECT count(*) FROM outbox.dead_letters WHERE (destination, id) IN (('kafka', 1), ('nats', 2))`); n != 2 {
		t.Errorf("%d of the others are left", n)
	}
	if n := d.int(`SELECT count(*) FROM outbox.audit WHERE verb = 'discard'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
}

func TestADestinationIsDroppedOnlyWhenNobodyWorksOnIt(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "1 minute")
	d.cursor("nats", "1 minute")
	d.write(3)
	d.dead("kafka", "a", 1)
	d.held("kafka", "b", 2, "")
	if _, err := DropDestination(t.Context(), d.Conn, "kafka", anna); !errors.Is(err, ErrInUse) ||
		!strings.Contains(err.Error(), "relay-1") {
		t.Errorf("with a live lease: %v", err)
	}
	if _, err := DropDestination(t.Context(), d.Conn, "kaffka", anna); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
	d.exec(`UPDATE outbox.cursors SET lease_until = clock_timestamp()`)
	dry := anna
	dry.DryRun = true
	want := Dropped{"kafka", 1, Count{N: 3}, 1, 1, 0, ""}
	for _, action := range []Action{dry, anna} {
		if got, err := DropDestination(t.Context(), d.Conn, "kafka", action); err != nil || got != want {
			t.Errorf("dry run %v: %+v, %v", action.DryRun, got, err)
		}
	}
	if n := d.int(`SELECT count(*) FROM outbox.cursors WHERE destination = 'nats'`); n != 1 {
		t.Error("the other destination went too")
	}
	if n := d.int(`SELECT count(*) FROM outbox.audit WHERE verb = 'drop_destination' AND detail @> '{"pending": 3}'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
}

// A relay that is frozen loses its lease, and keeps its session. If it wakes up, it makes the destination anew.
func TestADestinationIsNotDroppedWhileTheRelayThatHadItIsFrozen(t *testing.T) {
	t.Parallel()
	d := setup(t)
	name := "relay-1" + strings.Repeat("e", 60)
	frozen := d.another()
	if _, err := frozen.Exec(t.Context(), `SELECT set_config('application_name', $1, false)`, "outbox relay "+name[:45]); err != nil {
		t.Fatal(err)
	}
	pid := frozen.PgConn().PID()
	d.cursor("kafka", "10 minutes")
	d.exec(`UPDATE outbox.cursors SET owner = $1, lease = '1 microsecond', lease_until = clock_timestamp()`, name)
	if _, err := DropDestination(t.Context(), d.Conn, "kafka", anna); !errors.Is(err, ErrInUse) ||
		!strings.Contains(err.Error(), fmt.Sprintf("pg_terminate_backend(%d)", pid)) {
		t.Errorf("the relay is frozen: %v", err)
	}
	for what, change := range map[string]string{
		"the lease was given back":               `lease_until = '-infinity'`,
		"the relay was started again since then": `lease_until = clock_timestamp() - interval '10 minutes'`,
		"it is another relay":                    `owner = 'relay'`,
	} {
		d.exec(`UPDATE outbox.cursors SET ` + change)
		dry := anna
		dry.DryRun = true
		if _, err := DropDestination(t.Context(), d.Conn, "kafka", dry); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		d.exec(`UPDATE outbox.cursors SET lease_until = clock_timestamp(), owner = $1`, name)
	}
	if err := frozen.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := func() bool { return d.int(`SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid) == 0 }
	await.Until(t, "the session is gone", gone)
	if _, err := DropDestination(t.Context(), d.Conn, "kafka", anna); err != nil {
		t.Error(err)
	}
}

// Only what has failed and waits for its time is made due.
func TestARetryWakesTheKeysThatFail(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "10 minutes")
	hold := func(lane, retryAt, failed string) {
		d.exec(`INSERT INTO outbox.holds (destination, lane, id, message_id, key, topic, shard, payload, created_at, attempts, retry_at, error)
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
	if out, err := Retry(t.Context(), d.Conn, Target{Destination: "kafka"}, preview); err != nil || out.Keys != 2 {
		t.Errorf("%+v, %v", out, err)
	}
	state("later", "later")
	nothing := []Target{{Destination: "kafka", Key: "scheduled"}, {Destination: "kafka", Topic: "bills"}, {Destination: "nats"}}
	for _, target := range nothing {
		if _, err := Retry(t.Context(), d.Conn, target, anna); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v: %v", target, err)
		}
	}
	if out, err := Retry(t.Context(), d.Conn, Target{Destination: "kafka", Key: "a"}, anna); err != nil || out.Keys != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	state("due", "later")
	if out, err := Retry(t.Context(), d.Conn, Target{Destination: "kafka", Topic: "orders"}, anna); err != nil || out.Keys != 1 {
		t.Errorf("%+v, %v", out, err)
	}
	state("due", "due")
	if list, err := Audit(t.Context(), d.Conn, AuditFilter{Verb: "retry"}); err != nil || len(list) != 2 || list[0].Reason != anna.Reason {
		t.Errorf("%+v, %v", list, err)
	}
	d.table("")
	if _, err := Retry(t.Context(), d.Conn, Target{Destination: "shop"}, anna); err == nil || !strings.Contains(err.Error(), "in memory") {
		t.Errorf("of a table of its own: %v", err)
	}
}
