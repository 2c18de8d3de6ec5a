package marking

import "strconv"

// Columns are outcomes as the statements unnest them.
type Columns struct {
	IDs      []string
	Tokens   []*int64 // of claims
	Identity []*int64 // of rows
	attempts []int32
	waits    []*int64
	Blocked  []bool
	reasons  []string
}

// NewColumns returns the columns of marks.
func NewColumns(marks []Mark) *Columns {
	c := &Columns{}
	for i := range marks {
		m := &marks[i]
		c.IDs = append(c.IDs, m.ID)
		var token *int64
		if n, err := strconv.ParseInt(m.Token, 10, 64); err == nil {
			token = &n
		}
		c.Tokens, c.Identity = append(c.Tokens, token), append(c.Identity, &m.Identity)
		c.attempts = append(c.attempts, int32(min(m.Attempts, 1<<15-1))) // the column may be a smallint
		var wait *int64
		if m.Wait != nil {
			us := m.Wait.Microseconds()
			wait = &us
		}
		c.waits = append(c.waits, wait)
		c.Blocked = append(c.Blocked, m.Blocked)
		c.reasons = append(c.reasons, string(m.Reason))
	}
	return c
}
