package relay

import (
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
