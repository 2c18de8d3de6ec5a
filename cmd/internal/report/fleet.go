package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/fleet"
	"github.com/pgoutbox/outbox/cmd/internal/fleet/home"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

// FleetPath is where a member tells of its fleet.
const FleetPath = "/api/v1/fleet"

// Fleet is who has what.
type Fleet struct {
	Name    string    `json:"name"`
	At      time.Time `json:"at"`
	Members []Member  `json:"members"`
	// Parts are the shard groups of destinations of all databases.
	Parts []FleetPart `json:"parts"`
	// Uneven is by how much the member that differs most is above or below its share by weight, as a fraction.
	Uneven float64 `json:"uneven"`
	// Frozen says why the placement is as it was: the home can't be read by the member that tells. "" if it can.
	Frozen string `json:"frozen,omitempty"`
	// Nobody are the databases with a part that no member has.
	Nobody []string `json:"nobody"`
	Moves  []Moved  `json:"moves"` // the last of each part, the latest first
}

// Member is a process of a fleet.
type Member struct {
	Name    string    `json:"name"`
	Ordinal *int      `json:"ordinal"` // nil: it is a spare
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Version string    `json:"version"`
	Weight  float64   `json:"weight"`
	State   string    `json:"state"`
	Since   time.Time `json:"since"`
	Beat    time.Time `json:"beat"`
	Cause   string    `json:"cause,omitempty"`
	First   int       `json:"first"`  // parts that are its own
	Second  int       `json:"second"` // parts that it takes over if another member is gone
	Share   float64   `json:"share"`  // First, of its share by weight: 1 is even
}

// States of members.
const (
	MemberRuns    = "runs"
	MemberSpare   = "spare" // it has no ordinal yet
	MemberLeaves  = "leaves"
	MemberStopped = "stopped" // its ordinal is kept for the one in its place
	MemberGone    = "gone"    // it is dead; its ordinal is kept as well
	MemberMissing = "missing" // its session has ended, and nobody has noted yet why
)

// FleetPart is who is to have a part, and who has taken it last.
type FleetPart struct {
	Database    string    `json:"database"`
	Destination string    `json:"destination"`
	Group       int       `json:"shard_group"`
	First       string    `json:"first"`  // "": nobody
	Second      string    `json:"second"` // "": nobody
	Has         string    `json:"has"`    // "": nobody has ever taken it
	Since       time.Time `json:"since,omitzero"`
	Moving      bool      `json:"moving"` // whoever has it is not its first choice
}

// Moved is a move of a part.
type Moved struct {
	Database    string    `json:"database"`
	Destination string    `json:"destination"`
	Group       int       `json:"shard_group"`
	From        string    `json:"from"`
	To          string    `json:"to"`
	At          time.Time `json:"at"`
	Cause       string    `json:"cause"`
}

// FleetOf tells of a fleet by what its home has, for the parts of a configuration.
func FleetOf(name string, state home.State, parts []fleet.Part) *Fleet {
	f := &Fleet{Name: name, At: state.At, Members: []Member{}, Parts: []FleetPart{}, Nobody: []string{}, Moves: []Moved{}}
	running, placement := state.Placement(parts)
	total := 0.0
	names := make(map[int]string)
	for _, m := range running {
		names[m.Ordinal] = m.Name
		if !m.Leaving {
			total += m.Weight
		}
	}
	first, second := make(map[string]int), make(map[string]int)
	last := make(map[fleet.Part]home.Moved)
	for _, m := range state.Moves {
		last[m.Part] = m
		f.Moves = append(f.Moves, Moved{m.Part.Database, m.Part.Destination, m.Part.Group, m.From, m.To, m.At, m.Cause})
	}
	for _, p := range parts {
		c := placement[p]
		has := last[p]
		part := FleetPart{Database: p.Database, Destination: p.Destination, Group: p.Group, First: names[c.First], Second: names[c.Second],
			Has: has.To, Since: has.At}
		if placement == nil {
			part.First, part.Second = "", ""
		}
		part.Moving = part.First != part.Has
		first[part.First]++
		second[part.Second]++
		if part.First == "" && !slices.Contains(f.Nobody, p.Database) {
			f.Nobody = append(f.Nobody, p.Database)
		}
		f.Parts = append(f.Parts, part)
	}
	for _, m := range state.Members {
		f.Members = append(f.Members, f.member(m, first[m.Name], second[m.Name], total, len(parts)))
	}
	return f
}

func (f *Fleet) member(m home.Member, first, second int, total float64, parts int) Member {
	found := Member{Name: m.Name, Host: m.Host, PID: m.PID, Version: m.Version, Weight: m.Weight, State: MemberRuns, Since: m.Joined,
		Beat: m.Beat, Cause: m.Cause}
	if m.Ordinal != fleet.Spare {
		found.Ordinal = &m.Ordinal
	}
	switch {
	case !m.Left.IsZero() && !m.Alive && m.Leaving:
		found.State = MemberStopped
	case !m.Left.IsZero() && !m.Alive:
		found.State = MemberGone
	case m.Leaving || !m.Left.IsZero():
		found.State = MemberLeaves
	case !m.Alive:
		found.State = MemberMissing
	case found.Ordinal == nil:
		found.State = MemberSpare
	default:
		found.First, found.Second = first, second
		if share := float64(parts) * m.Weight / total; share > 0 {
			found.Share = float64(first) / share
			f.Uneven = max(f.Uneven, math.Abs(found.Share-1))
		}
	}
	return found
}

// even is how much a member may differ from its share.
const even = 0.15

