package wal

import "time"

// pace decides whether to wait for more than has come, by how many messages have come lately.
type pace struct {
	rate float64 // messages a millisecond, lately
	at   time.Time
}

// A wake-up costs as much as some messages do, so it is worth waiting when about this many come meanwhile.
const (
	busyRate  = 8  // messages a millisecond
	floodRate = 32 // that is a backlog, where nobody waits for a single message
	markLow   = 16 << 10
	markHigh  = 128 << 10 // bytes

	pauseInFlow = 20 * time.Millisecond // after it nothing is known of what comes
)

// patience is how long messages wait for those that follow them: in a flood longer, for every batch has a
// cost of its own behind here.
func (p *pace) patience() time.Duration {
	if p.rate < floodRate {
		return time.Millisecond
	}
	return 4 * time.Millisecond
}

func (p *pace) read(messages int, now time.Time) {
	if !p.at.IsZero() {
		passed := now.Sub(p.at)
		lately := float64(messages) / max(float64(passed)/float64(time.Millisecond), 0.01)
		if passed > p.patience() {
			p.rate = lately // over so long it is a mean already
		} else {
			p.rate += (lately - p.rate) / 4
		}
	}
	p.at = now
}

// mark is for how many bytes to wait, 0 for not at all: what comes after a pause may be a single message,
// however many came before it.
func (p *pace) mark(now time.Time) int {
	if p.rate < busyRate || now.Sub(p.at) > pauseInFlow {
		return 0
	}
	const size = 512 // of a message, about
	return min(max(int(p.rate*float64(p.patience()/time.Millisecond))*size, markLow), markHigh)
}
