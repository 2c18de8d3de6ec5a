package verify

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// told is what a verification says, by positions: "missing 3; doubled 5; inverted 4 before 7; gap k 2-3".
func told(v *Verification) string {
	var all []string
	for _, m := range v.Missing.List {
		all = append(all, fmt.Sprint("missing ", m.Position))
	}
	for _, m := range v.Doubled.List {
		all = append(all, fmt.Sprint("doubled ", m.Position, " ", m.Times))
	}
	for _, m := range v.Inverted.List {
		all = append(all, fmt.Sprint("inverted ", m.Position, " before ", m.Before.Position))
	}
	for _, g := range v.Gaps.List {
		all = append(all, fmt.Sprint("gap ", g.Key, " ", g.First, "-", g.Last))
	}
	return strings.Join(all, "; ")
}

// committed writes messages of two keys by turns: odd positions are key a's.
func (d *database) committed(n int) {
	d.T.Helper()
	d.MustExec(`INSERT INTO outbox.messages (message_id, topic, key, created_at)
		SELECT ('00000000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, 'orders', CASE i % 2 WHEN 1 THEN 'a' ELSE 'b' END, now() - interval '1 hour' + i * interval '1 ms'
		FROM generate_series(1, $1) i ORDER BY i`, n)
}

func positionID(position int64) string { return fmt.Sprintf("00000000-0000-7000-8000-%012d", position) }

// apply records positions as applied, in this order.
func (d *database) apply(positions ...int64) {
	d.T.Helper()
	for _, p := range positions {
		d.MustExec(`SELECT outbox.receive('payments', $1::text::uuid)`, positionID(p))
	}
}

func (d *database) verify(target *database, cfg Config) *Verification {
	d.T.Helper()
	if cfg.Consumer == "" && cfg.Applied == "" {
		cfg.Consumer = "payments"
	}
	v, err := Run(d.T.Context(), d.Conn, target.Another(), cfg)
	if err != nil {
		d.T.Fatal(err)
	}
	return v
}

func TestVerifyFindsNothingWhereEverythingWasAppliedInOrder(t *testing.T) {
	t.Parallel()
	source, target := setup(t), setup(t)
	source.committed(8)
	target.apply(2, 1, 3, 4, 5, 7, 6, 8) // keys may overtake each other
	v := source.verify(target, Config{})
	if !v.OK() || told(v) != "" || v.Committed != 8 || v.Applied != 8 {
		t.Errorf("%+v", v)
	}
	if age := time.Since(*v.Oldest).Round(time.Minute); age != time.Hour {
		t.Errorf("the outbox reaches back %v, want an hour", age)
	}
}

func TestVerifyNamesAGapADuplicateAndASwapMadeByHand(t *testing.T) {
	t.Parallel()
	d := setup(t) // one database for both sides
	d.committed(12)
	d.apply(1, 2, 4, 6, 7, 5, 8, 9, 10, 11, 12) // 3 is missing, 7 before 5
	// 8 is in two tables, as it never is by itself.
	d.MustExec(`INSERT INTO outbox.inbox_1 (consumer, id) VALUES ('payments', $1::text::uuid)`, positionID(8))
	d.MustExec(`INSERT INTO outbox.inbox_gaps (consumer, topic, key, first, last) VALUES ('payments', 'orders', 'k', 2, 3), ('other', 'orders', 'k', 1, 1)`)
	v := d.verify(d, Config{})
	if got, want := told(v), "missing 3; doubled 8 2; inverted 7 before 5; gap k 2-3"; v.OK() || got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if v.Committed != 12 || v.Applied != 11 {
		t.Errorf("%d committed, %d applied", v.Committed, v.Applied)
	}
	if m := v.Missing.List[0]; m.Key != "a" || m.Topic != "orders" || m.MessageID.String() != positionID(3) || m.CreatedAt.IsZero() {
		t.Errorf("missing: %+v", m)
	}
}

