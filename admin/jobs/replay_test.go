package jobs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/internal/admintest"
	"github.com/pgoutbox/outbox/schema"
)

// passed makes a destination that has passed everything that is written by now.
func (d *database) passed(destination string) {
	d.T.Helper()
	d.Cursor(destination, "1 minute")
	d.MustExec(`UPDATE outbox.cursors SET prev = pg_current_snapshot() WHERE destination = $1`, destination)
}

func (d *database) startReplay(r Replay, o Options) Job {
	d.T.Helper()
	job, err := StartReplay(d.T.Context(), d.Conn, r, o, anna)
	if err != nil {
		d.T.Fatal(err)
	}
	return job
}

// sent takes all holds of a destination away, as a relay that delivers them, and returns their ids in the order of a
// lane.
func (d *database) sent(destination string) map[string][]int64 {
	d.T.Helper()
	rows, err := d.Query(d.T.Context(), `WITH gone AS (DELETE FROM outbox.holds WHERE destination = $1 RETURNING lane, id)
		SELECT lane, array_agg(id ORDER BY id) FROM gone GROUP BY lane`, destination)
	if err != nil {
		d.T.Fatal(err)
	}
	list := map[string][]int64{}
	var lane string
	var ids []int64
	if _, err := pgx.ForEachRow(rows, []any{&lane, &ids}, func() error {
		list[lane] = slices.Clone(ids)
		return nil
	}); err != nil {
		d.T.Fatal(err)
	}
	return list
}

func TestAReplayHoldsWhatTheDestinationHasPassedOnceMore(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const write = `INSERT INTO outbox.messages (id, topic, key, payload, headers) SELECT i, CASE WHEN i % 4 = 0 THEN 'bills' ELSE 'orders' END,
		'k' || i % 10, convert_to('p' || i, 'UTF8'), '{"tenant":"a"}' FROM generate_series($1::int, $2::int) i`
	d.MustExec(write, 1, 600)
	open := &database{&admintest.Database{T: t, URL: d.URL, Conn: d.Another()}}
	open.MustExec(`BEGIN`)
	open.MustExec(write, 601, 601) // it commits when the rest is listed
	d.MustExec(write, 602, 1301)
	d.MustExec(`SELECT setval('outbox.messages_id_seq', 1301)`)
	d.passed("kafka")
	d.Dead("other", "k1", 1)
	d.Write(5) // not passed
	d.MustExec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, shard, created_at, attempts, reason, error)
		SELECT 'kafka', key, id, message_id, topic, shard, created_at, 10, 'exhausted', 'no' FROM outbox.messages WHERE id = 21`)
	d.MustExec(`INSERT INTO outbox.holds (destination, lane, id, message_id, topic, shard, created_at, retry_at)
		SELECT 'kafka', key, id, message_id, topic, shard, created_at, 'infinity' FROM outbox.messages WHERE id = 33`)

	dry := anna
	dry.DryRun = true
	all := Replay{Destination: "kafka", All: true}
	planned, err := StartReplay(t.Context(), d.Conn, all, Options{}, dry)
	if err != nil || planned.State != Planned || planned.Total != 1300 || planned.Verb != BulkReplay || planned.Note != "" {
		t.Fatalf("%+v, %v", planned, err)
	}
	groups := map[string]int64{}
	for _, g := range planned.Groups {
		groups[g.Topic+" "+g.Reason] = g.N
	}
	if fmt.Sprint(groups) != "map[bills passed:325 orders dead:1 orders held:1 orders passed:973 orders waiting:5]" {
		t.Errorf("%v", groups)
	}
	// What is passed from now on is not on the list.
	open.MustExec(`COMMIT`)
	d.MustExec(`UPDATE outbox.cursors SET prev = pg_current_snapshot()`)
	job := d.startReplay(Replay{}, Options{Job: planned.ID})
	if job, err = Run(t.Context(), d.Conn, job.ID, 0); err != nil || job.State != Done ||
		job.Done+job.Skipped != 1300 || job.Note == "" {
		t.Fatalf("%+v, %v", job, err)
	}
	if job.Done != 1300-1-130 { // the dead one, and the key that is blocked
		t.Errorf("%d were sent", job.Done)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.holds h JOIN outbox.messages m USING (id, message_id, topic, key, shard, payload, created_at)
		WHERE h.headers::text IS NOT DISTINCT FROM m.headers::text AND h.job = $1 AND h.attempts = 0 AND h.deaths = 0`, job.ID); n != job.Done {
		t.Errorf("%d holds are as the messages were written", n)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.holds WHERE retry_at <= clock_timestamp() AND (lane, id) IN (SELECT lane, min(id) FROM outbox.holds GROUP BY 1)`); n != 9 {
		t.Errorf("%d heads are due", n)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.audit WHERE verb = 'replay' AND destination = 'kafka' AND (detail ->> 'messages')::int = 1300`); n != 1 {
		t.Errorf("%d rows in the audit", n)
	}
}

