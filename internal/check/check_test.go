package check_test

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
)

func one() (*check.Checker, *check.Destination) {
	c := check.New(check.Config{})
	return c, c.Destination("default")
}

// expect compares the figures of a report and leaves the examples aside.
func expect(t *testing.T, c *check.Checker, want check.Report) {
	t.Helper()
	got := c.Report()
	got.Examples = check.Examples{}
	g, w := text(t, got), text(t, want)
	if g != w {
		t.Errorf("report\n got %s\nwant %s", g, w)
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAFaultlessRunIsOK(t *testing.T) {
	t.Parallel()
	c, d := one()
	for seq := uint64(1); seq <= 1000; seq++ {
		if seq%10 == 0 {
			c.RolledBack(7, seq)
			continue
		}
		c.Committed(7, seq)
		d.Delivered(7, seq)
	}
	expect(t, c, check.Report{Committed: 900, RolledBack: 100, Delivered: 900})
	r := c.Report()
	if !r.OK() {
		t.Error("report is not OK")
	}
	want := "OK: 900 committed, 100 rolled back, 900 delivered; 0 lost, 0 phantom, 0 duplicated, 0 inverted"
	if got := r.String(); got != want {
		t.Errorf("text\n got %s\nwant %s", got, want)
	}
}

func TestACommittedMessageThatNeverArrivesIsLost(t *testing.T) {
	t.Parallel()
	c, d := one()
	c.Committed(1, 1)
	c.Committed(1, 2)
	d.Delivered(1, 1)
	if got := c.Outstanding(); got != 1 {
		t.Errorf("outstanding %d, want 1", got)
	}
	expect(t, c, check.Report{Committed: 2, Delivered: 1, Lost: 1})
	if got, want := c.Report().String(),
		"FAILED: 2 committed, 0 rolled back, 1 delivered; 1 lost, 0 phantom, 0 duplicated, 0 inverted; lost: 1/2 at default"; got != want {
		t.Errorf("text\n got %s\nwant %s", got, want)
	}
	d.Delivered(1, 2)
	if got := c.Outstanding(); got != 0 {
		t.Errorf("outstanding %d after the delivery, want 0", got)
	}
	expect(t, c, check.Report{Committed: 2, Delivered: 2})
}

func TestADeliveryMayComeBeforeTheReportOfItsCommit(t *testing.T) {
	t.Parallel()
	c, d := one()
	d.Delivered(1, 1)
	if got := c.Counts(); got.Undecided != 1 || got.Phantom != 0 {
		t.Errorf("undecided %d and phantom %d before the report, want 1 and 0", got.Undecided, got.Phantom)
	}
	expect(t, c, check.Report{Delivered: 1, Phantom: 1})
	c.Committed(1, 1)
	if got := c.Counts().Undecided; got != 0 {
		t.Errorf("undecided %d after the report, want 0", got)
	}
	expect(t, c, check.Report{Committed: 1, Delivered: 1})
}

func TestADeliveryOfARolledBackMessageIsAPhantomInEitherOrder(t *testing.T) {
	t.Parallel()
	c, d := one()
	c.RolledBack(1, 1)
	d.Delivered(1, 1)
	d.Delivered(1, 2)
	c.RolledBack(1, 2)
	expect(t, c, check.Report{RolledBack: 2, Delivered: 2, Phantom: 2})
	if got := c.Counts().Phantom; got != 2 {
		t.Errorf("live count of phantoms %d, want 2", got)
	}
	if c.Report().OK() {
		t.Error("report with phantoms is OK")
	}
}

func TestARolledBackMessageDeliveredLongAfterItsNeighboursIsStillAPhantom(t *testing.T) {
	t.Parallel()
	c, d := one()
	for seq := uint64(1); seq <= 100_000; seq++ {
		if seq%100 == 50 {
			c.RolledBack(1, seq)
		} else {
			c.Committed(1, seq)
			d.Delivered(1, seq)
		}
	}
	d.Delivered(1, 150)
	d.Delivered(1, 151)
	expect(t, c, check.Report{
		Committed: 99_000, RolledBack: 1000, Delivered: 99_001, Phantom: 1, Duplicated: 1, Inverted: 1,
	})
	if got, want := text(t, c.Report().Examples.Phantom), `[{"destination":"default","key":1,"seq":150}]`; got != want {
		t.Errorf("phantoms %s, want %s", got, want)
	}
}

func TestANumberThatRolledBackMayBeUsedAgain(t *testing.T) {
	t.Parallel()
	for _, reversed := range []bool{false, true} {
		c, d := one()
		if reversed {
			c.Committed(1, 1)
			c.RolledBack(1, 1)
		} else {
			c.RolledBack(1, 1)
			c.RolledBack(1, 1)
			c.Committed(1, 1)
		}
		d.Delivered(1, 1)
		r := c.Report()
		if !r.OK() || r.Committed != 1 || r.Delivered != 1 || r.RolledBack == 0 {
			t.Errorf("committed first %v: %s", reversed, r)
		}
	}
}

func TestANumberUsedAgainAfterItsPageHadSettledIsDue(t *testing.T) {
	t.Parallel()
	c, d := one()
	for seq := uint64(1); seq <= 1024; seq++ {
		if seq == 5 {
			c.RolledBack(1, seq)
			continue
		}
		c.Committed(1, seq)
		d.Delivered(1, seq)
	}
	c.Committed(1, 5)
	if got := c.Outstanding(); got != 1 {
		t.Errorf("outstanding %d, want 1", got)
	}
	expect(t, c, check.Report{Committed: 1024, RolledBack: 1, Delivered: 1023, Lost: 1})
	d.DeadLettered(1, 5)
	d.Delivered(1, 5)
	d.Delivered(1, 5)
	expect(t, c, check.Report{Committed: 1024, RolledBack: 1, Delivered: 1024, Duplicated: 1})
}

func TestAnUnknownOutcomeAllowsDeliveryAndAbsence(t *testing.T) {
	t.Parallel()
	c, d := one()
	c.Unknown(1, 1)
	c.Unknown(1, 2)
	d.Delivered(1, 2)
	expect(t, c, check.Report{Unknown: 2, Delivered: 1})
	if !c.Report().OK() {
		t.Error("report is not OK")
	}
}

func TestAnUnknownOutcomeMayBeResolvedLater(t *testing.T) {
	t.Parallel()
	c, d := one()
	c.Unknown(1, 1)
	d.Delivered(1, 1)
	c.RolledBack(1, 1)
	c.Unknown(1, 2)
	c.Committed(1, 2)
	expect(t, c, check.Report{Committed: 1, RolledBack: 1, Delivered: 1, Lost: 1, Phantom: 1})
}

func TestAnUnknownOutcomeThatOneDestinationSawIsDueAtTheOthers(t *testing.T) {
	t.Parallel()
	c := check.New(check.Config{Destinations: []check.DestinationConfig{{Name: "kafka"}, {Name: "nats"}}})
	c.Unknown(1, 1)
	expect(t, c, check.Report{Unknown: 1})
	c.Destination("kafka").Delivered(1, 1)
	expect(t, c, check.Report{Unknown: 1, Delivered: 1, Lost: 1})
	c.Destination("nats").Delivered(1, 1)
	expect(t, c, check.Report{Unknown: 1, Delivered: 2})
}

func TestRepeatedDeliveriesAreCountedAndAreNoFault(t *testing.T) {
	t.Parallel()
	c, d := one()
	for seq := uint64(1); seq <= 3; seq++ {
		c.Committed(1, seq)
		d.Delivered(1, seq)
	}
	// A relay that restarts sends again from the first unacknowledged one.
	for _, seq := range []uint64{2, 3, 3} {
		d.Delivered(1, seq)
	}
	expect(t, c, check.Report{Committed: 3, Delivered: 3, Duplicated: 3})
	if !c.Report().OK() {
		t.Error("report with duplicates is not OK")
	}
	if got, want := c.Report().Examples.Duplicated, 3; len(got) != want {
		t.Errorf("%d examples of duplicates, want %d", len(got), want)
	}
}

func TestAFirstDeliveryAfterThatOfALaterMessageIsAnInversion(t *testing.T) {
	t.Parallel()
	c, d := one()
	for seq := uint64(1); seq <= 4; seq++ {
		c.Committed(9, seq)
	}
	for _, seq := range []uint64{1, 4, 2, 3} {
		d.Delivered(9, seq)
	}
	expect(t, c, check.Report{Committed: 4, Delivered: 4, Inverted: 2})
	r := c.Report()
	if got, want := text(t, r.Examples.Inverted), `[{"destination":"default","key":9,"seq":2,"after":4},{"destination":"default","key":9,"seq":3,"after":4}]`; got != want {
		t.Errorf("inversions\n got %s\nwant %s", got, want)
	}
	if !strings.HasSuffix(r.String(), "; inverted: 9/2 after 9/4 at default, 9/3 after 9/4 at default") {
		t.Errorf("text %s", r)
	}
}

func TestTheOrderBetweenKeysIsFree(t *testing.T) {
	t.Parallel()
	c, d := one()
	for key := range uint32(3) {
		c.Committed(key, 1)
		c.Committed(key, 2)
	}
	for _, id := range []check.ID{{Key: 2, Seq: 1}, {Key: 0, Seq: 1},
		{Key: 2, Seq: 2}, {Key: 1, Seq: 1}, {Key: 1, Seq: 2}, {Key: 0, Seq: 2}} {
		d.Delivered(id.Key, id.Seq)
	}
	expect(t, c, check.Report{Committed: 6, Delivered: 6})
}

func TestADeadLetterIsNotLostAndMayBeDeliveredLate(t *testing.T) {
	t.Parallel()
	c, d := one()
	for seq := uint64(1); seq <= 3; seq++ {
		c.Committed(1, seq)
	}
	d.Delivered(1, 1)
	d.DeadLettered(1, 2)
	d.DeadLettered(1, 2)
	d.Delivered(1, 3)
	expect(t, c, check.Report{Committed: 3, Delivered: 2, DeadLettered: 1})
	if !c.Report().OK() {
		t.Error("report with a dead letter is not OK")
	}
	d.Delivered(1, 2) // requeued
	expect(t, c, check.Report{Committed: 3, Delivered: 3})
	d.Delivered(1, 2)
	expect(t, c, check.Report{Committed: 3, Delivered: 3, Duplicated: 1})
}

func TestADeadLetterOfARolledBackMessageIsAPhantom(t *testing.T) {
	t.Parallel()
	c, d := one()
	c.RolledBack(1, 1)
	d.DeadLettered(1, 1)
	for seq := uint64(2); seq <= 256; seq++ {
		c.Committed(1, seq)
		d.Delivered(1, seq)
	}
	expect(t, c, check.Report{Committed: 255, RolledBack: 1, Delivered: 255, DeadLettered: 1, Phantom: 1})
	if got, want := text(t, c.Report().Examples.Phantom), `[{"destination":"default","key":1,"seq":1}]`; got != want {
		t.Errorf("phantoms %s, want %s", got, want)
	}
}

func TestADestinationAwaitsOnlyTheKeysThatItSelects(t *testing.T) {
	t.Parallel()
	c := check.New(check.Config{Destinations: []check.DestinationConfig{
		{Name: "all"},
		{Name: "even", Selects: func(key uint32) bool { return key%2 == 0 }},
	}})
	for key := range uint32(10) {
		for seq := uint64(1); seq <= 600; seq++ {
			c.Committed(key, seq)
			c.Destination("all").Delivered(key, seq)
			if key%2 == 0 {
				c.Destination("even").Delivered(key, seq)
			}
		}
	}
	expect(t, c, check.Report{Committed: 6000, Delivered: 9000})
	if got := c.Destination("even").Counts(); got.Delivered != 3000 || got.Outstanding != 0 || got.Committed != 6000 {
		t.Errorf("counts of the filtered destination %+v", got)
	}
	c.Destination("even").Delivered(3, 1)
	c.Destination("even").DeadLettered(5, 1)
	expect(t, c, check.Report{Committed: 6000, Delivered: 9000, Misrouted: 2})
	r := c.Report()
	if r.OK() || !strings.HasSuffix(r.String(), "0 inverted, 2 misrouted; misrouted: 3/1 at even, 5/1 at even") {
		t.Errorf("text %s", r)
	}
}

func TestEachDestinationHasItsOwnOrderAndItsOwnLosses(t *testing.T) {
	t.Parallel()
	c := check.New(check.Config{Destinations: []check.DestinationConfig{{Name: "a"}, {Name: "b"}}})
	a, b := c.Destination("a"), c.Destination("b")
	for seq := uint64(1); seq <= 2; seq++ {
		c.Committed(1, seq)
	}
	a.Delivered(1, 1)
	a.Delivered(1, 2)
	b.Delivered(1, 2)
	if got := a.Counts(); got.Outstanding != 0 || got.Inverted != 0 {
		t.Errorf("counts at a: %+v", got)
	}
	b.Delivered(1, 1)
	if got := b.Counts(); got.Inverted != 1 || got.Outstanding != 0 {
		t.Errorf("counts at b: %+v", got)
	}
	expect(t, c, check.Report{Committed: 2, Delivered: 4, Inverted: 1})
}

func TestAReportNamesTenExamplesAtMost(t *testing.T) {
	t.Parallel()
	c, d := one()
	for key := range uint32(200) {
		c.Committed(key, 1)     // lost
		d.Delivered(key, 100)   // never reported
		d.Delivered(key, 100)   // again
		d.Delivered(key, 50)    // inverted
		c.RolledBack(key, 5000) // nothing
	}
	e := c.Report().Examples
	for name, list := range map[string][]check.Example{
		"lost": e.Lost, "phantom": e.Phantom, "duplicated": e.Duplicated, "inverted": e.Inverted,
	} {
		if len(list) != check.MaxExamples {
			t.Errorf("%d examples of %s, want %d", len(list), name, check.MaxExamples)
		}
	}
	expect(t, c, check.Report{Committed: 200, RolledBack: 200, Delivered: 400, Lost: 200, Phantom: 400, Duplicated: 200, Inverted: 200})
}

func TestNumbersFarApartAreKeptApart(t *testing.T) {
	t.Parallel()
	c, d := one()
	seqs := []uint64{1, 2, 300_000, 1 << 40, math.MaxUint64 - 1, math.MaxUint64}
	for _, seq := range seqs {
		c.Committed(math.MaxUint32, seq)
		d.Delivered(math.MaxUint32, seq)
	}
	d.Delivered(math.MaxUint32, 1<<40)
	expect(t, c, check.Report{Committed: 6, Delivered: 6, Duplicated: 1})
}

func TestPagesThatWereFarAheadAreCaughtUpWith(t *testing.T) {
	t.Parallel()
	c, d := one()
	const last = 600_000
	step := func(seq uint64) {
		if seq%1000 == 7 {
			c.RolledBack(1, seq)
		} else {
			c.Committed(1, seq)
		}
	}
	// Beginning at the end makes everything far ahead at first.
	for seq := uint64(last); seq > 0; seq-- {
		step(seq)
	}
	for seq := uint64(1); seq <= last; seq++ {
		if seq%1000 != 7 {
			d.Delivered(1, seq)
		}
	}
	expect(t, c, check.Report{Committed: last - last/1000, RolledBack: last / 1000, Delivered: last - last/1000})
	d.Delivered(1, last-1000+7)
	d.Delivered(1, last-1000+8)
	if r := c.Report(); r.Phantom != 1 || r.Duplicated != 1 {
		t.Errorf("a phantom and a duplicate afterwards: %s", r)
	}
}

func TestAPayloadCountsAsDeliveredOrCorrupted(t *testing.T) {
	t.Parallel()
	c, d := one()
	c.Committed(3, 1)
	good := check.Encode(nil, 3, 1, 100)
	id, err := d.Payload(good)
	if err != nil || id != (check.ID{Key: 3, Seq: 1}) {
		t.Errorf("payload decodes to %v, %v", id, err)
	}
	good[50] ^= 1
	if _, err := d.Payload(good); err == nil {
		t.Error("a changed payload decodes")
	}
	expect(t, c, check.Report{Committed: 1, Delivered: 1, Corrupted: 1})
	if r := c.Report(); r.OK() || !strings.HasSuffix(r.String(), ", 1 corrupted") {
		t.Errorf("text %s", r)
	}
}

func TestMisuseStopsTheTest(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){
		"number 0":     func() { check.New(check.Config{}).Committed(1, 0) },
		"no such name": func() { check.New(check.Config{}).Destination("kafka") },
		"empty name":   func() { check.New(check.Config{Destinations: []check.DestinationConfig{{}}}) },
		"a name twice": func() {
			check.New(check.Config{Destinations: []check.DestinationConfig{{Name: "a"}, {Name: "a"}}})
		},
		"too many": func() {
			check.New(check.Config{Destinations: make([]check.DestinationConfig, check.MaxDestinations+1)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if s := fmt.Sprint(recover()); !strings.HasPrefix(s, "check: ") {
					t.Errorf("recovered %q, want a message of package check", s)
				}
			}()
			f()
		})
	}
}

func TestSixtyFourDestinationsWork(t *testing.T) {
	t.Parallel()
	var config check.Config
	for i := range check.MaxDestinations {
		config.Destinations = append(config.Destinations, check.DestinationConfig{Name: fmt.Sprint(i)})
	}
	c := check.New(config)
	for seq := uint64(1); seq <= 1000; seq++ {
		c.Committed(1, seq)
		for i := range check.MaxDestinations {
			c.Destination(fmt.Sprint(i)).Delivered(1, seq)
		}
	}
	expect(t, c, check.Report{Committed: 1000, Delivered: 64_000})
}

func TestWritersConsumersAndReadersRunConcurrently(t *testing.T) {
	t.Parallel()
	const keys, perKey = 64, 3000
	c := check.New(check.Config{Destinations: []check.DestinationConfig{{Name: "a"}, {Name: "b"}}})
	var work sync.WaitGroup
	for w := range uint32(4) {
		work.Go(func() {
			for seq := uint64(1); seq <= perKey; seq++ {
				for key := w; key < keys; key += 4 {
					switch seq % 10 {
					case 3:
						c.RolledBack(key, seq)
					case 7:
						c.Unknown(key, seq)
					default:
						c.Committed(key, seq)
					}
				}
			}
		})
	}
	for _, name := range []string{"a", "b"} {
		d := c.Destination(name)
		for part := range uint32(2) {
			work.Go(func() {
				for seq := uint64(1); seq <= perKey; seq++ {
					for key := part; key < keys; key += 2 {
						if seq%10 != 3 {
							d.Delivered(key, seq)
						}
					}
				}
			})
		}
	}
	stop, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if n := c.Counts(); n.Outstanding > 2*keys*perKey || n.Phantom != 0 {
				t.Errorf("impossible counts %+v", n)
				return
			}
			_ = c.Report()
		}
	}()
	work.Wait()
	close(stop)
	<-read
	expect(t, c, check.Report{
		Committed: keys * perKey * 8 / 10, RolledBack: keys * perKey / 10, Unknown: keys * perKey / 10,
		Delivered: 2 * keys * perKey * 9 / 10,
	})
}

