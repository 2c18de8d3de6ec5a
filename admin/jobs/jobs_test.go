package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/internal/servers"
)

// letters adds n dead letters of ten keys, with the positions 1 to n.
func (d *database) letters(n int) {
	d.T.Helper()
	d.Cursor("kafka", "1 minute")
	d.MustExec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, payload, created_at, attempts, reason, error)
		SELECT 'kafka', 'k' || i % 10, i, gen_random_uuid(), 'orders', 'k' || i % 10, 1, 'secret', now(), 10, 'exhausted', 'no' FROM generate_series(1, $1) i`, n)
}

func (d *database) start(verb BulkVerb, o Options) Job {
	d.T.Helper()
	job, err := Start(d.T.Context(), d.Conn, verb, find.Selection{Destination: "kafka"}, o, anna)
	if err != nil {
		d.T.Fatal(err)
	}
	return job
}

func (d *database) job(id int64) Job {
	d.T.Helper()
	detail, err := Show(d.T.Context(), d.Conn, id)
	if err != nil {
		d.T.Fatal(err)
	}
	return detail.Job
}

// due makes the next batch of a job due.
func (d *database) due(id int64) {
	d.T.Helper()
	d.MustExec(`UPDATE outbox.jobs SET next_at = clock_timestamp() WHERE id = $1`, id)
}

// batch runs one.
func (d *database) batch(id int64) {
	d.T.Helper()
	d.due(id)
	if worked, err := runNext(d.T.Context(), d.Conn, id); err != nil || !worked {
		d.T.Fatalf("%v, %v", worked, err)
	}
}

func TestAJobActsOnWhatItsDryRunHasListed(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.letters(30)
	dry := anna
	dry.DryRun = true
	planned, err := Start(t.Context(), d.Conn, BulkRequeue, find.Selection{Destination: "kafka"}, Options{}, dry)
	if err != nil || planned.State != Planned || planned.Total != 30 || planned.Left != 30 ||
		len(planned.Groups) != 1 || planned.Groups[0].N != 30 {
		t.Fatalf("%+v, %v", planned, err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.audit`); n != 0 {
		t.Errorf("%d rows in the audit", n)
	}
	// One has gone, one was sent and has died again, and one is new.
	d.MustExec(`DELETE FROM outbox.dead_letters WHERE id = 1`)
	d.MustExec(`UPDATE outbox.dead_letters SET dead_at = clock_timestamp() WHERE id = 2`)
	d.Dead("kafka", "new", 31)
	for range 2 { // a second click
		if _, err := Start(t.Context(), d.Conn, BulkRequeue, find.Selection{}, Options{Job: planned.ID}, anna); err != nil {
			t.Fatal(err)
		}
	}
	job, err := Run(t.Context(), d.Conn, planned.ID, 0)
	if err != nil || job.State != Done || job.Done != 28 || job.Skipped != 2 || job.Left != 0 || job.Note == "" || job.Ended.IsZero() {
		t.Fatalf("%+v, %v", job, err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.holds`); n != 28 {
		t.Errorf("%d holds", n)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.dead_letters WHERE id IN (2, 31)`); n != 2 {
		t.Errorf("%d of 2 dead letters are left", n)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.audit WHERE verb = 'requeue' AND actor = 'anna@example' AND (detail ->> 'messages')::int = 30`); n != 1 {
		t.Errorf("%d rows in the audit", n)
	}
	for verb, of := range map[BulkVerb]string{BulkDiscard: "", BulkRequeue: "nats"} {
		if _, err := Start(t.Context(), d.Conn, verb, find.Selection{Destination: of}, Options{Job: planned.ID},
			anna); !errors.Is(err, admin.ErrNotFound) {
			t.Errorf("another verb or destination: %v", err)
		}
	}
}

func TestAnUndoBeforeAJobBeginsLeavesNoTrace(t *testing.T) {
	t.Parallel()
	for _, verb := range []BulkVerb{BulkRequeue, BulkDiscard, BulkAcknowledge} {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			d := setup(t)
			d.letters(3)
			job := d.start(verb, Options{Delay: time.Hour})
			if worked, err := runNext(t.Context(), d.Conn, 0); err != nil || worked || job.State != Waiting {
				t.Fatalf("it has begun: %+v, %v", job, err)
			}
			undone, err := Undo(t.Context(), d.Conn, job.ID, "", anna)
			if err != nil || undone.State != Undone || undone.Ended.IsZero() {
				t.Fatalf("%+v, %v", undone, err)
			}
			if n := d.Int(`SELECT count(*) FROM outbox.dead_letters WHERE acknowledged_at IS NULL`); n != 3 {
				t.Errorf("%d of 3 are as they were", n)
			}
			if _, err := Undo(t.Context(), d.Conn, job.ID, "", anna); err == nil {
				t.Error("it was undone twice")
			}
			if n := d.Int(`SELECT count(*) FROM outbox.audit WHERE verb = 'undo_job'`); n != 1 {
				t.Errorf("%d rows in the audit", n)
			}
		})
	}
}

func TestWhatWasDiscardedOrAcknowledgedIsTakenBack(t *testing.T) {
	t.Parallel()
	for _, verb := range []BulkVerb{BulkDiscard, BulkAcknowledge} {
		t.Run(string(verb), func(t *testing.T) {
			t.Parallel()
			d := setup(t)
			d.letters(1200)
			d.MustExec(`CREATE TABLE before AS SELECT * FROM outbox.dead_letters`)
			job := d.start(verb, Options{})
			d.batch(job.ID)
			d.batch(job.ID)
			if job = d.job(job.ID); job.Done != 1000 || job.Left != 200 || job.State != Running {
				t.Fatalf("%+v", job)
			}
			if n := d.Int(`SELECT count(*) FROM outbox.dead_letters WHERE acknowledged_at IS NULL`); n != 200 {
				t.Errorf("%d are as they were", n)
			}
			if _, err := Undo(t.Context(), d.Conn, job.ID, "", anna); err != nil {
				t.Fatal(err)
			}
			job, err := Run(t.Context(), d.Conn, job.ID, 0)
			if err != nil || job.State != Undone || job.Done != 0 || job.Left != 0 {
				t.Fatalf("%+v, %v", job, err)
			}
			if n := d.Int(`SELECT count(*) FROM (SELECT b::text AS row FROM before b) b FULL JOIN (SELECT d::text AS row FROM outbox.dead_letters d) d USING (row)
				WHERE b.row IS NULL OR d.row IS NULL`); n != 0 {
				t.Errorf("%d rows differ", n)
			}
			if n := d.Int(`SELECT count(*) FROM outbox.trash`); n != 0 {
				t.Errorf("%d are in the trash", n)
			}
		})
	}
}

func TestTheTrashIsListedAndRestoredFrom(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.letters(3)
	d.Held("kafka", "b", 6, "infinity")
	d.Held("kafka", "b", 7, "")
	for _, s := range []find.Selection{{Positions: []int64{2, 3}}, {Blocked: true, All: true}} {
		if _, err := Discard(t.Context(), d.Conn, s, 0, anna); err != nil {
			t.Fatal(err)
		}
	}
	trash := find.Selection{Discarded: true}
	if list, err := find.DeadLetters(t.Context(), d.Conn, trash, find.Page{Payload: true}); err != nil || len(list) != 3 ||
		list[0].Position != 2 || string(list[2].Payload) != "secret" {
		t.Fatalf("%+v, %v", list, err)
	}
	for _, s := range []find.Selection{{All: true}, {Discarded: true}, {Discarded: true, Blocked: true, All: true}} {
		if _, err := Start(t.Context(), d.Conn, BulkRestore, s, Options{}, anna); err == nil {
			t.Errorf("%+v is restored", s)
		}
	}
	if _, err := Requeue(t.Context(), d.Conn, find.Selection{Discarded: true, All: true}, 0, anna); err == nil {
		t.Error("what was discarded is requeued")
	}
	trash.All = true
	if job, err := atOnce(t.Context(), d.Conn, BulkRestore, trash, 0, anna); err != nil || job.Done != 3 {
		t.Fatalf("%+v, %v", job, err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.dead_letters WHERE fingerprint <> ''`); n != 4 {
		t.Errorf("%d dead letters", n)
	}
	if job, err := Requeue(t.Context(), d.Conn, find.Selection{All: true}, 0, anna); err != nil || job.Done != 4 {
		t.Errorf("%+v, %v", job, err)
	}
}