func TestAReplaySelectsByWhatIsKnownOfMessages(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Messages(200)
	d.passed("kafka")
	minute := time.Date(2026, 5, 1, 12, 1, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		filter find.MessageFilter
		want   int64
	}{
		"ids":              {find.MessageFilter{MessageIDs: []outbox.ID{admintest.MessageID(t, 7), admintest.MessageID(t, 77)}}, 2},
		"key":              {find.MessageFilter{Key: "k3"}, 20},
		"key, topic, time": {find.MessageFilter{Key: "k3", Topic: "topic-1", Since: minute, Until: minute.Add(time.Minute)}, 2},
		"topic":            {find.MessageFilter{Topic: "topic-1"}, 67},
		"time":             {find.MessageFilter{Since: minute, Until: minute.Add(time.Minute)}, 60},
		"header":           {find.MessageFilter{Header: "tenant", HeaderValue: "4", Until: minute}, 12},
	} {
		job := d.startReplay(Replay{Destination: "kafka", Messages: c.filter}, Options{})
		job, err := Run(t.Context(), d.Conn, job.ID, 0)
		held := d.Int(`SELECT count(*) FROM outbox.holds`)
		if err != nil || job.State != Done || job.Total != c.want || job.Done != c.want || held != c.want {
			t.Errorf("%s: %d holds, %+v, %v", name, held, job, err)
		}
		d.sent("kafka")
	}
	// An id that isn't there is told of; none of them is an error.
	job := d.startReplay(Replay{Destination: "kafka",
		Messages: find.MessageFilter{MessageIDs: []outbox.ID{admintest.MessageID(t, 7), admintest.MessageID(t, 777)}}}, Options{})
	if job.Total != 1 || !strings.Contains(job.Note, "1 of 2 ids are in no segment") {
		t.Errorf("%+v", job)
	}
	_, err := StartReplay(t.Context(), d.Conn, Replay{Destination: "kafka",
		Messages: find.MessageFilter{MessageIDs: []outbox.ID{admintest.MessageID(t, 777)}}}, Options{}, anna)
	if !errors.Is(err, admin.ErrNotFound) || !strings.Contains(err.Error(), admintest.MessageID(t, 777).String()) {
		t.Error(err)
	}
}

// A transaction that was open for long has an early xid and late ids. The pages follow the ids, so that a key's
// messages come in their order whatever the batches are.
func TestAReplayGoesByIdsWhateverTheTransactionsAre(t *testing.T) {
	t.Parallel()
	d := setup(t)
	long := &database{&admintest.Database{T: t, URL: d.URL, Conn: d.Another()}}
	long.MustExec(`BEGIN; INSERT INTO outbox.messages (topic, key) VALUES ('orders', 'k')`)
	for range 3 {
		d.MustExec(`INSERT INTO outbox.messages (topic, key) SELECT 'orders', 'k' FROM generate_series(1, 400)`)
		long.MustExec(`INSERT INTO outbox.messages (topic, key) VALUES ('orders', 'k')`)
	}
	long.MustExec(`COMMIT`)
	d.passed("kafka")
	job := d.startReplay(Replay{Destination: "kafka", All: true}, Options{})
	var all []int64
	for d.job(job.ID).Ended.IsZero() {
		d.batch(job.ID)
		all = append(all, d.sent("kafka")["k"]...)
	}
	if len(all) != 1204 || !slices.IsSorted(all) {
		t.Errorf("%d were sent, in order: %v", len(all), slices.IsSorted(all))
	}
}

