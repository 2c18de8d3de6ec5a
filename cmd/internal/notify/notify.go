// Package notify tells people of messages that a relay will not try again: dead letters, blocked keys, and
// destinations that gave up.
//
// What happens is collected, so that a thousand dead letters at once are one notification with their number and
// the first few of them. Nothing here waits for a receiver but its own goroutine, and what it keeps doesn't grow.
// A notification is a courtesy, sent after the fact: a relay that is killed in between doesn't send it. Metrics and
// "outbox dead ls" say what is true.
package notify

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// Channel is one way to tell people. Send is called by one goroutine at a time and returns when ctx ends. Errors
// marked with outbox.Permanent are not worth another attempt; outbox.RetryAfter says when one is.
type Channel interface {
	Name() string
	Send(ctx context.Context, n *Notification) error
}

// Notification is what has happened to one destination since the last one.
type Notification struct {
	Relay       string    `json:"relay"`
	Database    string    `json:"database,omitempty"` // where the relay has several
	Destination string    `json:"destination"`
	Began       time.Time `json:"began"` // when the first of it happened
	DeadLetters int       `json:"dead_letters"`
	Blocked     int       `json:"blocked"`           // keys that are held until somebody acts
	Stopped     string    `json:"stopped,omitempty"` // why the destination gave up
	First       []Message `json:"first"`             // at most five
	Next        string    `json:"next,omitempty"`    // what to do
	Text        string    `json:"text"`              // all of it, for people
}

// Message is one that will not be tried again. Its payload is left out: notifications go where messages may not.
type Message struct {
	ID        string `json:"id"`
	Row       string `json:"row,omitempty"`       // id of the row of a table that exists already
	DedupKey  string `json:"dedup_key,omitempty"` // what ID was made from, if that was no UUID
	Topic     string `json:"topic"`
	Key       string `json:"key,omitempty"`
	EventType string `json:"event_type,omitempty"`
	Outcome   string `json:"outcome"` // dead_letter or blocked
	Reason    string `json:"reason"`  // invalid, refused or exhausted
	Attempts  int    `json:"attempts"`
	Error     string `json:"error,omitempty"`
	Next      string `json:"next,omitempty"` // has exactly this one delivered once more
}

// Config tunes a Notifier. Collect and Every are as in the configuration file.
type Config struct {
	Relay string

	// Database is the name of the one that the destinations are of, where the relay has several.
	Database string

	// Collect is how long the first message waits for others, Every the shortest time between two
	// notifications on one destination. Defaults 2 s and 1 min.
	Collect time.Duration
	Every   time.Duration

	// Retry is the pause before a notification that failed is sent again, at most four times. Default
	// 1 s doubling to 30 s.
	Retry relay.Backoff

	// Next says how a person sees the messages of a destination, Remedy what has exactly one delivered once more: a
	// dead letter, or one that keeps its key blocked. nil: nothing is said.
	Next   func(destination string) string
	Remedy func(destination string, d *relay.Delivery, blocked bool) string

	// Observe is told of every notification that was sent or given up. Default: none.
	Observe func(Outcome)

	// Logger gets what failed; nil: slog.Default.
	Logger *slog.Logger
}

// Outcome is what became of a notification; Err is nil if it was sent.
type Outcome struct {
	Channel     string
	Destination string
	Messages    int // dead letters and blocked keys that it told of, or would have
	Err         error
}

// Notifier collects what happens, and tells of it through each of its channels. Its methods are safe for
// concurrent use; those that take something in never wait.
type Notifier struct {
	cfg     Config
	senders []*sender
}

// Defaults returns the Config that the zero value stands for.
func Defaults() Config { return Config{}.withDefaults() }

func (cfg Config) withDefaults() Config {
	settings.Default(&cfg.Collect, 2*time.Second)
	settings.Default(&cfg.Every, time.Minute)
	settings.Default(&cfg.Retry, relay.Backoff{Initial: time.Second, Max: 30 * time.Second})
	cfg.Logger = settings.Logger(cfg.Logger)
	return cfg
}

// New returns a notifier whose Run has to be called. All channels are told of everything, each at its own pace.
func New(cfg Config, channels ...Channel) *Notifier {
	n := &Notifier{cfg: cfg.withDefaults()}
	for _, c := range channels {
		n.senders = append(n.senders, newSender(&n.cfg, c))
	}
	return n
}

// Run sends until ctx ends, and then what is left, once and at most for a few seconds.
func (n *Notifier) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, s := range n.senders {
		running.Go(func() { s.run(ctx) })
	}
	running.Wait()
}

