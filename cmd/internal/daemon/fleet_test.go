package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
)

// fleetRig is a fleet of Daemons in this process, which share an output.
type fleetRig struct {
	t         *testing.T
	out       *lines
	home      testdb.DB
	databases []testdb.DB
	section   config.Fleet
}

func newFleet(t *testing.T, databases int) *fleetRig {
	f := &fleetRig{t: t, out: &lines{came: make(chan struct{}, 1)}, home: installed(t), section: fields.Default[config.Fleet]()}
	f.section.Settle = time.Second
	for range databases {
		f.databases = append(f.databases, installed(t))
	}
	return f
}

// fleetMember is one Daemon of a fleet.
type fleetMember struct {
	*many
	name string
	end  func() // in good order
}

// join starts a member. address leads a database's address elsewhere.
func (f *fleetRig) join(name string, address func(*pgx.ConnConfig) *pgx.ConnConfig) *fleetMember {
	f.t.Helper()
	if address == nil {
		address = func(c *pgx.ConnConfig) *pgx.ConnConfig { return c }
	}
	var list []Database
	for i, db := range f.databases {
		list = append(list, from(fmt.Sprintf("db%02d", i), address(db.Config()), func(c *config.Config) {
			c.Name = name
			section := f.section
			c.Fleet = &section
			c.HTTP.API = false
		}))
	}
	m := &fleetMember{many: &many{t: f.t, out: f.out}, name: name}
	var err error
	m.d, err = New(list, Options{Several: true, Stdout: f.out, Home: address(f.home.Config()), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := m.d.Run(ctx); err != nil {
			f.t.Errorf("%s: %v", name, err)
		}
	}()
	m.end = func() {
		stop()
		<-ended
	}
	f.t.Cleanup(m.end)
	await.Until(f.t, name+" serves", func() bool { return m.d.handler.Load() != nil })
	return m
}

func (m *fleetMember) page() (p fleetPage) {
	m.t.Helper()
	_, text := m.get("/fleet")
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		m.t.Fatal(err, text)
	}
	return p
}

// settled waits until each database is delivered from by who is its first choice, and these are the given members.
func (f *fleetRig) settled(what string, members ...*fleetMember) {
	f.t.Helper()
	began := time.Now()
	await.UntilElse(f.t, func() bool {
		owned := make(map[string]int)
		for _, db := range f.databases {
			owned[db.Value(`SELECT coalesce((SELECT owner FROM outbox.cursors WHERE lease_until > clock_timestamp()), '')`)]++
		}
		sum := 0
		for _, m := range members {
			p := m.page()
			if p.First == 0 || p.Runs != p.First || owned[m.name] != p.First {
				return false
			}
			sum += p.First
		}
		return sum == len(f.databases)
	}, func() string {
		var pages []string
		for _, m := range members {
			pages = append(pages, fmt.Sprintf("%+v", m.page()))
		}
		var owners []string
		for _, db := range f.databases {
			owners = append(owners, db.Value(`SELECT coalesce((SELECT owner FROM outbox.cursors WHERE lease_until > clock_timestamp()), '')`))
		}
		return what + ":\n" + strings.Join(pages, "\n") + "\n" + strings.Join(owners, " ")
	})
	f.t.Logf("%s: after %v", what, time.Since(began).Round(time.Millisecond))
}

// Members share the databases evenly; one that comes or leaves moves its share alone, and everything is delivered.
func TestAFleetSharesItsDatabasesEvenly(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 12)
	one, two := f.join("one", nil), f.join("two", nil)
	f.settled("two members", one, two)
	three := f.join("three", nil)
	f.settled("a third", one, two, three)
	for _, m := range []*fleetMember{one, two, three} {
		if p := m.page(); p.First < 3 || p.First > 5 || p.Second < 2 {
			t.Errorf("%s has %d parts of %d, and is the second choice of %d", m.name, p.First, len(f.databases), p.Second)
		}
	}
	for i, db := range f.databases {
		one.send(db, fmt.Sprintf("first-%d", i))
	}
	two.end()
	f.settled("one has left", one, three)
	for i, db := range f.databases {
		one.send(db, fmt.Sprintf("second-%d", i))
	}
	again := f.join("two", nil)
	f.settled("it is back", one, again, three)
	if p := again.page(); p.Ordinal != two.page().Ordinal {
		t.Errorf("it has ordinal %d, and had %d", p.Ordinal, two.page().Ordinal)
	}
}