func TestAReplayIsAheadOfTheRelayByABoundedNumber(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Write(3*replayAhead - 100)
	d.passed("kafka")
	job := d.startReplay(Replay{Destination: "kafka", All: true}, Options{})
	for d.job(job.ID).Ended.IsZero() {
		d.batch(job.ID)
		held := d.Int(`SELECT count(*) FROM outbox.holds`)
		if held > replayAhead {
			t.Fatalf("%d are held", held)
		}
		if held < replayAhead {
			continue
		}
		done := d.job(job.ID).Done
		d.batch(job.ID) // it has to wait
		if j := d.job(job.ID); j.Done != done || j.Next.IsZero() && j.Ended.IsZero() {
			t.Fatalf("%+v", j)
		}
		d.sent("kafka")
	}
	if job = d.job(job.ID); job.State != Done || job.Done != 3*replayAhead-100 {
		t.Errorf("%+v", job)
	}
}

func TestAReplayKeepsItsRateIsStoppedAndIsUndone(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Write(100)
	d.passed("kafka")
	all := Replay{Destination: "kafka", All: true}
	job := d.startReplay(all, Options{Rate: 30})
	d.batch(job.ID)
	d.batch(job.ID)
	if job = d.job(job.ID); job.Done != 60 || job.Left != 40 {
		t.Errorf("%+v", job)
	}
	if n := d.Int(`SELECT count(DISTINCT id) FROM outbox.holds WHERE id <= 60`); n != 60 {
		t.Errorf("%d of the first are held", n)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.jobs WHERE next_at > clock_timestamp()`); n != 1 {
		t.Error("the next batch is due at once")
	}
	if job, err := Stop(t.Context(), d.Conn, job.ID, "kafka", anna); err != nil || job.State != Stopped {
		t.Errorf("%+v, %v", job, err)
	}
	job = d.startReplay(all, Options{Delay: time.Hour})
	if job, err := Undo(t.Context(), d.Conn, job.ID, "", anna); err != nil || job.State != Undone {
		t.Errorf("%+v, %v", job, err)
	}
	job = d.startReplay(all, Options{Rate: 30})
	d.batch(job.ID)
	if job, err := Undo(t.Context(), d.Conn, job.ID, "", anna); err != nil || job.State != Stopped || job.Left != 70 {
		t.Errorf("%+v, %v", job, err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.holds`); n != 60 { // 30 of them are still held, and not held twice
		t.Errorf("%d are held", n)
	}
}

