package main

import (
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/route"
)

// selection says what each destination wants, and counts what none does.
//
// Every destination reads every message, so one of them has to do the counting: the first of the
// configuration, in the process that owns it. What it knows is the configuration of its process. Where
// destinations are spread over processes with different ones, a message that another process sends is
// counted here, and the warning says so.
type selection struct {
	filters []route.Filter
	counter prometheus.Counter
	logger  *slog.Logger

	mu     sync.Mutex
	topics map[string]struct{} // said already
}

func newSelection(destinations []config.Destination, counter prometheus.Counter, logger *slog.Logger) *selection {
	s := &selection{counter: counter, logger: logger, topics: map[string]struct{}{}}
	for _, d := range destinations {
		s.filters = append(s.filters, d.Selection())
	}
	return s
}

// maxUnselectedTopics bounds the topics that are named in the log.
const maxUnselectedTopics = 1000

// of returns what destination n selects, nil if that is everything.
func (s *selection) of(n int, rules *route.Rules) func(*outbox.Message) bool {
	own := &s.filters[n]
	if len(own.Topics) == 0 && len(own.Any) == 0 {
		if !rules.Dropping() {
			return nil
		}
		return func(m *outbox.Message) bool { return !rules.Drops(m) }
	}
	count := n == 0 && s.partial()
	return func(m *outbox.Message) bool {
		if own.Wants(m) {
			return !rules.Drops(m)
		}
		if count && !s.wanted(m) {
			s.note(m)
		}
		return false
	}
}

// partial says that a message may be selected by no destination, as far as can be seen from here.
func (s *selection) partial() bool {
	for i := range s.filters {
		if len(s.filters[i].Topics) == 0 && len(s.filters[i].Any) == 0 {
			return false
		}
	}
	return true
}

func (s *selection) wanted(m *outbox.Message) bool {
	for i := range s.filters {
		if s.filters[i].Wants(m) {
			return true
		}
	}
	return false
}

// note counts a message that no destination selects, and names its topic once.
func (s *selection) note(m *outbox.Message) {
	s.counter.Inc()
	s.mu.Lock()
	_, said := s.topics[m.Topic]
	if !said && len(s.topics) < maxUnselectedTopics {
		s.topics[m.Topic] = struct{}{}
	} else {
		said = true
	}
	s.mu.Unlock()
	if !said {
		s.logger.Warn("no destination of this relay selects a message, and so nobody gets it: add its topic to a destination's "+
			"topics or filter, or drop it by a rule to say that this is meant; "+
			"it is said once per topic, and outbox_messages_unselected_total counts all",
			"topic", m.Topic, "event_type", m.EventType, "message_id", m.ID.String())
	}
}
