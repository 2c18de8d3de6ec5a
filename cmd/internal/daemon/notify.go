package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/notify"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
)

// notifications tell people of messages that will not be tried again: a notifier for each section "notify" of the
// configuration, which destinations may share.
type notifications struct {
	sent  *prometheus.CounterVec
	lost  *prometheus.CounterVec
	label func(destination string) string

	all map[*config.Notify]*notify.Notifier
	of  map[string]*notify.Notifier // by destination; those without one are not there
}

// newNotifications names the database in what it sends, if that is not "".
func newNotifications(cfg config.Config, database string, m *metrics, logger *slog.Logger) *notifications {
	n := &notifications{
		sent: m.notified, lost: m.notifiedLosts, label: m.label,
		all: make(map[*config.Notify]*notify.Notifier),
		of:  make(map[string]*notify.Notifier),
	}
	tables := make(map[string]bool)
	remedies := make(map[string]func(*relay.Delivery, bool) string)
	for i := range cfg.Destinations {
		d := &cfg.Destinations[i]
		tables[d.Name], remedies[d.Name] = d.Source != nil, remedy(database, *d)
		section := cfg.Notification(d)
		if section == nil {
			continue
		}
		if n.all[section] == nil {
			n.all[section] = notify.New(notify.Config{
				Relay: cfg.Name, Database: database, Collect: section.Collect, Every: section.Every, Observe: n.observe,
				Logger: logger,
				Next:   func(destination string) string { return listCommand(database, destination, tables[destination]) },
				Remedy: func(destination string, d *relay.Delivery, blocked bool) string {
					return remedies[destination](d, blocked)
				},
			}, channels(section)...)
		}
		n.of[d.Name] = n.all[section]
	}
	return n
}

func channels(section *config.Notify) (list []notify.Channel) {
	if w := section.Webhook; w != nil {
		list = append(list, notify.NewWebhook(w.URL.Text(), w.Timeout))
	}
	if c := section.Command; c != nil {
		list = append(list, notify.NewCommand(c.Argv, c.Timeout))
	}
	return list
}

// listCommand shows how a person sees the messages of a destination that will not be tried again.
func listCommand(database, destination string, mapped bool) string {
	list := "outbox dead ls --destination "
	if mapped {
		list = "outbox tables dead --destination "
	}
	return "See: " + health.OnDatabase(list+shell.Word(destination), database) + "; " + health.OnDatabase("outbox status", database) + "."
}

// remedy returns what has exactly one message of a destination delivered once more, when its cause is gone.
func remedy(database string, c config.Destination) func(d *relay.Delivery, blocked bool) string {
	var m mapping.Mapping
	if c.Source != nil {
		_, m = c.Source.Resolve()
	}
	return func(d *relay.Delivery, blocked bool) string {
		command, id := "outbox dead requeue", d.ID.String()
		if c.Source != nil {
			command, id = "outbox tables requeue", d.Row
		}
		if blocked {
			command += " --blocked"
		}
		if blocked && c.Source != nil && m.Blocked() == "" {
			return fmt.Sprintf("in table %s, delete row %s or mark it as done; or start the relay again, which tries it once more",
				m.Table, printed.Key(d.Row))
		}
		id = shell.Word(id)
		if strings.HasPrefix(id, "-") {
			id = "-- " + id
		}
		return health.OnDatabase(command+" --destination "+shell.Word(c.Name), database) + " " + id
	}
}

func (n *notifications) observe(o notify.Outcome) {
	result, destination := "sent", n.label(o.Destination)
	if o.Err != nil {
		result = "dropped"
		n.lost.WithLabelValues(destination, o.Channel).Add(float64(o.Messages))
	}
	n.sent.WithLabelValues(destination, o.Channel, result).Inc()
}

// run sends until ctx ends, and then what is left.
func (n *notifications) run(ctx context.Context) {
	var running sync.WaitGroup
	for _, notifier := range n.all {
		running.Go(func() { notifier.Run(ctx) })
	}
	running.Wait()
}

// observer is told what o is told, and passes on what people are to know.
func (n *notifications) observer(destination string, o relay.Observer) relay.Observer {
	if notifier := n.of[destination]; notifier != nil {
		return &notifying{o, destination, notifier}
	}
	return o
}

// stopped tells that a destination gave up.
func (n *notifications) stopped(destination string, err error) {
	if notifier := n.of[destination]; notifier != nil {
		notifier.Stopped(destination, err)
	}
}

type notifying struct {
	relay.Observer
	destination string
	notifier    *notify.Notifier
}

func (o *notifying) Settled(s *relay.Settlement) {
	o.Observer.Settled(s)
	o.notifier.Settled(o.destination, s)
}
