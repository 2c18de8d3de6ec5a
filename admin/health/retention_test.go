package health

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pgoutbox/outbox/admin/jobs"
)

func TestRetentionTellsWhatKeepsEachSegment(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	// Of a turn that is over, and far from the next one.
	old := d.Int(`SELECT (date_part('epoch', clock_timestamp())::bigint / 600 + 4) % 8`)
	d.MustExec(`INSERT INTO outbox.messages (topic, segment, created_at) SELECT 't', $1::int, '2026-05-01T12:00:00Z'::timestamptz + i * interval '1 s'
		FROM generate_series(0, 9) i`, old)

	name := fmt.Sprintf("messages_%d", old)
	look := func() (found RetainedSegment) {
		t.Helper()
		segments, err := Retention(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		turns := map[string]int{}
		for _, s := range segments {
			if turns[s.Turn]++; s.Turn == SegmentCurrent && s.Until.Sub(s.From).Seconds() != 600 {
				t.Errorf("%s is written to from %v to %v", s.Name, s.From, s.Until)
			}
		}
		// Of the outbox and of the inbox.
		if len(segments) != 16 || turns[SegmentCurrent] != 2 || turns[SegmentNext] != 2 || turns[SegmentEmpty] != 11 {
			t.Errorf("%d segments, by their turns %v", len(segments), turns)
		}
		return segments[slices.IndexFunc(segments, func(s RetainedSegment) bool { return s.Name == name })]
	}
	if s := look(); s.Turn != SegmentNeeded || !slices.Equal(s.NeededBy, []string{"kafka"}) ||
		s.Oldest.UTC().Format("2006-01-02 15:04:05") != "2026-05-01 12:00:00" ||
		s.Emptied() != "when kafka has passed it" {
		t.Errorf("needed: %+v", s)
	}
	d.MustExec(`UPDATE outbox.cursors SET prev = pg_current_snapshot()`)
	if s := look(); s.Turn != SegmentPassed || len(s.NeededBy) > 0 {
		t.Errorf("passed: %+v", s)
	}
	job, err := jobs.StartReplay(t.Context(), d.Conn, jobs.Replay{Destination: "kafka", All: true}, jobs.Options{}, anna)
	if err != nil {
		t.Fatal(err)
	}
	if s := look(); s.Turn != SegmentNeeded || s.Replay != job.ID ||
		s.Emptied() != fmt.Sprintf("when job %d has replayed it, or is stopped", job.ID) {
		t.Errorf("replayed: %+v", s)
	}
	if _, err := jobs.Run(t.Context(), d.Conn, job.ID, 0); err != nil {
		t.Fatal(err)
	}
	if s := look(); s.Turn != SegmentPassed || s.Replay != 0 {
		t.Errorf("replayed: %+v", s)
	}
	// What is attached by hand is no segment.
	d.MustExec(`CREATE TABLE outbox.old (LIKE outbox.messages INCLUDING ALL); ALTER TABLE outbox.messages ATTACH PARTITION outbox.old FOR VALUES IN (8);
		CREATE TABLE outbox.messages_old (LIKE outbox.messages INCLUDING ALL); ALTER TABLE outbox.messages ATTACH PARTITION outbox.messages_old FOR VALUES IN (9)`)
	look()
	d.Viewer()
	look()
}