// Not parallel: it measures the heap.
func TestTenMillionMessagesFitInLittleMemory(t *testing.T) {
	servers.Long(t)
	const keys, perKey = 1000, 10_000 / scale
	for _, test := range []struct {
		name  string
		every uint64 // one in so many is rolled back
		limit uint64
	}{
		// The last page of each key is open still: some 400 bytes a key.
		{"without roll-backs", math.MaxUint64, 1 << 20},
		{"with one roll-back in twenty", 20, 2 << 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := heap()
			c, d := one()
			for seq := uint64(1); seq <= perKey; seq++ {
				for key := range uint32(keys) {
					if (seq+uint64(key))%test.every == 0 {
						c.RolledBack(key, seq)
						if seq > perKey/2 {
							// A report made again must not bring memory back.
							c.RolledBack(key, seq-20*(perKey/50))
						}
						continue
					}
					c.Committed(key, seq)
					d.Delivered(key, seq)
				}
			}
			used := heap() - before
			t.Logf("%d bytes of heap", used)
			if used > test.limit {
				t.Errorf("%d bytes of heap, want at most %d", used, test.limit)
			}
			if r := c.Report(); !r.OK() || r.Committed+r.RolledBack < keys*perKey {
				t.Errorf("%s", r)
			}
		})
	}
}

