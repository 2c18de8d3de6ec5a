package polling

import "testing"

func TestPagesSpanMoreWhereIDsAreSparse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		limit, n       int
		step, want     int64
		after, through int64
	}{
		{"a page that is nearly full", 1000, 700, 1000, 1000, 0, 1000},
		{"a quarter of the ids", 1000, 250, 1000, 2000, 0, 1000},
		{"and the next step", 1000, 500, 2000, 3200, 1000, 3000},
		{"a page that was asked for with a smaller step", 1000, 250, 3200, 3200, 3000, 4000},
		{"nothing", 1000, 0, 1000, 2000, 0, 1000},
		{"nothing, of large messages that come one by one", 1, 0, 1, 2, 0, 1},
		{"one of those", 1, 1, 2, 2, 0, 2},
		{"nothing for ever", 1000, 0, maxStep, maxStep, 0, maxStep},
	} {
		b := backlog{step: c.step}
		b.widen(pageQuery{after: c.after, through: c.through, limit: c.limit}, c.n)
		if b.step != c.want {
			t.Errorf("%s: %d ids, want %d", c.name, b.step, c.want)
		}
	}
}
