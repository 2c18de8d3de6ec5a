// Package cursors reads the rows of outbox.cursors: up to where a destination is delivered, and whether that is valid
// in this cluster.
package cursors

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Snapshot is a pg_snapshot: the set of transactions that had ended when it was taken. It is immutable.
type Snapshot struct {
	Text string   // as the server writes it: xmin:xmax:xip,…
	Xmin uint64   // every transaction below has ended
	Xmax uint64   // none from here on had
	Xip  []uint64 // between the two, those still in progress, ascending
}

// Nothing is the snapshot of a cursor that has seen nothing.
const Nothing = "1:1:"

// Parse reads a pg_snapshot as the server writes it.
func Parse(text string) (Snapshot, error) {
	s := Snapshot{Text: text}
	xmin, rest, ok1 := strings.Cut(text, ":")
	xmax, xip, ok2 := strings.Cut(rest, ":")
	var err1, err2 error
	s.Xmin, err1 = strconv.ParseUint(xmin, 10, 64)
	s.Xmax, err2 = strconv.ParseUint(xmax, 10, 64)
	bad := !ok1 || !ok2 || err1 != nil || err2 != nil || s.Xmin > s.Xmax
	if !bad && xip != "" {
		s.Xip = make([]uint64, 0, strings.Count(xip, ",")+1)
		for part := range strings.SplitSeq(xip, ",") {
			x, err := strconv.ParseUint(part, 10, 64)
			bad = bad || err != nil || len(s.Xip) > 0 && x <= s.Xip[len(s.Xip)-1]
			s.Xip = append(s.Xip, x)
		}
	}
	if bad {
		return Snapshot{}, fmt.Errorf("%q is not a pg_snapshot", text)
	}
	return s, nil
}

// Sees reports whether x had ended when s was taken.
func (s *Snapshot) Sees(x uint64) bool {
	if x < s.Xmin {
		return true
	}
	if x >= s.Xmax {
		return false
	}
	_, inProgress := slices.BinarySearch(s.Xip, x)
	return !inProgress
}

// Range is Lo ≤ xid ≤ Hi.
type Range struct{ Lo, Hi uint64 }

// Between lists the transaction ids that next may see and prev doesn't: those that began after prev, as one range, and
// each that was in progress then and has ended since. The bound is xmax(prev), never xmin(prev): if a transaction stays
// open for an hour, an hour of settled rows is after xmin.
func Between(prev, next *Snapshot) []Range {
	var ranges []Range
	for _, x := range prev.Xip {
		if next.Sees(x) {
			ranges = append(ranges, Range{x, x})
		}
	}
	if prev.Xmax < next.Xmax {
		ranges = append(ranges, Range{prev.Xmax, next.Xmax - 1})
	}
	return ranges
}

// Arrays writes the bounds of ranges as two PostgreSQL array literals.
func Arrays(ranges []Range) (lo, hi []byte) {
	lo, hi = append(lo, '{'), append(hi, '{')
	for i, r := range ranges {
		if i > 0 {
			lo, hi = append(lo, ','), append(hi, ',')
		}
		lo, hi = strconv.AppendUint(lo, r.Lo, 10), strconv.AppendUint(hi, r.Hi, 10)
	}
	return append(lo, '}'), append(hi, '}')
}

// Without is the pg_snapshot that sees what s sees, except some transactions.
func (s *Snapshot) Without(xids []uint64) string {
	xip, xmin := slices.Clone(s.Xip), s.Xmin
	for _, x := range xids {
		if s.Sees(x) {
			xip = append(xip, x)
			xmin = min(xmin, x)
		}
	}
	slices.Sort(xip)
	b := fmt.Appendf(nil, "%d:%d:", xmin, s.Xmax)
	for i, x := range slices.Compact(xip) {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, x, 10)
	}
	return string(b)
}

// Covers reports whether s sees everything that other sees.
func (s *Snapshot) Covers(other *Snapshot) bool {
	for _, x := range s.Xip {
		if other.Sees(x) {
			return false
		}
	}
	if s.Xmax >= other.Xmax {
		return true
	}
	// Between the two ends it suffices that other sees none.
	inProgress := 0
	for _, x := range other.Xip {
		if x >= s.Xmax {
			inProgress++
		}
	}
	return uint64(inProgress) == other.Xmax-s.Xmax
}
