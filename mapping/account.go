package mapping

import "time"

// Account is what a relay knows of its work on a table, and what the table's columns need not show. Times that are zero
// are unknown.
type Account struct {
	// Held counts the rows that are set aside, Lanes the keys that they are of, and Blocked the keys that wait for an
	// operator.
	Held    int64 `json:"held"`
	Lanes   int64 `json:"lanes"`
	Blocked int64 `json:"blocked"`

	// BlockedSince and FailingSince are when the first row was set aside that waits for an operator, or for another
	// attempt after one that failed. Oldest is when the oldest row was written that is not delayed on purpose, Waiting
	// the same without the keys that wait for an operator. NextRetry is when the next one is due.
	BlockedSince time.Time `json:"blocked_since,omitzero"`
	FailingSince time.Time `json:"failing_since,omitzero"`
	Oldest       time.Time `json:"oldest,omitzero"`
	Waiting      time.Time `json:"waiting,omitzero"`
	NextRetry    time.Time `json:"next_retry,omitzero"`
	LastError    string    `json:"last_error,omitempty"` // of the row that failed last among those that are set aside

	// HandledAt is when a row was last delivered, left out by the filter, or made a dead letter.
	HandledAt time.Time `json:"handled_at,omitzero"`
}

// Shifted is the account by a clock that is ahead by d.
func (a Account) Shifted(d time.Duration) Account {
	for _, t := range []*time.Time{&a.BlockedSince, &a.FailingSince, &a.NextRetry, &a.HandledAt} {
		if !t.IsZero() {
			*t = t.Add(d)
		}
	}
	return a // Oldest and Waiting are by the database's clock already
}
