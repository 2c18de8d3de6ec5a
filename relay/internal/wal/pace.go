package wal

import "time"

// pace decides, by the recent rate of messages, whether the reader waits for more than has arrived.
type pace struct {
	rate float64 // recent messages per millisecond
	at   time.Time
}

// A wake-up costs as much as handling several messages. So waiting is worth it when about this many arrive in the
// meantime.
const (
	busyRate  = 8  // messages per millisecond
	floodRate = 32 // that is a backlog, where the latency of a single message doesn't matter
	markLow   = 16 << 10
	markHigh  = 128 << 10 // bytes

	pauseInFlow = 20 * time.Millisecond // after such a pause the recent rate predicts nothing
)

// patience is how long messages wait for later ones: longer in a flood, because every batch has a fixed cost in the
// stages after this one.
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
			p.rate = lately // a mean over so long a time needs no smoothing
		} else {
			p.rate += (lately - p.rate) / 4
		}
	}
	p.at = now
}

// mark is the number of bytes to wait for, 0 for none: what arrives after a pause may be a single message, however many
// came before it.
func (p *pace) mark(now time.Time) int {
	if p.rate < busyRate || now.Sub(p.at) > pauseInFlow {
		return 0
	}
	const size = 512 // the approximate size of a message
	return min(max(int(p.rate*float64(p.patience()/time.Millisecond))*size, markLow), markHigh)
}
