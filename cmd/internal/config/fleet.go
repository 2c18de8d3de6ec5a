package config

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
)

// Fleet configures which of several equal processes delivers what. See docs/fleet.md.
type Fleet struct {
	Name    string        `json:"name" jsonschema:"Name of the fleet. Fleets with other names may have the same home."`
	Home    Home          `json:"home" jsonschema:"The database where the members know each other. If it is away, all goes on as it is."`
	Ordinal int           `json:"ordinal" min:"-1" max:"100000" jsonschema:"Number of this member, from 0. -1: with a home it is claimed; without one it is the number at the end of the host's name, such as 2 of outbox-2."`
	Count   int           `json:"count" min:"0" max:"100000" jsonschema:"Number of members, where there is no home. 0: there is one."`
	Weight  int           `json:"weight" min:"1" max:"1000" jsonschema:"Share of this member compared with the others', with a home."`
	Settle  time.Duration `json:"settle" jsonschema:"How long a new member waits for the ordinal of one that leaves, before it takes a new one. In a rolling restart it should cover the time between a new process and the end of an old one."`
	Reserve time.Duration `json:"reserve" jsonschema:"How long the ordinal of one that has gone waits for one that takes its place. Its parts are with other members meanwhile."`
}

// Home is the database where the members of a fleet know each other.
type Home struct {
	URL     scalar.URL `json:"url" jsonschema:"Connection URL or keyword/value string of a database with the outbox's schema. It may be one of those that are delivered from."`
	URLFile string     `json:"url_file" jsonschema:"File that holds the URL, instead of url."`
}

// SetDefaults is a fleet of equal members.
func (f *Fleet) SetDefaults() {
	f.Name, f.Ordinal, f.Weight = "default", -1, 1
	f.Settle, f.Reserve = 10*time.Second, time.Minute
}

func (f *Fleet) check(r *findings.Report) {
	if f == nil {
		return
	}
	r.Check(namePattern.MatchString(f.Name), "fleet.name", "%q is no name; %s", f.Name, nameRule)
	if !f.Home.URL.Empty() {
		complaint := connect.Complaint(f.Home.URL.Text())
		r.Check(complaint == "", "fleet.home.url", "%s", complaint)
		r.Check(f.Count == 0, "fleet.count", "given beside a home, where the members count themselves; take one of them away")
		return
	}
	if r.Faulty("fleet.home.url_file") {
		return
	}
	r.Check(f.Count > 0, "fleet", "neither home.url, or home.url_file, nor count is given: name a database where the members "+
		"know each other, or say how many there are, as a StatefulSet with a fixed number of replicas has")
	r.Check(f.Weight == 1, "fleet.weight", "given without a home: the others don't know it; set home.url, or take it away")
	if f.Count > 0 {
		ordinal, err := f.Position("")
		r.Check(err == nil, "fleet.ordinal", "%v", err)
		r.Check(err != nil || ordinal < f.Count, "fleet.ordinal", "%d, and there are %d members, with the ordinals 0 to %d: raise "+
			"count on all of them, or lower the ordinal", ordinal, f.Count, f.Count-1)
	}
}

var numberAtEnd = regexp.MustCompile(`-([0-9]{1,6})$`)

// Position is the ordinal of this member of a fleet without a home. hostname is the host's unless it is given.
func (f *Fleet) Position(hostname string) (int, error) {
	if f.Ordinal >= 0 {
		return f.Ordinal, nil
	}
	if hostname == "" {
		hostname, _ = os.Hostname()
	}
	m := numberAtEnd.FindStringSubmatch(hostname)
	if m == nil {
		return 0, fmt.Errorf("not given, and the host's name, %q, has no number at its end, such as outbox-2: set it, or the environment "+
			"variable OUTBOX_FLEET_ORDINAL", hostname)
	}
	return strconv.Atoi(m[1])
}
