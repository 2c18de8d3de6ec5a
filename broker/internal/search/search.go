// Package search bounds how long a call looks for the messages because of which larger requests are refused, and knows
// the answers that are about size.
package search

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox"
)

// Limits of one call. To find one message among 5,000 takes about 26 requests.
const (
	requests = 100
	patience = 10 * time.Second
)

// ErrUndecided is the outcome of a message that was part of a refused request, when the call has no time left to find
// out whether it was the reason. It costs no attempt: the message is in the next call, which is smaller by what this
// one has decided.
var ErrUndecided = fmt.Errorf("not sent alone: this call has looked for refused messages long enough: %w", outbox.ErrSkipped)

// Budget is what one call may spend on the search. Safe for concurrent use. The zero value is ready for use.
type Budget struct {
	mu    sync.Mutex
	spent int
	since time.Time
}

// Spend reports whether parts of a refused request may be sent, by that many requests.
func (b *Budget) Spend(sends int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spent == 0 {
		b.since = time.Now()
	}
	b.spent += sends
	// A search that has begun decides at least one message, however slow the answers are.
	return b.spent <= requests && (b.spent <= minimum || time.Since(b.since) < patience)
}

// minimum is enough to find one message among 10,000.
const minimum = 2 * 14

// Texts of servers and libraries about a message or request that is too large. The words alone decide where a code
// means a quota too, so they need to name the thing and its size: "request took too long" and "exceeded message rate"
// are the words of an overload.
var size = func() *regexp.Regexp {
	const (
		noun  = `\b(message|request|payload|body|record|batch|entity|frame|string)`
		value = `( of)?( \(?[\d,.]+( ?([kmg]i?b|bytes))?\)?)?`
		most  = `(the )?((configured|allowed|permitted|maximum|max) )*`
	)
	return regexp.MustCompile(`(?i)` + strings.Join([]string{
		noun + `([ _](size|length))?( is| was)? too (large|big)`,
		noun + `([ _]length)?( is| was)? too long`,
		noun + `( after decompression)?( is| was)? (larger|bigger|greater) than (the )?(max|limit|allowed|permitted)`,
		noun + `[ _](size|length)` + value + `( is| was)? (exceed(s|ed|ing)?|(larger|bigger|greater|longer|more) than|over|above) `,
		noun + ` exceed(s|ed|ing)? ` + most + `((message|request|payload|body|record|batch) )?(size|length)\b`,
		`exceed(s|ed|ing)? ` + most + noun + ` (size|length)\b`,
		noun + ` exceed(s|ed|ing)? ` + most + `(limit )?(of )?\d+ bytes`,
		noun + ` must be shorter than \d+ bytes`,
		`status code received from server: 413`,
	}, "|"))
}()

// flow matches texts about rates and quotas, which may name a size too.
var flow = regexp.MustCompile(`(?i)\b(rate|quota|throughput|bandwidth)\b|\bper (second|minute|hour|day)\b|bytes/s|\bof time\b`)

// OfSize reports whether the words of a refusal say that something is too large.
func OfSize(words string) bool { return size.MatchString(words) && !flow.MatchString(words) }
