package daemon

import (
	"cmp"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/route"
)

// selection says what each destination wants, and counts what none does.
//
// Of a table that is marked, such a row is marked as one that was delivered.
//
// Every destination of a table reads every message of it, so one of them has to do the counting: the first
// of the configuration, in the process that owns it. What it knows is the configuration of its process.
// Where destinations are spread over processes with different ones, a message that another process sends
// is counted here too.
type selection struct {
	destinations []selecting
	counter      prometheus.Counter
	note         func(*outbox.Message) (first bool)
	logger       *slog.Logger
}

type selecting struct {
	route.Filter
	table string // that it reads; "" is the outbox
}

func (s *selecting) everything() bool { return len(s.Topics) == 0 && len(s.Any) == 0 }

// newSelection returns the selection of cfg. What no destination selects goes to note, which reports whether it is the
// first of its topic.
func newSelection(cfg config.Config, counter prometheus.Counter, note func(*outbox.Message) bool, logger *slog.Logger) *selection {
	s := &selection{counter: counter, note: note, logger: logger}
	for _, d := range cfg.Destinations {
		own := selecting{Filter: d.Selection()}
		if d.Source != nil {
			_, m := d.Source.Resolve()
			own.table = cmp.Or(m.Table, d.Name)
		}
		s.destinations = append(s.destinations, own)
	}
	return s
}

// filter returns what destination n selects, nil if that is everything.
func (s *selection) filter(n int, rules *route.Rules) func(*outbox.Message) bool {
	own := &s.destinations[n]
	if own.everything() {
		if !rules.CanDrop() {
			return nil
		}
		return func(m *outbox.Message) bool { return !rules.Drops(m) }
	}
	counts := s.counts(n)
	return func(m *outbox.Message) bool {
		if own.Wants(m) {
			return !rules.Drops(m)
		}
		if counts && !s.wanted(own.table, m) {
			s.count(m)
		}
		return false
	}
}

// counts means that destination n counts what no destination of its table selects: it is the first, and there may be
// such messages.
func (s *selection) counts(n int) bool {
	for i := range s.destinations {
		d := &s.destinations[i]
		if d.table == s.destinations[n].table && (i < n || d.everything()) {
			return false
		}
	}
	return true
}

// wanted reports whether a destination of a table wants m.
func (s *selection) wanted(table string, m *outbox.Message) bool {
	return slices.ContainsFunc(s.destinations, func(d selecting) bool { return d.table == table && d.Wants(m) })
}

// count counts a message that no destination selects, and names its topic once. m's memory is used again.
func (s *selection) count(m *outbox.Message) {
	s.counter.Inc()
	if s.note(m) {
		s.logger.Warn("no destination of this relay selects a message, so it is not delivered: add its topic to a destination's "+
			"topics or filter, or drop it by a rule to say that this is meant; "+
			"it is said once per topic, and outbox_messages_unselected_total counts all",
			printed.Message(m)...)
	}
}
