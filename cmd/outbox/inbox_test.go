package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verify"
)

func (d *database) committed(n int) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.messages (message_id, topic, key, created_at) SELECT ('00000000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, 'orders', 'k',
		now() - interval '1 hour' FROM generate_series(1, $1) i ORDER BY i`, n)
}

func (d *database) applied(positions ...int) {
	d.t.Helper()
	for _, p := range positions {
		d.exec(`SELECT outbox.receive('payments', $1::text::uuid)`, fmt.Sprintf("00000000-0000-7000-8000-%012d", p))
	}
}

func TestVerifyNamesFaultsAndSaysSoByItsExitCode(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.committed(5)
	d.applied(1, 2, 3, 4, 5)
	d.outbox("verify", "--consumer", "payments").want(exitOK, "5 committed, 5 applied", "nothing is missing")
	d.exec(`TRUNCATE outbox.inbox_0, outbox.messages RESTART IDENTITY`)
	d.committed(6)
	d.applied(1, 4, 3, 5, 6)
	d.exec(`INSERT INTO outbox.inbox_2 (consumer, id) SELECT consumer, id FROM outbox.inbox_0 WHERE id::text LIKE '%5'`)
	d.outbox("verify", "--consumer", "payments").want(exitError, "6 committed, 5 applied",
		"missing", "00000000-0000-7000-8000-000000000002", "applied 2 times",
		"applied before 00000000-0000-7000-8000-000000000003", "1 missing, 1 doubled, 1 inverted, 0 gaps")
	r := d.outbox("verify", "--consumer", "payments", "-o", "json").want(exitError)
	var v verify.Verification
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil || v.Missing.List[0].Position != 2 || v.Doubled.List[0].Times != 2 ||
		v.Inverted.List[0].Position != 4 || v.Inverted.List[0].Before.Position != 3 {
		t.Errorf("%+v, %v", v, err)
	}
	nothing := []string{"verify", "--consumer", "payments", "--from-id", "5", "--to-id", "6", "--target-url", d.url,
		"--until", "2000-01-01T00:00:00Z"}
	d.outbox(nothing...).want(exitNothing, "0 committed", "reaches back to", "nothing was compared", "--until",
		"--allow-empty").never("nothing is missing")
	d.outbox(append(nothing, "--allow-empty")...).want(exitOK, "0 committed")
	d.outbox("verify", "--consumer", "payments", "--topic", "misspelt").want(exitNothing,
		"none of the messages in the outbox is in the range", "--topic")
	d.outbox("verify", "--consumer", "payments", "--topic", "misspelt", "-o", "json").want(exitNothing, `"committed": 0`, `"oldest": "20`)
	d.exec(`TRUNCATE outbox.messages`)
	d.outbox("verify", "--consumer", "payments").want(exitNothing, "the outbox is empty", "retention")
	d.outbox("verify", "--consumer", "payments", "-o", "json").want(exitNothing, `"oldest": null`)
	d.outbox("verify").want(exitUsage, "--consumer")
	d.outbox("verify", "--consumer", "c", "--since", "yesterday").want(exitUsage, "2026-05-01T12:00:00Z")
	d.outbox("verify", "--consumer", "c", "--target-url", "postgres://%zz").want(exitConfig, "--target-url")
}

func TestTheInboxIsShownAndItsDeadLettersComeBack(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.outbox("inbox", "status").want(exitOK, "at least 7d", "outbox.inbox_0", "current")
	d.exec(`SELECT outbox.store('payments', gen_random_uuid(), NULL, true, 't', 'k', '', '', '', 'x', '', NULL)`)
	d.exec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, created_at, attempts, reason, error)
		SELECT d, 'k', 1, gen_random_uuid(), 'orders', 'k', 0, now(), 10, 'exhausted', 'of ' || d FROM unnest(ARRAY['inbox:payments', 'kafka']) d`)
	d.outbox("inbox", "status").want(exitOK, "payments")
	d.outbox("inbox", "dead", "payments").want(exitOK, "of inbox:payments").never("of kafka")
	d.outbox("inbox", "dead").want(exitUsage)
	d.outbox("inbox", "dead", "payments", "--destination", "kafka").want(exitUsage, "--destination")
	d.outbox("inbox", "requeue", "payments", "--yes", "--now").want(exitOK, "requeued 1 message")
	if n := d.int(`SELECT count(*) FROM outbox.holds WHERE destination = 'inbox:payments'`); n != 1 {
		t.Errorf("%d holds", n)
	}
	d.exec(`UPDATE outbox.dead_letters SET destination = 'inbox:payments'`)
	d.outbox("inbox", "discard", "payments", "1", "--yes", "--now").want(exitOK, "discarded 1 message")
	d.outbox("inbox", "window", "36h").want(exitUsage, "--yes")
	d.outbox("inbox", "window", "36h", "--yes").want(exitOK, "36h")
	d.outbox("inbox", "window", "long", "--yes").want(exitUsage, "a duration such as")
	var i health.Inbox
	if err := json.Unmarshal([]byte(d.outbox("inbox", "status", "-o", "json").want(exitOK).stdout), &i); err != nil ||
		i.Window.Hours() != 36 || len(i.Consumers) != 1 {
		t.Errorf("%+v, %v", i, err)
	}
}

func TestRecordsAreForgottenByOneLookOrByOneNowAndThen(t *testing.T) {
	t.Parallel()
	d := setup(t)
	due := func() {
		d.applied(1)
		d.exec(`UPDATE outbox.inbox_rotation SET closed_at = clock_timestamp() - keep - interval '1 s'`)
	}
	left := func() int {
		return d.int(`SELECT (SELECT count(*) FROM outbox.inbox_0) + (SELECT count(*) FROM outbox.inbox_1) + (SELECT count(*) FROM outbox.inbox_2)`)
	}
	d.outbox("inbox", "retain").want(exitOK)
	due()
	d.outbox("inbox", "retain").want(exitOK, "emptied outbox.inbox_")
	d.outbox("inbox", "retain").want(exitOK, "nothing is due")
	if n := left(); n != 1 {
		t.Fatalf("%d records after one turn, want one", n)
	}
	due()
	d.outbox("inbox", "retain", "-o", "json").want(exitOK, `"turned": true`)
	if n := left(); n != 0 {
		t.Fatalf("%d records after two turns, want none", n)
	}
	due()
	p := d.start(nil, "inbox", "retain", "--every", "1s")
	until(t, "the third turn", func() bool { return d.int(`SELECT current FROM outbox.inbox_rotation`) == 0 })
	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
	d.outbox("inbox", "retain", "--every", "1ms").want(exitUsage, "--every")
}
