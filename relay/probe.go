package relay

import (
	"context"
	"time"
)

// probe asks the broker whether it is reachable while nothing is published: a wrong address or login is known before
// the first message.
type probe struct {
	pinger  Pinger // nil: it can't be asked
	asking  bool
	askedAt time.Time // or when a call was answered last
	err     error     // what the last one found
}

const (
	probeIdle    = time.Minute     // between two, while the broker answers
	probeAgain   = 5 * time.Second // while it doesn't
	probeTimeout = 10 * time.Second
)

// answered notes that a call to the broker has ended: the core judges what came of it.
func (p *probe) answered(now time.Time) { p.askedAt, p.err = now, nil }

// due is when to ask next; zero for not at all.
func (p *probe) due() time.Time {
	pause := probeIdle
	if p.err != nil {
		pause = probeAgain
	}
	switch {
	case p.pinger == nil || p.asking:
		return time.Time{}
	case p.askedAt.IsZero():
		return time.Unix(0, 1) // at once
	}
	return p.askedAt.Add(pause)
}

// startProbe asks if it is time, unless calls tell anyway. It returns when to look again.
func (l *loop) startProbe(now time.Time) time.Time {
	p := &l.probe
	if l.core.draining || l.core.outage.failures > 0 || !l.core.idle() {
		return time.Time{}
	}
	if at := p.due(); at.IsZero() || now.Before(at) {
		return at
	}
	p.asking, p.askedAt = true, now
	l.do("Pinger.Ping", func() func() {
		ctx, cancel := context.WithTimeout(l.work, probeTimeout)
		defer cancel()
		var err error
		if panicked := try("Pinger.Ping", func() { err = p.pinger.Ping(ctx) }); panicked != nil {
			err = panicked
		}
		return func() {
			p.asking = false
			if p.askedAt == now { // no call has ended meanwhile
				if err != nil || p.err != nil {
					l.recognition.forget()
				}
				p.err = err
			}
		}
	})
	return time.Time{}
}
