package verbs

import (
	"context"
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/admin/sheet"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
)

// Check are the parameters of "check".
type Check struct {
	Destination     string   `json:"destination,omitempty" help:"only this destination"`
	OldestWarning   Duration `json:"oldest_warning,omitempty" min:"0s" help:"warn when the oldest message has waited for this long"`
	OldestCritical  Duration `json:"oldest_critical,omitempty" min:"0s" help:"critical when the oldest message has waited for this long"`
	PendingWarning  int64    `json:"pending_warning,omitempty" min:"0" help:"warn from this many pending and held messages on"`
	PendingCritical int64    `json:"pending_critical,omitempty" min:"0" help:"critical from this many pending and held messages on"`
	DeadWarning     int64    `json:"dead_warning,omitempty" min:"0" help:"warn from this many new dead letters on; any is a warning anyhow"`
	DeadCritical    int64    `json:"dead_critical,omitempty" min:"0" help:"critical from this many new dead letters on"`
}

func checkStatus() Verb {
	return reads(Verb{
		Name:    "check",
		Timeout: 10 * time.Second, // of which a monitoring system has as much, or little more
		Short:   "The verdict for a monitoring system",
		Long: `Prints the verdict of outbox status as a plugin of Nagios, Icinga or Sensu does: one line with performance data, and an
exit code. OK (0) is idle and flowing; WARNING (1) is at risk, lagging, blocked, dead and paused; CRITICAL (2) is failing,
stalled, broken, no relay and stopped; UNKNOWN (3) means that it could not be found out, be it for a wrong flag.
Limits can make it worse than the verdict, for each destination, and never better.

Where the configuration has several databases, all are asked at once unless --database names one: the line is about the
worst, with a count of each result.

With -o prometheus the numbers are printed as the relay's port has them, for a collector of text files.`,
		Example: `  outbox check
  outbox check --destination kafka --oldest-warning 1m --oldest-critical 10m --dead-critical 100
  outbox check -o prometheus > /var/lib/node_exporter/outbox.prom`,
	}, func(ctx context.Context, db admin.DB, p Check) (*health.Checked, error) {
		r, err := health.Status(ctx, db)
		if err != nil {
			return nil, err
		}
		c := p.Of(r)
		return &c, nil
	}, func(_ Check, c *health.Checked) sheet.Parts {
		return sheet.Parts{sheet.Line(c.Result.String() + ": " + c.Text)}
	})
}

// Of checks a report by the parameters.
func (p Check) Of(r *health.Report) health.Checked {
	return r.Check(p.Destination, health.Limits{
		Oldest:  health.Limit{Warning: time.Duration(p.OldestWarning).Seconds(), Critical: time.Duration(p.OldestCritical).Seconds()},
		Pending: health.Limit{Warning: float64(p.PendingWarning), Critical: float64(p.PendingCritical)},
		Dead:    health.Limit{Warning: float64(p.DeadWarning), Critical: float64(p.DeadCritical)},
	})
}

func (p *Check) check() error {
	for _, l := range []struct {
		name              string
		warning, critical float64
	}{
		{"oldest", float64(p.OldestWarning), float64(p.OldestCritical)},
		{"pending", float64(p.PendingWarning), float64(p.PendingCritical)},
		{"dead", float64(p.DeadWarning), float64(p.DeadCritical)},
	} {
		if l.critical > 0 && l.warning > l.critical {
			return fault(l.name+"_warning", "is beyond %s: it would never be given", fmt.Sprintf("%s_critical", l.name))
		}
	}
	return nil
}
