package relay

import (
	"context"
	"time"
)

// startPing pings if it is time, unless calls show the broker's state. It returns when to look again.
func (l *loop) startPing(now time.Time) time.Time {
	p := &l.ping
	if l.core.draining || l.core.outage.failures > 0 || !l.core.idle() {
		return time.Time{}
	}
	if at := p.due(); at.IsZero() || now.Before(at) {
		return at
	}
	p.asking, p.askedAt = true, now
	l.do("Pinger.Ping", func() func() {
		ctx, cancel := context.WithTimeout(l.work, pingTimeout)
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

// recognize looks if it is time. It returns when to look again.
func (l *loop) recognize(now time.Time) time.Time {
	r := &l.recognition
	if at := r.due(); at.IsZero() || now.Before(at) {
		return at
	}
	r.asking = true
	l.do("Identifier.Identity", func() func() {
		known, err := l.lookAt(r.identifier)
		return func() {
			r.asking, r.known, r.fresh, r.askedAt = false, known, true, time.Now()
			if err != nil {
				l.fail(err)
				return
			}
			calls := r.waiting
			r.waiting = nil
			l.publishAll(calls)
		}
	})
	return time.Time{}
}

// lookAt asks the broker for its names, and the session whether they are the destination's. An error is the session's.
func (l *loop) lookAt(broker Identifier) (known bool, err error) {
	ctx, cancel := context.WithTimeout(l.work, identifyTimeout)
	defer cancel()
	var names []string
	if panicked := try("Identifier.Identity", func() { names, err = broker.Identity(ctx) }); panicked != nil {
		err = panicked
	}
	if err != nil || len(names) == 0 {
		l.relay.cfg.Logger.Debug("it isn't known which broker this is", "destination", l.relay.cfg.Name, "error", err)
		return false, nil
	}
	err = l.session.Recognize(l.statements, names)
	return err == nil, err
}
