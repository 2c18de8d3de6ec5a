package relay

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/printed"
)

func (l *loop) reportState(hangs bool) {
	if time.Since(l.started) > usualPause {
		l.state.unsettled = nil // nothing may be left to settle
	}
	if cause := l.core.outage.cause; l.core.outage.failures > 0 {
		if l.state.change(StateStalled, cause) {
			l.relay.cfg.Logger.Warn("destination stalled, it does not answer", "destination", l.relay.cfg.Name, "error", cause)
		}
		return
	}
	if hangs {
		if l.state.change(StateStalled, errHangs) {
			l.relay.cfg.Logger.Warn("destination hangs", "destination", l.relay.cfg.Name, "error", errHangs)
		}
		return
	}
	if full := l.core.whyFull(); full != nil {
		if l.state.change(StateFull, full) {
			l.relay.cfg.Logger.Warn("too much is set aside", "destination", l.relay.cfg.Name, "error", full)
		}
		return
	}
	if o := l.core.oldestOutage(); o != nil {
		if l.state.change(StateFailing, o.cause) {
			l.relay.cfg.Logger.Warn("topic unavailable, what goes there waits", "destination", l.relay.cfg.Name, "error", o.cause)
		}
		return
	}
	if err := l.ping.err; err != nil {
		if l.state.change(StateStalled, err) {
			l.relay.cfg.Logger.Warn("destination can't be reached", "destination", l.relay.cfg.Name, "error", err)
		}
		return
	}
	if !l.recognition.allowsCalls() {
		return // it may be another broker than the destination's
	}
	if l.state.change(StateFlowing, nil) {
		l.relay.cfg.Logger.Info("destination flowing", "destination", l.relay.cfg.Name)
	}
}

// watchOutage changes the state when the destination, or a topic of it, stops or starts taking messages, and when
// nothing new is read because too much is set aside. It returns when it has to look again.
func (l *loop) watchOutage(now time.Time) time.Time {
	hangsAt := l.hangsAt()
	hangs := !hangsAt.IsZero() && !hangsAt.After(now)
	l.reportState(hangs)
	if hangs {
		return time.Time{}
	}
	return hangsAt
}

// hangsAt returns the time at which the first of the calls to the broker begins to hang; zero if there is none. Calls
// with other keys may be answered meanwhile.
func (l *loop) hangsAt() time.Time {
	var first time.Time
	for _, began := range l.calls {
		if first.IsZero() || began.Before(first) {
			first = began
		}
	}
	if first.IsZero() {
		return first
	}
	return first.Add(hangsAfter)
}

// hangsAfter is how long a call to the broker may last until the state becomes stalled. The call goes on: the adapter
// decides when it ends.
const hangsAfter = 5 * time.Second

var errHangs = fmt.Errorf("a call to the broker has not returned for %v; the keys of its messages wait for the answer", hangsAfter)

// logFailures names the messages that the broker refused; outages, of topics too, are logged by watchOutage.
func (l *loop) logFailures(k *call, errs []error) {
	for i, err := range errs {
		if err == nil || outbox.IsUnavailable(err) || outbox.IsTopicUnavailable(err) || errors.Is(err, outbox.ErrSkipped) {
			continue
		}
		l.relay.cfg.Logger.Warn("message not accepted", append(messageFields(k.items[i].d),
			"destination", l.relay.cfg.Name, "attempt", k.items[i].d.Attempts+1, "error", err)...)
	}
}

func (l *loop) logSettled(s *Settlement) {
	log := func(what string, d *Delivery, blocked bool, more ...any) {
		line := append(append(messageFields(d), "destination", l.relay.cfg.Name), more...)
		if next := l.relay.cfg.Remedy; next != nil {
			var text any
			if panicked := try("Remedy", func() { text = next(d, blocked) }); panicked != nil {
				text = panicked
			}
			line = append(line, "next", text)
		}
		l.relay.cfg.Logger.Error(what, line...)
	}
	for _, list := range [][]Dead{s.Dead, s.HeldDead} {
		for _, d := range list {
			log("dead letter", d.Delivery, false, "reason", string(d.Reason), "error", d.Err)
		}
	}
	for _, list := range [][]Hold{s.Hold, s.HeldRetry} {
		for _, h := range list {
			if h.Blocked && !h.Delivery.Blocked { // not if an earlier session has told it
				log("key blocked", h.Delivery, true, "attempts", h.Delivery.Attempts, "error", h.Err)
			}
		}
	}
}

// messageFields returns what a log line has about a message and its row.
func messageFields(d *Delivery) []any {
	line := printed.Message(&d.Message)
	if d.Row != "" {
		line = append(line, "row", strings.Clone(printed.Key(d.Row)))
	}
	if d.DedupKey != "" {
		line = append(line, "dedup_key", strings.Clone(printed.Key(d.DedupKey)))
	}
	return line
}
