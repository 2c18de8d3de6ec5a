package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// fleetRig is a fleet of Daemons in this process, which share an output.
type fleetRig struct {
	t         *testing.T
	out       *lines
	home      testdb.DB
	databases []testdb.DB
	section   config.Fleet
	noHome    bool
	standBy   time.Duration
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
	options := Options{Several: true, Stdout: f.out, standByEvery: f.standBy, Logger: slog.New(slog.DiscardHandler)}
	if !f.noHome {
		options.Home = address(f.home.Config())
	}
	var err error
	m.d, err = New(list, options)
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

// traffic writes messages of a few keys into each database of a fleet, and looks at what comes out.
type traffic struct {
	f    *fleetRig
	stop func() (written int)
}

// flow begins to write: each message has its database, its key and its number in the key as its topic.
func (f *fleetRig) flow(pause time.Duration) *traffic {
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	var written atomic.Int64
	for i, db := range f.databases {
		conn := db.Connect()
		writing.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_, err := conn.Exec(context.Background(), `INSERT INTO outbox.messages (topic, key, payload) VALUES ($1, $2, '{}')`,
					fmt.Sprintf("flow-%d-%d-%d", i, n%3, n/3), fmt.Sprintf("k%d", n%3))
				if err != nil {
					f.t.Error(err)
					return
				}
				written.Add(1)
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	tr := &traffic{f: f, stop: sync.OnceValue(func() int {
		cancel()
		writing.Wait()
		return int(written.Load())
	})}
	f.t.Cleanup(func() { tr.stop() })
	return tr
}

var flowed = regexp.MustCompile(`"flow-(\d+)-(\d+)-(\d+)"`)

// settle waits until all has come, and reports what is lost or inverted.
func (tr *traffic) settle() {
	t := tr.f.t
	t.Helper()
	written := tr.stop()
	came := func() (distinct, repeats, inverted int) {
		tr.f.out.mu.Lock()
		text := tr.f.out.text.String()
		tr.f.out.mu.Unlock()
		next := make(map[string]int) // of a key: the number that is to come for the first time
		for _, m := range flowed.FindAllStringSubmatch(text, -1) {
			n, _ := strconv.Atoi(m[3])
			lane := m[1] + "-" + m[2]
			switch {
			case n == next[lane]:
				next[lane]++
				distinct++
			case n < next[lane]:
				repeats++
			default:
				inverted++
				next[lane] = n + 1
			}
		}
		return distinct, repeats, inverted
	}
	await.UntilElse(t, func() bool { distinct, _, inverted := came(); return distinct+inverted >= written }, func() string {
		distinct, repeats, inverted := came()
		return fmt.Sprintf("%d written, %d came, %d repeats, %d out of order", written, distinct, repeats, inverted)
	})
	distinct, repeats, inverted := came()
	if distinct != written || inverted > 0 {
		t.Errorf("%d written, %d came, %d out of order", written, distinct, inverted)
	}
	t.Logf("%d written, none lost, none out of order, %d repeats", written, repeats)
}

// epochs is how often each database's cursor has been taken.
func (f *fleetRig) epochs() (list []int) {
	for _, db := range f.databases {
		n, err := strconv.Atoi(db.Value(`SELECT coalesce(max(epoch), 0) FROM outbox.cursors`))
		if err != nil {
			f.t.Fatal(err)
		}
		list = append(list, n)
	}
	return list
}

// While all members are replaced, one after the other, nothing is lost or inverted, and no part moves more than twice.
func TestARollingRestartMovesEachPartTwiceAtMost(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 9)
	members := []*fleetMember{f.join("one", nil), f.join("two", nil), f.join("three", nil)}
	f.settled("three members", members...)
	tr := f.flow(10 * time.Millisecond)
	before := f.epochs()
	for i, m := range members {
		m.end()
		members[i] = f.join(m.name, nil)
		f.settled(m.name+" is back", members...)
	}
	after := f.epochs()
	tr.settle()
	moves := 0
	for i := range after {
		if n := after[i] - before[i]; n > 2 {
			t.Errorf("part %d has moved %d times", i, n)
		}
		moves += after[i] - before[i]
	}
	t.Logf("%d moves of %d parts", moves, len(after))
	if moves > 2*len(after) {
		t.Errorf("%d moves of %d parts", moves, len(after))
	}
}

// New processes with new names take the places of those that leave.
func TestNewNamesTakeThePlacesOfThoseThatLeave(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 6)
	f.section.Settle = time.Hour // a new one takes no new ordinal
	members := []*fleetMember{f.join("a-1", nil), f.join("a-2", nil)}
	f.settled("two members", members...)
	tr := f.flow(10 * time.Millisecond)
	before := f.epochs()
	for i := range members {
		next := f.join(fmt.Sprintf("b-%d", i+1), nil)
		await.Until(t, "the new one is a spare", func() bool { return len(next.page().Members) == 2 })
		if p := next.page(); p.First != 0 || p.Ordinal != -1 {
			t.Errorf("a spare has parts: %+v", p)
		}
		ordinal := members[i].page().Ordinal
		members[i].end()
		members[i] = next
		f.settled("another is in its place", members...)
		if now := next.page().Ordinal; now != ordinal {
			t.Errorf("it has ordinal %d in place of %d", now, ordinal)
		}
	}
	after := f.epochs()
	tr.settle()
	for i := range after {
		if n := after[i] - before[i]; n > 2 {
			t.Errorf("part %d has moved %d times", i, n)
		}
	}
	t.Logf("epochs before %v, after %v", before, after)
}