func TestAReplayToAnotherDestinationSendsWhatBothHavePassed(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Write(10)
	d.passed("nats")
	d.Write(10)
	d.passed("kafka")
	job := d.startReplay(Replay{Destination: "kafka", To: "nats", All: true}, Options{})
	if job.To != "nats" || job.Destination != "kafka" || job.Total != 10 {
		t.Errorf("%+v", job)
	}
	// Who may act on one of both alone starts nothing that goes to the other.
	for _, other := range []Replay{{Destination: "kafka"}, {Destination: "nats"}} {
		if _, err := StartReplay(t.Context(), d.Conn, other, Options{Job: job.ID}, anna); !errors.Is(err, admin.ErrNotFound) {
			t.Errorf("%+v: %v", other, err)
		}
	}
	if job, err := Run(t.Context(), d.Conn, job.ID, 0); err != nil || job.Done != 10 {
		t.Errorf("%+v, %v", job, err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.holds WHERE destination = 'nats' AND id <= 10`); n != 10 {
		t.Errorf("%d holds", n)
	}
	if _, err := StartReplay(t.Context(), d.Conn, Replay{Destination: "kafka", To: "nats", All: true}, Options{Max: 1},
		anna); !errors.Is(err, admin.ErrTooMany) {
		t.Error(err)
	}
}

func TestAReplayTellsOfEmptiedSegments(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.MustExec(`INSERT INTO outbox.messages (topic, segment, created_at) SELECT 'orders', i / 500, now() - interval '20 min' + i / 500 * interval '10 min' FROM generate_series(0, 999) i`)
	d.passed("kafka")
	hour := find.MessageFilter{Since: time.Now().Add(-time.Hour)}
	if job := d.startReplay(Replay{Destination: "kafka", Messages: hour}, Options{}); job.Total != 1000 || job.Note != "" {
		t.Errorf("%+v", job)
	}
	job := d.startReplay(Replay{Destination: "kafka", Messages: hour}, Options{})
	d.MustExec(`TRUNCATE outbox.messages_0`) // after it was listed
	job, err := Run(t.Context(), d.Conn, job.ID, 0)
	if err != nil || job.State != Done || job.Done != 500 || job.Skipped != 500 || !strings.Contains(job.Note, "segment was emptied") {
		t.Errorf("%+v, %v", job, err)
	}
	job = d.startReplay(Replay{Destination: "kafka", Messages: hour}, Options{})
	if job.Total != 500 || !strings.Contains(job.Note, "the segments reach back to ") {
		t.Errorf("%+v", job)
	}
	d.Write(1)
	d.MustExec(`UPDATE outbox.cursors SET prev = pg_current_snapshot()`)
	recent := find.MessageFilter{Since: time.Now().Add(-5 * time.Minute)}
	if job := d.startReplay(Replay{Destination: "kafka", Messages: recent}, Options{}); job.Total != 1 || job.Note != "" {
		t.Errorf("%+v", job)
	}
	d.MustExec(`TRUNCATE outbox.messages`)
	if _, err := StartReplay(t.Context(), d.Conn, Replay{Destination: "kafka", Messages: hour}, Options{},
		anna); !errors.Is(err, admin.ErrNotFound) || !strings.Contains(err.Error(), "the segments are empty") {
		t.Error(err)
	}
}

func TestAReplayIsRefusedWhereItCanNotBe(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Write(3)
	d.Cursor("late", "1 minute")
	d.passed("kafka")
	d.passed("restored")
	d.MustExec(`UPDATE outbox.cursors SET system_identifier = 1 WHERE destination = 'restored'`)
	for _, c := range []struct {
		replay Replay
		want   string
	}{
		{Replay{Destination: "kafka"}, "nothing is selected"},
		{Replay{All: true}, "name the destination"},
		{Replay{Destination: "inbox:a", All: true}, "stored inbox"},
		{Replay{Destination: "kafka", To: "inbox:a", All: true}, "stored inbox"},
		{Replay{Destination: "nobody", All: true}, "no relay has a cursor for nobody"},
		{Replay{Destination: "kafka", To: "nobody", All: true}, "no relay has a cursor for nobody"},
		{Replay{Destination: "restored", All: true}, "outbox rebase --destination restored"},
		{Replay{Destination: "late", All: true}, "3 match, and late has not got them yet"},
		{Replay{Destination: "kafka", To: "late", All: true}, "kafka or late has not got them yet"},
	} {
		if _, err := StartReplay(t.Context(), d.Conn, c.replay, Options{}, anna); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.replay, err)
		}
	}
	if n := d.Int(`SELECT count(*) FROM outbox.jobs`); n != 0 {
		t.Errorf("%d jobs", n)
	}
	// A target that is dropped, or restored, in the middle.
	job := d.startReplay(Replay{Destination: "kafka", All: true}, Options{})
	d.MustExec(`DELETE FROM outbox.cursors WHERE destination = 'kafka'`)
	if err := RunAll(t.Context(), d.Conn); err == nil ||
		!strings.Contains(d.job(job.ID).Note, fmt.Sprintf("outbox jobs stop %d", job.ID)) {
		t.Errorf("%+v, %v", d.job(job.ID), err)
	}
	d.Viewer()
	if _, err := StartReplay(t.Context(), d.Conn, Replay{Destination: "restored", All: true}, Options{}, anna); err == nil {
		t.Error("a viewer's role starts a replay")
	}
	if _, err := Show(t.Context(), d.Conn, job.ID); err != nil {
		t.Errorf("a viewer's role doesn't see it: %v", err)
	}
}

// The relay's role, as it is granted, can plan and carry out a replay.
func TestTheRelaysRoleReplays(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Write(3)
	d.passed("kafka")
	role := "relay of " + d.Config().Database
	d.As(role, schema.Grants("", role, ""))
	job := d.startReplay(Replay{Destination: "kafka", All: true}, Options{})
	if job, err := Run(t.Context(), d.Conn, job.ID, 0); err != nil || job.Done != 3 {
		t.Errorf("%+v, %v", job, err)
	}
}

func TestAReplayOfAnArchiveIsFedByOneAtATimeAndGoesOn(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.passed("kafka")
	const total, notPassed = 2*jobBatch + 10, 2
	d.MustExec(`INSERT INTO outbox.messages (topic) SELECT 'orders' FROM (SELECT setval('outbox.messages_id_seq', $1)) s`, total) // has the next id
	var all []*outbox.Message
	for i := range int64(total + notPassed) {
		all = append(all, &outbox.Message{ID: admintest.MessageID(t, int(i)), Position: i + 1, Topic: "orders", Key: "k",
			CreatedAt: time.Now()})
	}
	var stop error
	from := Archived{Names: []string{"/archive"}, Messages: func(yield func(*outbox.Message, error) bool) {
		for i, m := range all {
			if stop != nil && i == jobBatch+1 {
				yield(nil, stop)
				return
			}
			if !yield(m, nil) {
				return
			}
		}
	}}
	r := Replay{Destination: "kafka", All: true}
	job, err := StartArchived(t.Context(), d.Conn, r, from, Options{}, anna)
	if err != nil || job.Total != total {
		t.Fatalf("%+v, %v", job, err)
	}
	stop = errors.New("the disk is gone")
	var fed []int64
	feed := func() (Job, error) {
		job, err := FeedReplay(t.Context(), d.Conn, job.ID, from, nil)
		for _, ids := range d.sent("kafka") {
			fed = append(fed, ids...)
		}
		return job, err
	}
	if _, err := feed(); !errors.Is(err, stop) || len(fed) != jobBatch {
		t.Fatalf("%d were sent, %v", len(fed), err)
	}
	stop = nil
	if _, err := feedBatch(t.Context(), d.Conn, job.ID, 0, r, all[:1]); err == nil || !strings.Contains(err.Error(), "another command") {
		t.Errorf("a second command: %v", err)
	}
	if _, err := StartReplay(t.Context(), d.Conn, r, Options{Job: job.ID}, anna); err == nil ||
		!strings.Contains(err.Error(), "outbox replay --destination kafka --archive /archive --job") {
		t.Errorf("without the archive: %v", err)
	}
	d.MustExec(`UPDATE outbox.jobs SET fed_at = fed_at - interval '1 minute'`)
	if list, err := List(t.Context(), d.Conn, Filter{Unfinished: true}); err != nil || len(list) != 1 ||
		!strings.Contains(list[0].Note, "to go on: outbox replay --destination kafka --archive /archive --job") {
		t.Errorf("%+v, %v", list, err)
	}
	if done, err := feed(); err != nil || done.State != Done || done.Done != total {
		t.Errorf("%+v, %v", done, err)
	}
	for i, id := range fed {
		if id != int64(i+1) {
			t.Fatalf("place %d has message %d", i, id)
		}
	}
	if len(fed) != total {
		t.Errorf("%d were sent", len(fed))
	}
}
