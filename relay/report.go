package relay

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/printed"
)

// reportState changes the state to what the broker and the core are like, and logs a change.
func (l *loop) reportState(hangs bool) {
	if time.Since(l.started) > usualPause {
		l.state.unsettled = nil // nothing may be left to settle
	}
	report := func(state State, cause error, text string) {
		if l.state.change(state, cause) {
			l.relay.cfg.Logger.Warn(text, "destination", l.relay.cfg.Name, "error", cause)
		}
	}
	full, outage := l.core.whyFull(), l.core.oldestOutage()
	switch {
	case l.core.outage.failures > 0:
		report(StateStalled, l.core.outage.cause, "destination stalled, it does not answer")
	case hangs:
		report(StateStalled, errHangs, "destination hangs")
	case full != nil:
		report(StateFull, full, "too much is set aside")
	case outage != nil:
		report(StateFailing, outage.cause, "topic unavailable, what goes there waits")
	case l.ping.err != nil:
		report(StateStalled, l.ping.err, "destination can't be reached")
	case !l.recognition.allowsCalls(): // it may be another broker than the destination's
	case l.state.change(StateFlowing, nil):
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
		first = earlier(first, began)
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