// Fault says what is wrong with the fleet, "" for nothing.
func (f *Fleet) Fault() string {
	var faults []string
	runs := 0
	for _, m := range f.Members {
		switch {
		case m.State == MemberRuns:
			runs++
		case m.State == MemberMissing || m.State == MemberGone:
			faults = append(faults, "member "+m.Name+" is gone"+withCause(m.Cause))
		}
	}
	if runs == 0 {
		faults = append(faults, "no member runs")
	}
	if n := len(f.Nobody); n > 0 {
		faults = append(faults, fmt.Sprintf("%s no member: %s%s", printed.Many(n, "database has", "databases have"),
			strings.Join(f.Nobody[:min(n, few)], ", "), more(n-few)))
	}
	if f.Frozen != "" {
		faults = append(faults, "the placement is frozen: "+f.Frozen)
	}
	return strings.Join(faults, "; ")
}

// few is how many names a sentence has.
const few = 5

func more(n int) string {
	if n <= 0 {
		return ""
	}
	return " and " + printed.Number(n) + " more"
}

func withCause(cause string) string {
	if cause == "" {
		return ""
	}
	return ": " + cause
}

// Moving counts the parts that are not where they are to be.
func (f *Fleet) Moving() (n int) {
	for _, p := range f.Parts {
		if p.Moving {
			n++
		}
	}
	return n
}

// Overview prints who is there, how even they are, and what moves.
func (f *Fleet) Overview(to output.Streams) error {
	databases := make(map[string]bool)
	for _, p := range f.Parts {
		databases[p.Database] = true
	}
	fmt.Fprintf(to.Stdout, "fleet %s: %s, %s of %s\n", output.Clean(f.Name), printed.Many(len(f.Members), "member", "members"),
		printed.Many(len(f.Parts), "part", "parts"), printed.Many(len(databases), "database", "databases"))
	if fault := f.Fault(); fault != "" {
		fmt.Fprintln(to.Stdout, output.Clean(fault))
	}
	switch n := f.Moving(); {
	case n > 0:
		fmt.Fprintf(to.Stdout, "%s: outbox fleet parts shows them\n",
			printed.Many(n, "part is not yet where it is to be", "parts are not yet where they are to be"))
	default:
		fmt.Fprintln(to.Stdout, "nothing moves")
	}
	if f.Uneven > even {
		fmt.Fprintf(to.Stdout, "uneven: a member has %.0f %% more or less than its share by weight\n", 100*f.Uneven)
	}
	if len(f.Members) > 0 {
		fmt.Fprintln(to.Stdout)
		t := output.NewTable(to.Stdout, "MEMBER", "ORDINAL", "STATE", "PARTS", "STANDS BY", "SHARE", "", "HOST", "VERSION", "SINCE",
			"BEAT", "CAUSE")
		for _, m := range f.Members {
			ordinal, share := "", ""
			if m.Ordinal != nil {
				ordinal = fmt.Sprint(*m.Ordinal)
			}
			if m.State == MemberRuns {
				share = fmt.Sprintf("%.0f %%", 100*m.Share)
			}
			t.Row(m.Name, ordinal, m.State, m.First, m.Second, share, bar(m.Share), m.Host, m.Version, printed.Ago(f.At, m.Since),
				printed.Ago(f.At, m.Beat), m.Cause)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(f.Moves) == 0 {
		return nil
	}
	fmt.Fprintln(to.Stdout, "\nlast moves:")
	return f.printMoves(to, f.Moves[:min(len(f.Moves), few)])
}

// bar draws a share: ten marks are an even one.
func bar(share float64) string {
	if share == 0 {
		return ""
	}
	return strings.Repeat("#", min(int(math.Round(10*share)), 20))
}

// PrintParts prints who has the parts, of a member or a database if one is given.
func (f *Fleet) PrintParts(to output.Streams, parts []FleetPart) error {
	t := output.NewTable(to.Stdout, "DATABASE", "DESTINATION", "GROUP", "HAS", "SINCE", "FIRST CHOICE", "SECOND CHOICE", "STATE")
	for _, p := range parts {
		state := "stays"
		switch {
		case p.First == "":
			state = "nobody is there for it"
		case p.Has == "":
			state = "is being taken"
		case p.Moving:
			state = "moves"
		}
		t.Row(p.Database, p.Destination, p.Group, p.Has, printed.Ago(f.At, p.Since), p.First, p.Second, state)
	}
	return t.Flush()
}

// PrintMoves prints the last moves.
func (f *Fleet) PrintMoves(to output.Streams, moves []Moved) error { return f.printMoves(to, moves) }

func (f *Fleet) printMoves(to output.Streams, moves []Moved) error {
	t := output.NewTable(to.Stdout, "WHEN", "DATABASE", "DESTINATION", "GROUP", "FROM", "TO", "WHY")
	for _, m := range moves {
		t.Row(printed.Ago(f.At, m.At), m.Database, m.Destination, m.Group, m.From, m.To, m.Cause)
	}
	return t.Flush()
}

// PartsOf are the parts of a member, that has them or is to, and of a database; "" selects all. Those that move come
// first.
func (f *Fleet) PartsOf(member, database string) []FleetPart {
	found := slices.DeleteFunc(slices.Clone(f.Parts), func(p FleetPart) bool {
		return member != "" && p.First != member && p.Has != member || database != "" && p.Database != database
	})
	slices.SortStableFunc(found, func(a, b FleetPart) int {
		return cmp.Compare(rank(a), rank(b))
	})
	return found
}

func rank(p FleetPart) int {
	switch {
	case p.First == "":
		return 0
	case p.Moving:
		return 1
	}
	return 2
}