func TestAJobThatIsStoppedLeavesTheRest(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.letters(1200)
	type end func(context.Context, admin.DB, int64, string, admin.Action) (Job, error)
	for verb, end := range map[string]end{"stop": Stop, "undo": Undo} {
		left := d.Int(`SELECT count(*) FROM outbox.dead_letters`)
		job := d.start(BulkRequeue, Options{})
		d.batch(job.ID)
		job, err := end(t.Context(), d.Conn, job.ID, "kafka", anna)
		if err != nil || job.State != Stopped || job.Done != min(500, left) || job.Done+job.Left != job.Total {
			t.Fatalf("%s: %+v, %v", verb, job, err)
		}
		if worked, err := runNext(t.Context(), d.Conn, 0); worked || err != nil {
			t.Errorf("%s: it goes on: %v", verb, err)
		}
		if n := d.Int(`SELECT count(*) FROM outbox.dead_letters`); n != left-job.Done {
			t.Errorf("%s: %d dead letters are left", verb, n)
		}
		if _, err := end(t.Context(), d.Conn, job.ID, "nats", anna); !errors.Is(err, admin.ErrNotFound) {
			t.Errorf("%s: a job of another destination: %v", verb, err)
		}
	}
}

func TestAJobKeepsItsRate(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.letters(100)
	job := d.start(BulkRequeue, Options{Rate: 30})
	d.batch(job.ID)
	if job = d.job(job.ID); job.Done != 30 || time.Until(job.Next) < -time.Minute {
		t.Errorf("%+v", job)
	}
	// The next batch is due a second after this one.
	if n := d.Int(`SELECT count(*) FROM outbox.jobs WHERE next_at > begun_at + interval '900 ms'`); n != 1 {
		t.Error("the next batch is due at once")
	}
}