// A member that is cut off from everything is replaced, and has its share again when it is back. One that is cut off
// from the home alone goes on, and so do all while the home is away.
func TestMembersAndTheHomeMayGoAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 6)
	all, _ := testnet.Before(t, f.home.Config())
	homes, _ := testnet.Before(t, f.home.Config())
	through := func(p *testnet.Proxy) func(*pgx.ConnConfig) *pgx.ConnConfig {
		return func(c *pgx.ConnConfig) *pgx.ConnConfig { return p.Database(t, c) }
	}
	homeOnly := func(c *pgx.ConnConfig) *pgx.ConnConfig {
		if c.Database == f.home.Config().Database {
			return homes.Database(t, c)
		}
		return c
	}
	one, two, three := f.join("one", homeOnly), f.join("two", through(all)), f.join("three", homeOnly)
	f.settled("three members", one, two, three)
	tr := f.flow(10 * time.Millisecond)
	time.Sleep(6 * time.Second) // the members believe in each other's sessions only then: fleet.Config.Return

	all.Refuse(true)
	all.Cut()
	f.settled("one is dead", one, three)
	all.Refuse(false)
	f.settled("it is back", one, two, three)

	before := f.epochs()
	homes.Refuse(true)
	homes.Cut()
	await.Until(t, "two are frozen", func() bool { return one.page().Frozen != "" && three.page().Frozen != "" })
	for i, db := range f.databases {
		one.send(db, fmt.Sprintf("frozen-%d", i))
	}
	homes.Refuse(false)
	f.settled("the home is back", one, two, three)
	if after := f.epochs(); !slices.Equal(before, after) {
		t.Errorf("parts have moved while the home was away: %v, %v", before, after)
	}
	tr.settle()
}

// Without a home, ordinals say who is the first choice; a second one stands by on the lock, and gives the part back.
func TestWithoutAHomeOrdinalsPlaceTheParts(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 6)
	f.section.Count = 3
	f.noHome = true
	members := make([]*fleetMember, 3)
	for i := range members {
		f.section.Ordinal = i
		members[i] = f.join(fmt.Sprintf("m-%d", i), nil)
	}
	owners := func() map[string]int {
		owned := make(map[string]int)
		for _, db := range f.databases {
			owned[db.Value(`SELECT coalesce((SELECT owner FROM outbox.cursors WHERE lease_until > clock_timestamp()), '')`)]++
		}
		return owned
	}
	shared := func() bool {
		owned := owners()
		for _, m := range members {
			if owned[m.name] == 0 || owned[m.name] != m.page().First {
				return false
			}
		}
		return true
	}
	await.Until(t, "each has what it is the first choice of", shared)
	tr := f.flow(10 * time.Millisecond)
	members[1].end()
	await.Until(t, "the second choices have its parts", func() bool { o := owners(); return o["m-0"]+o["m-2"] == len(f.databases) })
	f.section.Ordinal = 1
	members[1] = f.join("m-1", nil)
	await.Until(t, "it has them back", shared)
	tr.settle()
}

// A part whose first choice lives and can't reach the database is delivered by its second choice meanwhile.
func TestTheSecondChoiceDeliversWhatTheFirstCannotReach(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	f.standBy = 300 * time.Millisecond
	proxies := make(map[string]*testnet.Proxy)
	for _, db := range f.databases {
		proxies[db.Config().Database], _ = testnet.Before(t, db.Config())
	}
	cut := func(c *pgx.ConnConfig) *pgx.ConnConfig {
		if p := proxies[c.Database]; p != nil {
			return p.Database(t, c)
		}
		return c
	}
	one, two := f.join("one", cut), f.join("two", nil)
	f.settled("two members", one, two)
	tr := f.flow(20 * time.Millisecond)
	for _, p := range proxies {
		p.Refuse(true)
		p.Cut()
	}
	owner := `SELECT coalesce((SELECT owner FROM outbox.cursors WHERE lease_until > clock_timestamp()), '')`
	await.Until(t, "the other one has both", func() bool {
		return f.databases[0].Value(owner) == "two" && f.databases[1].Value(owner) == "two"
	})
	if p := one.page(); p.First == 0 {
		t.Errorf("it is not the first choice of any: %+v", p)
	}
	for _, p := range proxies {
		p.Refuse(false)
	}
	f.settled("it has its part back", one, two)
	tr.settle()
}
