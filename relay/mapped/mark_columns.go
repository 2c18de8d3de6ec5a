package mapped

import "strconv"

// columns are outcomes as the statements unnest them.
type columns struct {
	ids      []string
	tokens   []*int64 // of claims
	identity []*int64 // of rows
	attempts []int32
	waits    []*int64
	blocked  []bool
	reasons  []string
}

func newColumns(marks []mark) *columns {
	c := &columns{}
	for i := range marks {
		m := &marks[i]
		c.ids = append(c.ids, m.id)
		var token *int64
		if n, err := strconv.ParseInt(m.token, 10, 64); err == nil {
			token = &n
		}
		c.tokens, c.identity = append(c.tokens, token), append(c.identity, &m.identity)
		c.attempts = append(c.attempts, int32(min(m.attempts, 1<<15-1))) // the column may be a smallint
		var wait *int64
		if m.wait != nil {
			us := m.wait.Microseconds()
			wait = &us
		}
		c.waits = append(c.waits, wait)
		c.blocked = append(c.blocked, m.blocked)
		c.reasons = append(c.reasons, string(m.reason))
	}
	return c
}
