package relay

import "time"

// ping is the state of the pings to the broker, by which a wrong address or login is known before the first message.
type ping struct {
	pinger  Pinger // nil: it can't be asked
	asking  bool
	askedAt time.Time // when it was asked, or last answered a call
	err     error     // of the last ping
}

const (
	pingIdle    = time.Minute     // the pause between two pings while the broker answers
	pingAgain   = 5 * time.Second // while it doesn't
	pingTimeout = 10 * time.Second
)

// answered notes that a call to the broker has ended: the core judges what came of it.
func (p *ping) answered(now time.Time) { p.askedAt, p.err = now, nil }

// due returns the time of the next ping; zero: none.
func (p *ping) due() time.Time {
	pause := pingIdle
	if p.err != nil {
		pause = pingAgain
	}
	switch {
	case p.pinger == nil || p.asking:
		return time.Time{}
	case p.askedAt.IsZero():
		return time.Unix(0, 1) // at once
	}
	return p.askedAt.Add(pause)
}