// Not parallel: it measures the heap.
func TestANumberThatNeverSettlesDoesNotKeepTheLaterOnes(t *testing.T) {
	const last = 10_000_000 / scale
	before := heap()
	c, d := one()
	c.Unknown(1, 1)
	for seq := uint64(2); seq <= last; seq++ {
		c.Committed(1, seq)
		d.Delivered(1, seq)
	}
	if used := heap() - before; used > 256<<10 {
		t.Errorf("%d bytes of heap, want at most 256 KiB", used)
	}
	expect(t, c, check.Report{Committed: last - 1, Unknown: 1, Delivered: last - 1})
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func BenchmarkDelivered(b *testing.B) {
	for _, keys := range []uint32{1000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			c, d := one()
			for i := range b.N {
				c.Committed(uint32(i)%keys, uint64(i)/uint64(keys)+1)
			}
			b.ResetTimer()
			for i := range b.N {
				d.Delivered(uint32(i)%keys, uint64(i)/uint64(keys)+1)
			}
			b.StopTimer()
			if r := c.Report(); !r.OK() {
				b.Error(r)
			}
		})
	}
}

func BenchmarkCommittedAndDelivered(b *testing.B) {
	const keys = 1000
	c, d := one()
	for i := range b.N {
		c.Committed(uint32(i)%keys, uint64(i)/keys+1)
		d.Delivered(uint32(i)%keys, uint64(i)/keys+1)
	}
	b.StopTimer()
	if r := c.Report(); !r.OK() {
		b.Error(r)
	}
}

func BenchmarkCounts(b *testing.B) {
	c, _ := one()
	for b.Loop() {
		c.Counts()
	}
}
