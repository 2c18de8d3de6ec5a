package polling

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// txSnapshot is a pg_snapshot: which transactions had ended when it was taken. It is immutable.
type txSnapshot struct {
	text string   // as the server writes it: xmin:xmax:xip,…
	xmin uint64   // every transaction below has ended
	xmax uint64   // none from here on had
	xip  []uint64 // between the two, those still in progress, ascending
}

// nothing is the cursor of a destination that has seen nothing.
const nothing = "1:1:"

func parseTxSnapshot(text string) (txSnapshot, error) {
	s := txSnapshot{text: text}
	xmin, rest, ok1 := strings.Cut(text, ":")
	xmax, xip, ok2 := strings.Cut(rest, ":")
	var err1, err2 error
	s.xmin, err1 = strconv.ParseUint(xmin, 10, 64)
	s.xmax, err2 = strconv.ParseUint(xmax, 10, 64)
	bad := !ok1 || !ok2 || err1 != nil || err2 != nil || s.xmin > s.xmax
	if !bad && xip != "" {
		s.xip = make([]uint64, 0, strings.Count(xip, ",")+1)
		for part := range strings.SplitSeq(xip, ",") {
			x, err := strconv.ParseUint(part, 10, 64)
			bad = bad || err != nil || len(s.xip) > 0 && x <= s.xip[len(s.xip)-1]
			s.xip = append(s.xip, x)
		}
	}
	if bad {
		return txSnapshot{}, fmt.Errorf("%q is not a pg_snapshot", text)
	}
	return s, nil
}

// sees reports whether x had ended when s was taken.
func (s *txSnapshot) sees(x uint64) bool {
	if x < s.xmin {
		return true
	}
	if x >= s.xmax {
		return false
	}
	_, inProgress := slices.BinarySearch(s.xip, x)
	return !inProgress
}

// xidRange is lo ≤ xid ≤ hi.
type xidRange struct{ lo, hi uint64 }

// between lists the transaction ids that next may see and prev doesn't: those that began after prev, as
// one range, and each that was in progress then and has ended since. The bound is xmax(prev) and never
// xmin(prev): behind a transaction that stays open for an hour lies an hour of settled rows.
func between(prev, next *txSnapshot) []xidRange {
	var ranges []xidRange
	for _, x := range prev.xip {
		if next.sees(x) {
			ranges = append(ranges, xidRange{x, x})
		}
	}
	if prev.xmax < next.xmax {
		ranges = append(ranges, xidRange{prev.xmax, next.xmax - 1})
	}
	return ranges
}

// arrays writes the bounds of ranges as two PostgreSQL array literals.
func arrays(ranges []xidRange) (lo, hi []byte) {
	lo, hi = append(lo, '{'), append(hi, '{')
	for i, r := range ranges {
		if i > 0 {
			lo, hi = append(lo, ','), append(hi, ',')
		}
		lo, hi = strconv.AppendUint(lo, r.lo, 10), strconv.AppendUint(hi, r.hi, 10)
	}
	return append(lo, '}'), append(hi, '}')
}
