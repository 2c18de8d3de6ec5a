package console

import (
	"context"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
)

// poller reads the database if Options.Report is nil: rarely, for the history, and up to once a second while somebody
// looks at a page.
type poller struct {
	api     *rest.API
	history *History

	mu     sync.Mutex
	last   *health.Report
	at     time.Time
	tried  time.Time
	failed error
}

const (
	pollEvery = 5 * time.Second
	pollSoon  = 900 * time.Millisecond // less than the pause of streams, so that each of their pages is of a report of its own
)

func (p *poller) run(ctx context.Context) {
	for ctx.Err() == nil {
		_, _, _ = p.report()
		select {
		case <-time.After(pollEvery):
		case <-ctx.Done():
		}
	}
}

func (p *poller) report() (*health.Report, time.Duration, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.last = &health.Report{}
	}
	if time.Since(p.tried) > pollSoon {
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), health.ReadWithin/3)
		status := verbs.Status()
		found, err := p.api.Run(ctx, rest.Caller{Role: verbs.Viewer}, status, status.New())
		cancel()
		p.tried = time.Now()
		if p.failed = err; err == nil {
			p.last, p.at = found.(*health.Report), began
			p.history.Add(p.last, p.tried)
		}
	}
	age := time.Duration(0)
	if !p.at.IsZero() {
		age = time.Since(p.at)
	}
	return p.last.Amended(nil, age, p.failed), age, p.failed
}
