package notify

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
)

const (
	attempts    = 5
	longestAsk  = time.Minute     // that a receiver can ask for
	partingTime = 3 * time.Second // for what is left when the relay ends
)

// sender tells of everything through one channel. What has not been told yet is one notification for each
// destination, however much it is.
type sender struct {
	cfg     *Config
	channel Channel
	came    chan struct{}

	mu      sync.Mutex
	waiting map[string]*Notification

	earliest map[string]time.Time // when a destination may be told of again; only run has it
}

func newSender(cfg *Config, channel Channel) *sender {
	return &sender{cfg: cfg, channel: channel, came: make(chan struct{}, 1), waiting: make(map[string]*Notification),
		earliest: make(map[string]time.Time)}
}

// add changes what the next notification on a destination says.
func (s *sender) add(destination string, change func(*Notification)) {
	s.mu.Lock()
	n := s.waiting[destination]
	if n == nil {
		n = &Notification{Relay: s.cfg.Relay, Database: s.cfg.Database, Destination: destination, Began: time.Now()}
		s.waiting[destination] = n
	}
	change(n)
	s.mu.Unlock()
	select {
	case s.came <- struct{}{}:
	default:
	}
}

func (s *sender) run(ctx context.Context) {
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(partingTime, end) })()
	for ctx.Err() == nil {
		n, pause := s.take(time.Now(), false)
		if n != nil {
			s.tell(ctx, work, n)
			continue
		}
		var due <-chan time.Time
		if pause > 0 {
			due = time.After(pause)
		}
		select {
		case <-s.came:
		case <-due:
		case <-ctx.Done():
		}
	}
	for n, _ := s.take(time.Now(), true); n != nil; n, _ = s.take(time.Now(), true) {
		s.tell(ctx, work, n)
	}
}

// take returns a notification that is due, or how long it is until one is; 0 if none waits.
func (s *sender) take(now time.Time, last bool) (n *Notification, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, n := range s.waiting {
		due := n.Began.Add(s.cfg.Collect)
		if next := s.earliest[name]; next.After(due) {
			due = next
		}
		if wait := due.Sub(now); wait > 0 && !last {
			if pause == 0 || wait < pause {
				pause = wait
			}
			continue
		}
		delete(s.waiting, name)
		s.earliest[name] = now.Add(s.cfg.Every)
		return n, 0
	}
	return nil, pause
}

// tell sends n, and again if that fails. Once ctx has ended there is one attempt, in what is left of work.
func (s *sender) tell(ctx, work context.Context, n *Notification) {
	if s.cfg.Next != nil {
		n.Next = s.cfg.Next(n.Destination)
	}
	n.write()
	var err error
	for attempt := 1; ; attempt++ {
		last := ctx.Err() != nil
		if err = s.channel.Send(work, n); err == nil || last || attempt == attempts || outbox.IsPermanent(err) {
			break
		}
		pause := max(backoff(s.cfg.Retry, attempt), min(outbox.RetryDelay(err), longestAsk))
		s.cfg.Logger.Debug("notification not sent yet", "channel", s.channel.Name(), "destination", n.Destination,
			"attempt", attempt, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	messages := n.DeadLetters + n.Blocked
	if err != nil {
		s.cfg.Logger.Error("notification dropped", "channel", s.channel.Name(), "destination", n.Destination, "messages",
			messages, "error", err)
	}
	if s.cfg.Observe != nil {
		s.cfg.Observe(Outcome{Channel: s.channel.Name(), Destination: n.Destination, Messages: messages, Err: err})
	}
}

// backoff is the pause after the n-th failure, with up to a half of it taken off.
func backoff(b relay.Backoff, n int) time.Duration {
	pause := min(b.Initial<<(n-1), b.Max)
	return pause - time.Duration(rand.Int64N(int64(pause)/2+1))
}