func TestAJobSkipsKeysThatAreBlocked(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.letters(20)
	d.Held("kafka", "k3", 100, "infinity")
	job, err := Requeue(t.Context(), d.Conn, find.Selection{Destination: "kafka"}, 0, anna)
	if err != nil || job.Done != 18 || job.Skipped != 2 || !strings.Contains(job.Note, "outbox dead ls --blocked") {
		t.Errorf("%+v, %v", job, err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.holds WHERE lane = 'k3' AND retry_at = 'infinity'`); n != 1 {
		t.Error("the blocked lane is released")
	}
}

func TestAnErrorOfABatchIsNotedAndTheJobGoesOnLater(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.letters(3)
	job := d.start(BulkRequeue, Options{})
	d.MustExec(`ALTER TABLE outbox.holds RENAME TO elsewhere`)
	if err := RunAll(t.Context(), d.Conn); err == nil {
		t.Error("no error")
	}
	if job = d.job(job.ID); !strings.Contains(job.Note, "outbox.holds") || job.State != Waiting || job.Done != 0 {
		t.Errorf("%+v", job)
	}
	d.MustExec(`ALTER TABLE outbox.elsewhere RENAME TO holds`)
	d.due(job.ID)
	if err := RunAll(t.Context(), d.Conn); err != nil {
		t.Fatal(err)
	}
	if job = d.job(job.ID); job.State != Done || job.Done != 3 {
		t.Errorf("%+v", job)
	}
}

// TestExecutorsThatDieAndOthersBesideThemDoNoHarm has several processes carry out one job while some of them end in the
// middle of a batch, and a relay takes holds away. OUTBOX_JOB_MESSAGES is how many dead letters there are.
func TestExecutorsThatDieAndOthersBesideThemDoNoHarm(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	total := 3000
	if n, err := strconv.Atoi(os.Getenv("OUTBOX_JOB_MESSAGES")); err == nil {
		total = n
	}
	d.letters(total)
	job := d.start(BulkRequeue, Options{})

	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for {
				conn, err := pgx.Connect(t.Context(), d.URL)
				if err != nil {
					t.Error(err)
					return
				}
				err = RunAll(t.Context(), conn)
				_ = conn.Close(context.Background())
				if err == nil {
					return
				}
			}
		})
	}
	killer, relay := d.Another(), d.Another()
	delivered := map[string][]int64{}
	for n := 0; n < total; {
		// What a relay would find due: heads, in the order of their lanes.
		rows, err := relay.Query(t.Context(), `
			DELETE FROM outbox.holds h USING (
				SELECT destination, lane, id FROM outbox.holds WHERE retry_at <= clock_timestamp() FOR UPDATE) due
			WHERE h.destination = due.destination AND h.lane = due.lane AND h.id = due.id RETURNING h.lane, h.id`)
		if err != nil {
			t.Fatal(err)
		}
		var lane string
		var id int64
		if _, err := pgx.ForEachRow(rows, []any{&lane, &id}, func() error {
			delivered[lane] = append(delivered[lane], id)
			n++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := relay.Exec(t.Context(), `UPDATE outbox.holds h SET retry_at = clock_timestamp() WHERE retry_at IS NULL
			AND id = (SELECT min(id) FROM outbox.holds m WHERE m.destination = h.destination AND m.lane = h.lane)`); err != nil {
			t.Fatal(err)
		}
		if _, err := killer.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE '%INSERT INTO outbox.holds%' AND pid <> pg_backend_pid() AND random() < 0.2`); err != nil {
			t.Fatal(err)
		}
		if _, err := killer.Exec(t.Context(), `UPDATE outbox.jobs SET next_at = clock_timestamp() WHERE state = 'running'`); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	for lane, ids := range delivered {
		for i := range ids[1:] {
			if ids[i+1] <= ids[i] {
				t.Fatalf("%s: %d comes after %d", lane, ids[i+1], ids[i])
			}
		}
	}
	// An executor that finds the work of another done would say so.
	if job = d.job(job.ID); job.State != Done || job.Done != int64(total) || strings.Contains(job.Note, "some were") {
		t.Errorf("%+v", job)
	}
	if list, err := List(t.Context(), d.Conn, Filter{Destination: "kafka", Limit: 1}); err != nil || len(list) != 1 ||
		fmt.Sprint(list[0].ID) != fmt.Sprint(job.ID) {
		t.Errorf("%+v, %v", list, err)
	}
}
