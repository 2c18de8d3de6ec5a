package mapped

import (
	"context"
	"time"
)

// pace is the pause between polls. One goroutine at a time.
type pace struct {
	cfg    *Config
	broken <-chan struct{}
	heard  <-chan struct{} // nil without notifications
	pause  time.Duration
	next   time.Time
	found  time.Time // when a poll last found something
}

// busyFor is how many pauses of PollBusy to continue at that pace after something was found.
const busyFor = 10

// polled sets the time of the next poll: at once after a full page.
func (p *pace) polled(found, full bool) {
	now := time.Now()
	switch {
	case full:
		p.pause, p.found = 0, now
	case found:
		p.pause, p.found = p.cfg.PollBusy, now
	case now.Sub(p.found) > busyFor*p.cfg.PollBusy:
		p.pause = min(max(p.pause+p.pause/4, p.cfg.PollBusy), p.cfg.PollIdle)
	default:
		p.pause = p.cfg.PollBusy
	}
	p.next = now.Add(p.pause)
}

// await waits until the next poll is due, a wake-up comes, or the session has ended.
func (p *pace) await(ctx context.Context) error {
	wait := time.Until(p.next)
	if wait <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	wake := p.cfg.Wake
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.broken:
			return nil // the caller looks up the reason
		case <-timer.C:
			return nil
		case <-p.heard:
			p.pause = 0
			return nil
		case _, open := <-wake:
			if open {
				p.pause = 0
				return nil
			}
			wake = nil
		}
	}
}
