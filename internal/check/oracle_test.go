package check_test

import (
	"math/rand/v2"
	"testing"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
)

// oracle keeps everything it was told, message by message, and works its
// figures out when asked. It is slow and plain on purpose.
type oracle struct {
	selects  []func(uint32) bool
	outcomes map[check.ID]string
	// firsts has the numbers of each destination and key in the order of their
	// first delivery.
	firsts    []map[uint32][]uint64
	delivered []map[check.ID]bool
	dead      []map[check.ID]bool // at some time before the first delivery
	report    check.Report        // what is counted as it happens
}

func newOracle(selects []func(uint32) bool) *oracle {
	o := &oracle{selects: selects, outcomes: make(map[check.ID]string)}
	for range selects {
		o.firsts = append(o.firsts, make(map[uint32][]uint64))
		o.delivered = append(o.delivered, make(map[check.ID]bool))
		o.dead = append(o.dead, make(map[check.ID]bool))
	}
	return o
}

func (o *oracle) outcome(id check.ID, what string) {
	if what == "rolled back" {
		o.report.RolledBack++
	}
	if what != "" && o.outcomes[id] != "committed" {
		o.outcomes[id] = what
	}
}

func (o *oracle) deliver(d int, id check.ID) {
	switch {
	case !o.selects[d](id.Key):
		o.report.Misrouted++
	case o.delivered[d][id]:
		o.report.Duplicated++
	default:
		o.delivered[d][id] = true
		o.firsts[d][id.Key] = append(o.firsts[d][id.Key], id.Seq)
	}
}

func (o *oracle) deadLetter(d int, id check.ID) {
	switch {
	case !o.selects[d](id.Key):
		o.report.Misrouted++
	case !o.delivered[d][id]:
		o.dead[d][id] = true
	}
}

func (o *oracle) verdict() check.Report {
	r := o.report
	all := make(map[check.ID]bool)
	for id, outcome := range o.outcomes {
		all[id] = true
		switch outcome {
		case "committed":
			r.Committed++
		case "unknown":
			r.Unknown++
		}
	}
	seen := make(map[check.ID]bool)
	for d := range o.selects {
		for id := range o.delivered[d] {
			all[id], seen[id] = true, true
			r.Delivered++
		}
		for id := range o.dead[d] {
			all[id], seen[id] = true, true
			if !o.delivered[d][id] {
				r.DeadLettered++
			}
		}
		for key, order := range o.firsts[d] {
			var highest uint64
			for _, seq := range order {
				highest = max(highest, seq)
				if highest > seq && !o.dead[d][check.ID{Key: key, Seq: seq}] {
					r.Inverted++
				}
			}
		}
	}
	for id := range all {
		for d := range o.selects {
			outcome := o.outcomes[id]
			here := o.delivered[d][id] || o.dead[d][id]
			due := o.selects[d](id.Key) && (outcome == "committed" || outcome == "unknown" && seen[id])
			if due && !here {
				r.Lost++
			}
			if here && (outcome == "" || outcome == "rolled back") {
				r.Phantom++
			}
		}
	}
	return r
}

// TestTheCheckerAgreesWithAPlainOracle replays random histories of writers and
// relays that break every rule now and then.
func TestTheCheckerAgreesWithAPlainOracle(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	histories := uint64(200 / scale)
	if testing.Short() {
		histories /= 5
	}
	for seed := range histories {
		if t.Failed() {
			return
		}
		history(t, seed)
	}
}