func TestVerifyLooksAtItsRangeOnly(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.committed(9)
	d.MustExec(`INSERT INTO outbox.messages (topic, key) VALUES ('orders', 'young'), ('it''s \ other', 'k')`)
	d.MustExec(`DROP PUBLICATION everything; UPDATE outbox.messages SET created_at = now() - interval '1 hour' WHERE topic <> 'orders'`)
	start := time.Now().Add(-time.Hour)
	for name, c := range map[string]struct {
		cfg  Config
		want int64
	}{
		"everything":     {Config{}, 11},
		"without young":  {Config{Settle: time.Minute}, 10},
		"ids":            {Config{FirstID: 3, LastID: 5}, 3},
		"topic":          {Config{Topics: []string{"x", `it's \ other`}}, 1},
		"before a time":  {Config{Until: start.Add(-time.Minute)}, 0},
		"since a time":   {Config{Since: start.Add(20 * time.Minute)}, 1},
		"between times":  {Config{Since: start.Add(-time.Minute), Until: start.Add(time.Minute)}, 10},
		"list of one":    {Config{Limit: 1}, 11},
		"of an unknown":  {Config{Consumer: "nobody"}, 11},
		"applied by sql": {Config{Applied: "SELECT message_id, id FROM outbox.messages WHERE false"}, 11},
	} {
		if v := d.verify(d, c.cfg); v.Committed != c.want || v.Missing.N != c.want || c.cfg.Limit == 1 && len(v.Missing.List) != 1 {
			t.Errorf("%s: %d committed, %d missing, want %d", name, v.Committed, v.Missing.N, c.want)
		}
	}
}

func TestVerifyComparesWithTheEffectsThemselves(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.committed(6)
	d.MustExec(`CREATE TABLE ledger (no bigserial, event text)`)
	for _, p := range []int64{1, 2, 4, 5, 3, 6, 6} {
		d.MustExec(`INSERT INTO ledger (event) VALUES (upper($1))`, positionID(p))
	}
	v := d.verify(d, Config{Applied: `SELECT event, no FROM ledger`})
	if got, want := told(v), "doubled 6 2; inverted 5 before 3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestVerifyKnowsRecordsByDeduplicationKeyAndByRepeatableRead(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.committed(4)
	d.MustExec(`SELECT outbox.receive('payments', $1::text::uuid, 'some key')`, positionID(1))
	d.MustExec(`BEGIN ISOLATION LEVEL REPEATABLE READ`)
	d.apply(2, 3)
	d.MustExec(`COMMIT`)
	d.apply(4)
	if n := d.Int(`SELECT count(*) FROM outbox.inbox`); n != 8 {
		t.Fatalf("%d records, want those of repeatable read in three tables", n)
	}
	if v := d.verify(d, Config{}); !v.OK() || v.Applied != 4 {
		t.Errorf("%s, %+v", told(v), v)
	}
}

func TestVerifyGoesThroughManyPages(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const n = 2*verifyPage + 7
	d.committed(n)
	d.MustExec(`INSERT INTO outbox.inbox_0 (consumer, id) SELECT 'payments', message_id FROM outbox.messages WHERE id <> $1 ORDER BY id`, verifyPage+1)
	v := d.verify(d, Config{})
	if got := told(v); got != fmt.Sprint("missing ", verifyPage+1) || v.Committed != n {
		t.Errorf("%s of %d", got, v.Committed)
	}
}

// A message that is a dead letter for its headers doesn't keep the others from being verified.
func TestVerifyBearsHeadersThatCanNotBeRead(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.committed(2)
	d.MustExec(`DROP PUBLICATION everything; UPDATE outbox.messages SET headers = '{"sequence": "1", "a": "\u0000"}' WHERE id = 1`)
	d.MustExec(`INSERT INTO outbox.inbox_0 (consumer, id) SELECT 'payments', message_id FROM outbox.messages WHERE id = 2`)
	if got := told(d.verify(d, Config{})); got != "missing 1" {
		t.Error(got)
	}
}

func TestVerifyRefusesWhatItCannotAnswer(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.committed(1)
	other := d.Another()
	for _, cfg := range []Config{{}, {Consumer: "c", Settle: -1}, {Applied: "SELECT nonsense"}} {
		if v, err := Run(d.T.Context(), d.Conn, other, cfg); err == nil {
			t.Errorf("%+v: %+v", cfg, v)
		}
	}
	if _, err := Run(d.T.Context(), d.Conn, d.Conn, Config{Consumer: "c"}); err == nil ||
		!strings.Contains(err.Error(), "give two") {
		t.Errorf("one connection: %v", err)
	}
}
