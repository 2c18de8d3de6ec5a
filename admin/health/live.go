package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/pgoutbox/outbox/internal/printed"
)

// Live is what a relay process knows about its own work on a shard group, without asking the database.
type Live struct {
	Destination string    `json:"destination"`
	Group       int       `json:"shard_group"`
	Owner       string    `json:"-"`     // the relay, as its leases or its tables name it; "": unknown
	State       string    `json:"state"` // as relay.State
	Since       time.Time `json:"since"`
	Cause       string    `json:"cause,omitempty"` // the last; it may be over
}

// Amended returns the report with the verdict as it is now: a relay knows of an outage before the database is looked
// at, and of its own work when the database can't be. age is how old r is; err is why it is not newer, and may be nil.
// A zero report is one that has not been read yet. r stays as it is.
func (r *Report) Amended(live []Live, age time.Duration, err error) *Report {
	now := *r
	now.Destinations = slices.Clone(r.Destinations)
	switch {
	case r.At.IsZero() && err == nil:
		now.unread = "the database has not been read yet"
	case r.At.IsZero():
		now.unread = "the database could not be read: " + err.Error()
	case age > ReadWithin:
		now.unread = fmt.Sprintf("the database has not been read for %s", printed.Span(age))
		if err != nil {
			now.unread += ": " + err.Error()
		}
	}
	for i := range now.Destinations {
		now.Destinations[i].Groups = slices.Clone(now.Destinations[i].Groups)
	}
	for _, l := range live {
		now.amend(l)
	}
	now.judge(allRules)
	return &now
}

// amend applies what this process knows about its relay of a group. For a group that the relay waits for, or has given
// up to another relay, the database knows more, if it can be read.
func (r *Report) amend(l Live) {
	d := r.destination(l.Destination)
	i := slices.IndexFunc(d.Groups, func(g Group) bool { return g.Group == l.Group && g.Owner == l.Owner })
	if i < 0 {
		i = slices.IndexFunc(d.Groups, func(g Group) bool { return g.Group == l.Group })
	}
	if i >= 0 && r.unread == "" {
		another := l.Owner != "" && d.Groups[i].Owner != l.Owner && d.Groups[i].Live
		if l.State == waiting || another && l.State == stoppedState {
			return
		}
	}
	if i < 0 {
		i = len(d.Groups)
		d.Groups = append(d.Groups, Group{Group: l.Group})
	}
	g := &d.Groups[i]
	g.State, g.StateSince, g.Live = l.State, l.Since, l.State != stoppedState
	if l.Cause != "" {
		g.LastError, g.LastErrorAt = l.Cause, l.Since
	}
}