func history(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	everything := func(uint32) bool { return true }
	selects := []func(uint32) bool{everything}
	if r.IntN(2) == 0 {
		selects = append(selects, everything)
	}
	if r.IntN(2) == 0 {
		selects = append(selects, func(key uint32) bool { return key%3 != 0 })
	}
	config := check.Config{}
	for i, s := range selects {
		config.Destinations = append(config.Destinations, check.DestinationConfig{Name: string(rune('a' + i)), Selects: s})
	}
	c, o := check.New(config), newOracle(selects)

	keys := uint32(1 + r.IntN(4))
	last := uint64(1 + r.IntN(1500))
	if r.IntN(8) == 0 {
		last *= 10 // long enough for pages to be set aside
	}
	// The chance of each fault, in thousandths; often none, so that pages settle.
	chance := func(worst int) func() bool {
		limit := []int{0, 0, 1, worst}[r.IntN(4)]
		return func() bool { return r.IntN(1000) < limit }
	}
	rollback, vanish, unsure, resolve := chance(200), chance(20), chance(50), chance(20)
	lose, invent, repeat, rewind := chance(20), chance(50), chance(100), chance(10)
	dead, requeue, misroute, late := chance(50), chance(30), chance(20), chance(300)

	outcome := func(id check.ID, what string) {
		o.outcome(id, what)
		switch what {
		case "committed":
			c.Committed(id.Key, id.Seq)
		case "rolled back":
			c.RolledBack(id.Key, id.Seq)
		case "unknown":
			c.Unknown(id.Key, id.Seq)
		}
	}
	deliver := func(d int, id check.ID) {
		o.deliver(d, id)
		c.Destination(config.Destinations[d].Name).Delivered(id.Key, id.Seq)
	}
	bury := func(d int, id check.ID) {
		o.deadLetter(d, id)
		c.Destination(config.Destinations[d].Name).DeadLettered(id.Key, id.Seq)
	}
	some := func(upTo uint64) check.ID {
		return check.ID{Key: uint32(r.IntN(int(keys))), Seq: 1 + r.Uint64N(upTo)}
	}
	agree := func(at uint64) {
		t.Helper()
		want, got := o.verdict(), c.Report()
		examples := got.Examples
		got.Examples = check.Examples{}
		if text(t, got) != text(t, want) {
			t.Fatalf("seed %d at number %d\n got %s\nwant %s", seed, at, text(t, got), text(t, want))
		}
		for _, list := range []struct {
			count uint64
			of    []check.Example
		}{{want.Lost, examples.Lost}, {want.Phantom, examples.Phantom}, {want.Duplicated,
			examples.Duplicated}, {want.Inverted, examples.Inverted}, {want.Misrouted, examples.Misrouted}} {
			if uint64(len(list.of)) != min(list.count, check.MaxExamples) {
				t.Fatalf("seed %d: %d examples for %d findings", seed, len(list.of), list.count)
			}
		}
	}

	// Pages far ahead of the others, and out of order, are kept in another way.
	jumps := []uint64{0}
	if r.IntN(4) == 0 {
		last = min(last, 600)
		jumps = []uint64{0, 600, 1200, 1018 * 256, 1022 * 256, 1024 * 256, 1026 * 256, 1028*256 + 5, 1060 * 256}
		r.Shuffle(len(jumps), func(i, j int) { jumps[i], jumps[j] = jumps[j], jumps[i] })
	}

	var pending []func()
	for step := range last * uint64(len(jumps)) {
		seq := jumps[step/last] + step%last + 1
		for key := range keys {
			id := check.ID{Key: key, Seq: seq}
			what := "committed"
			switch {
			case rollback():
				what = "rolled back"
			case unsure():
				what = "unknown"
			case vanish():
				what = "" // the writer died before it could tell
			}
			if late() {
				pending = append(pending, func() { outcome(id, what) })
			} else {
				outcome(id, what)
			}
			for d := range selects {
				switch {
				case !selects[d](key) && !misroute():
				case what != "committed" && !invent(), lose():
				case dead():
					bury(d, id)
				default:
					deliver(d, id)
				}
				if repeat() {
					deliver(d, id)
				}
				if rewind() {
					for i := max(1, int64(seq)-600); i <= int64(seq); i++ {
						deliver(d, check.ID{Key: key, Seq: uint64(i)})
					}
				}
				if requeue() {
					deliver(d, some(seq))
				}
			}
			if resolve() {
				outcome(some(seq), []string{"committed", "rolled back", "unknown"}[r.IntN(3)])
			}
		}
		for len(pending) > 20 {
			i := r.IntN(len(pending))
			pending[i]()
			pending = append(pending[:i], pending[i+1:]...)
		}
		if r.Uint64N(last) == 0 && last <= 1500 {
			agree(seq)
		}
	}
	for _, f := range pending {
		f()
	}
	agree(last)
}