// Settled takes in what a settlement of a destination says of messages that will not be tried again. Nothing of it
// is kept.
func (n *Notifier) Settled(destination string, s *relay.Settlement) {
	if len(s.Dead)+len(s.HeldDead)+len(s.Hold)+len(s.HeldRetry) == 0 {
		return
	}
	dead := len(s.Dead) + len(s.HeldDead)
	blocked := 0
	var first []Message
	add := func(d *relay.Delivery, outcome string, reason relay.Reason, err error) {
		if len(first) < few {
			m := describe(d, outcome, reason, err)
			if n.cfg.Remedy != nil {
				m.Next = n.cfg.Remedy(destination, d, outcome == "blocked")
			}
			first = append(first, m)
		}
	}
	for _, list := range [][]relay.Dead{s.Dead, s.HeldDead} {
		for i := range list[:min(len(list), few)] {
			add(list[i].Delivery, "dead_letter", list[i].Reason, list[i].Err)
		}
	}
	for _, list := range [][]relay.Hold{s.Hold, s.HeldRetry} {
		for i := range list {
			if h := &list[i]; h.Blocked {
				blocked++
				add(h.Delivery, "blocked", reasonOf(h), h.Err)
			}
		}
	}
	if dead+blocked == 0 {
		return
	}
	for _, s := range n.senders {
		s.add(destination, func(n *Notification) {
			n.DeadLetters += dead
			n.Blocked += blocked
			n.First = append(n.First, first[:min(len(first), few-len(n.First))]...)
		})
	}
}

// Stopped takes in that a destination gave up.
func (n *Notifier) Stopped(destination string, err error) {
	for _, s := range n.senders {
		s.add(destination, func(n *Notification) { n.Stopped = line(err) })
	}
}

// few is how many messages a notification names.
const few = 5

// reasonOf is why a key is blocked, which a hold doesn't say as a dead letter does.
func reasonOf(h *relay.Hold) relay.Reason {
	switch {
	case h.Delivery.Invalid != nil:
		return relay.ReasonInvalid
	case outbox.IsPermanent(h.Err):
		return relay.ReasonRefused
	}
	return relay.ReasonExhausted
}

// describe copies: what a delivery refers to is used again.
func describe(d *relay.Delivery, outcome string, reason relay.Reason, err error) Message {
	return Message{
		ID: d.ID.String(), Topic: strings.Clone(d.Topic), Key: printed.Key(strings.Clone(d.OrderingKey())),
		EventType: strings.Clone(d.EventType),
		Row:       printed.Key(strings.Clone(d.Row)), DedupKey: printed.Key(strings.Clone(d.DedupKey)),
		Outcome: outcome, Reason: string(reason), Attempts: d.Attempts, Error: line(err),
	}
}

// line makes an error fit for one line of a message to people.
func line(err error) string {
	if err == nil {
		return ""
	}
	return clip(strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "�")), " "), 300)
}

func clip(text string, limit int) string {
	if len(text) <= limit {
		return strings.Clone(text)
	}
	for !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit] + "…"
}

// write puts everything that n says into its text.
func (n *Notification) write() {
	var what []string
	if n.DeadLetters > 0 {
		what = append(what, printed.Many(n.DeadLetters, "dead letter", "dead letters"))
	}
	if n.Blocked > 0 {
		what = append(what, printed.Many(n.Blocked, "blocked key", "blocked keys"))
	}
	if n.Stopped != "" {
		what = append(what, "it gave up and delivers nothing any more: "+n.Stopped)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "outbox relay %s, ", n.Relay)
	if n.Database != "" {
		fmt.Fprintf(&b, "database %s, ", n.Database)
	}
	fmt.Fprintf(&b, "destination %s: %s", n.Destination, strings.Join(what, ", "))
	for _, m := range n.First {
		fmt.Fprintf(&b, "\n• %s, ", m.ID)
		if m.DedupKey != "" {
			fmt.Fprintf(&b, "deduplication key %s, ", m.DedupKey)
		}
		if m.Row != "" {
			fmt.Fprintf(&b, "row %s, ", m.Row)
		}
		fmt.Fprintf(&b, "topic %s", clip(m.Topic, 100))
		if m.Key != "" {
			fmt.Fprintf(&b, ", key %s", clip(m.Key, 100))
		}
		fmt.Fprintf(&b, ": %s after %s", m.Reason, printed.Many(m.Attempts, "attempt", "attempts"))
		if m.Error != "" {
			fmt.Fprintf(&b, ": %s", m.Error)
		}
		if m.Next != "" {
			fmt.Fprintf(&b, "\n  once more: %s", m.Next)
		}
	}
	if more := n.DeadLetters + n.Blocked - len(n.First); more > 0 {
		fmt.Fprintf(&b, "\n… and %d more", more)
	}
	if n.Next != "" {
		fmt.Fprintf(&b, "\n%s", n.Next)
	}
	n.Text = b.String()
}
