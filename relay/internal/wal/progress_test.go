package wal

import (
	"math/rand/v2"
	"testing"
)

func TestThePositionIsNeverInsideATransactionAndTheCountIs(t *testing.T) {
	t.Parallel()
	p := NewProgress(Mark{10, Partial{}})
	p.begin(20)
	for range 3 {
		if !p.Next() {
			t.Fatal("a message was left out")
		}
		p.Deliver()
	}
	p.Settle(2)
	if p.Position != 10 || p.Partial != (Partial{20, 2}) {
		t.Errorf("%+v", p)
	}
	p.passed(30) // inside: says nothing
	p.Settle(3)
	if p.Position != 10 || p.Partial != (Partial{20, 3}) {
		t.Errorf("settled before the commit was read: %+v", p)
	}
	p.commit(25)
	if p.Position != 25 || p.Partial != (Partial{}) {
		t.Errorf("%+v", p)
	}
	p.passed(40)
	if p.Position != 40 {
		t.Errorf("nothing is in flight and the position is %d", p.Position)
	}
}

func TestWhatWasSettledOfATransactionIsLeftOutOfItsRepetition(t *testing.T) {
	t.Parallel()
	p := NewProgress(Mark{10, Partial{20, 2}})
	p.begin(15) // another one before it
	if !p.Next() {
		t.Error("a message of another transaction was left out")
	}
	first := p.Deliver()
	p.commit(17)
	p.begin(20)
	var came []bool
	for range 4 {
		wanted := p.Next()
		came = append(came, wanted)
		if wanted {
			p.Deliver()
		}
	}
	if came[0] || came[1] || !came[2] || !came[3] {
		t.Fatalf("delivered: %v", came)
	}
	p.commit(25)
	p.Settle(first)
	if p.Position != 17 || p.Partial != (Partial{20, 2}) {
		t.Errorf("what was settled before is forgotten: %+v", p)
	}
	p.Settle(first + 1)
	if p.Position != 17 || p.Partial != (Partial{20, 3}) {
		t.Errorf("%+v", p)
	}
	p.Settle(first + 2)
	if p.Position != 25 || p.Partial != (Partial{}) {
		t.Errorf("%+v", p)
	}
}

// TestACrashAtAnyPointRepeatsExactlyWhatWasNotSettled plays random logs, with successors that begin at what the
// predecessor's position and count say.
func TestACrashAtAnyPointRepeatsExactlyWhatWasNotSettled(t *testing.T) {
	t.Parallel()
	type tx struct {
		commit, end LSN
		messages    []int // the numbers of its messages; -1 is one that is left out
	}
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var log []tx
		at, total := LSN(100), 0
		for range 1 + r.IntN(8) {
			x := tx{commit: at + LSN(1+r.IntN(5))}
			x.end = x.commit + 1 + LSN(r.IntN(3))
			at = x.end
			for range r.IntN(5) {
				if r.IntN(4) == 0 {
					x.messages = append(x.messages, -1)
					continue
				}
				x.messages = append(x.messages, total)
				total++
			}
			log = append(log, x)
		}
		position, done := LSN(100), Partial{}
		settled := 0 // of the messages, in order
		for range 20 {
			p := NewProgress(Mark{position, done})
			var out []int // what was handed out, in order
			stop := r.IntN(30)
			step := func() bool {
				if len(out) > 0 && r.IntN(2) == 0 {
					p.Settle(uint64(1 + r.IntN(len(out))))
				}
				stop--
				return stop >= 0
			}
		reading:
			for _, x := range log {
				if x.commit < position {
					continue // the server leaves it out
				}
				if r.IntN(3) == 0 {
					p.passed(x.commit)
				}
				if !step() {
					break
				}
				p.begin(x.commit)
				for _, m := range x.messages {
					if p.Next() && m >= 0 {
						if n := p.Deliver(); int(n) != len(out)+1 {
							t.Fatalf("seed %d: delivery %d has the number %d", seed, len(out)+1, n)
						}
						out = append(out, m)
					}
					if !step() {
						break reading
					}
				}
				p.commit(x.end)
			}
			for i, m := range out {
				if m != settled+i {
					t.Fatalf("seed %d: after %d settled ones came %v", seed, settled, out)
				}
			}
			settled += int(p.settled)
			position, done = p.Position, p.Partial
		}
		p := NewProgress(Mark{position, done})
		left := 0
		for _, x := range log {
			if x.commit < position {
				continue
			}
			p.begin(x.commit)
			for _, m := range x.messages {
				if p.Next() && m >= 0 {
					left++
				}
			}
			p.commit(x.end)
		}
		if settled+left != total {
			t.Fatalf("seed %d: %d settled and %d left of %d", seed, settled, left, total)
		}
	}
}
