package pending

import (
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// Account sums up the work of a source. Safe for concurrent use.
type Account struct {
	mu      sync.Mutex
	holds   *Holds    // of the session; nil without one
	handled time.Time // when a row was last settled
	noted   time.Time // when that was last to be written
}

// Now returns the account: of what is held, no more than the session knows.
func (a *Account) Now() mapping.Account {
	a.mu.Lock()
	h, handled := a.holds, a.handled
	a.mu.Unlock()
	var now mapping.Account
	if h != nil {
		now = h.account()
	}
	now.HandledAt = handled
	if len(now.LastError) > schema.MaxNote {
		now.LastError = strings.ToValidUTF8(now.LastError[:schema.MaxNote], "") + "…"
	}
	return now
}

// handledEvery is how often it is written that rows are settled, while nothing else is to be written.
const handledEvery = 10 * time.Second

// Begin notes the holds of a session, nil when it ends.
func (a *Account) Begin(h *Holds) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holds = h
}

// Settle notes that a settlement is stored. It reports whether that is news.
func (a *Account) Settle(s *relay.Settlement) bool {
	if s.Through == nil && len(s.HeldDelivered)+len(s.HeldDead) == 0 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handled = time.Now()
	news := a.handled.Sub(a.noted) >= handledEvery
	if news {
		a.noted = a.handled
	}
	return news
}
