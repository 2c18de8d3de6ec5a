package home

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/fleet"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/internal/testnet"
)

func TestMain(m *testing.M) { servers.Main(m) }

// seat is a member under test.
type seat struct {
	t     *testing.T
	name  string
	home  *Home
	proxy *testnet.Proxy
	end   func()

	mu   sync.Mutex
	news News
	seen []string // its placements, as they changed
}

// sit starts a member that has ten parts, behind a proxy of its own.
func sit(t *testing.T, db testdb.DB, name string, returns time.Duration) *seat {
	t.Helper()
	s := &seat{t: t, name: name}
	var address *pgx.ConnConfig
	s.proxy, address = testnet.Before(t, db.Config())
	var parts []fleet.Part
	for i := range 10 {
		parts = append(parts, fleet.Part{Database: strconv.Itoa(i), Destination: "all"})
	}
	s.home = New(Config{
		Config: fleet.Config{Name: name, Instance: db.Value(`SELECT gen_random_uuid()::text`), Ordinal: fleet.Spare, Settle: time.Second,
			Return: returns},
		Conn: address, Fleet: "f", Version: "test",
		Parts: func() []fleet.Part { return parts }, Holds: func() []fleet.Part { return nil },
		Changed: s.changed, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.home.Run(ctx)
	}()
	s.end = func() {
		stop()
		<-ended
	}
	t.Cleanup(s.end)
	return s
}

func (s *seat) changed(n News) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.news = n
	now := fmt.Sprint(n.Members)
	if len(s.seen) == 0 || s.seen[len(s.seen)-1] != now {
		s.seen = append(s.seen, now)
	}
}

func (s *seat) now() News {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.news
}

// share waits until the seats have all parts among them.
func share(t *testing.T, what string, seats ...*seat) {
	t.Helper()
	await.UntilElse(t, func() bool {
		sum := 0
		for _, s := range seats {
			n := s.now()
			if n.Frozen != "" || len(n.Run) == 0 {
				return false
			}
			sum += len(n.Run)
		}
		return sum == 10
	}, func() string {
		text := what
		for _, s := range seats {
			text += fmt.Sprintf("\n%s: %+v", s.name, s.now())
		}
		return text
	})
}

func TestTheEndOfAMembersSessionIsSeenAtOnce(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	seats := []*seat{sit(t, db, "a", time.Millisecond), sit(t, db, "b", time.Millisecond), sit(t, db, "c", time.Millisecond)}
	share(t, "three share", seats...)
	var slowest time.Duration
	for range 5 {
		time.Sleep(100 * time.Millisecond) // so that the moment within a wait differs
		seats[1].proxy.Refuse(true)
		began := time.Now()
		seats[1].proxy.Cut()
		share(t, "two share", seats[0], seats[2])
		slowest = max(slowest, time.Since(began))
		if n := seats[1].now(); len(n.Run) == 0 {
			t.Errorf("the one that is cut off gives up what it has: %+v", n)
		}
		seats[1].proxy.Refuse(false)
		share(t, "it is back", seats...)
	}
	t.Logf("seen after at most %v", slowest)
	if slowest > 5*time.Second { // a look alone would see it, too; a mutant shows that a lock is waited for
		t.Errorf("seen after %v", slowest)
	}
	if cause := db.Value(`SELECT count(*) FROM outbox.members WHERE ordinal IS NOT NULL`); cause != "3" {
		t.Errorf("%s ordinals", cause)
	}
}

// The watch sees the end of a session while nobody looks: the lock is what tells.
func TestAWatcherWaitsForTheLock(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	cfg := &Config{Config: fleet.Config{Name: "a", Instance: db.Value(`SELECT gen_random_uuid()::text`)}, Conn: db.Config(), Fleet: "f"}
	s, err := open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{cfg: &Config{Config: fleet.Config{Name: "b"}, Conn: db.Config(), Fleet: "f"}}
	defer w.close()
	if free, err := w.wait(t.Context(), s.table, s.lock); free || err != nil {
		t.Fatalf("while the session lives: %v, %v", free, err)
	}
	waited := make(chan error, 1)
	go func() {
		for {
			free, err := w.wait(t.Context(), s.table, s.lock)
			if free || err != nil {
				waited <- err
				return
			}
		}
	}()
	db.Await(`SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database
		WHERE datname = current_database()))`)
	_ = s.pg.Close(context.Background()) // as the kernel does for one that is killed
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
}

func TestAMemberThatIsSilentLosesItsPartsAndHasThemBackLater(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	one, two := sit(t, db, "a", 0), sit(t, db, "b", 0)
	share(t, "two share", one, two)
	ordinal := two.now().Ordinal
	if err := two.proxy.Freeze(); err != nil {
		t.Fatal(err)
	}
	share(t, "the other one has all", one)
	if cause := db.Value(`SELECT cause FROM outbox.members WHERE name = 'b'`); cause != "it is silent" {
		t.Errorf("it is gone since %q", cause)
	}
	if err := two.proxy.Thaw(); err != nil {
		t.Fatal(err)
	}
	share(t, "it has come back", one, two)
	if now := two.now().Ordinal; now != ordinal {
		t.Errorf("it has ordinal %d, and had %d", now, ordinal)
	}
}

func TestWhileTheHomeIsAwayThePlacementStaysAsItIs(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	seats := []*seat{sit(t, db, "a", 0), sit(t, db, "b", 0), sit(t, db, "c", 0)}
	share(t, "three share", seats...)
	var before []string
	for _, s := range seats {
		before = append(before, fmt.Sprint(s.now().Run))
		s.mu.Lock()
		s.seen = nil
		s.mu.Unlock()
	}
	for _, s := range seats {
		s.proxy.Refuse(true)
	}
	db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'outbox fleet%'`)
	for i, s := range seats {
		await.Until(t, "it is frozen", func() bool { n := s.now(); return n.Frozen != "" && n.Err != nil })
		if now := fmt.Sprint(s.now().Run); now != before[i] {
			t.Errorf("%s runs %s, and ran %s", s.name, now, before[i])
		}
	}
	for _, s := range seats {
		s.proxy.Refuse(false)
	}
	share(t, "it is back", seats...)
	time.Sleep(2 * lookEvery) // what would move, moves by now
	for i, s := range seats {
		if now := fmt.Sprint(s.now().Run); now != before[i] {
			t.Errorf("after the home is back, %s runs %s, and ran %s", s.name, now, before[i])
		}
		s.mu.Lock()
		if len(s.seen) != 1 {
			t.Errorf("%s has seen other members: %v", s.name, s.seen)
		}
		s.mu.Unlock()
	}
}

func TestOneOfTwoThatClaimAnOrdinalHasIt(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	var sessions []*session
	for _, name := range []string{"a", "b", "gone"} {
		cfg := fleet.Config{Name: name, Instance: db.Value(`SELECT gen_random_uuid()::text`)}
		s, err := open(t.Context(), &Config{Config: cfg, Conn: db.Config(), Fleet: "f"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.join(t.Context()); err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, s)
		defer s.pg.Close(context.Background())
	}
	gone := sessions[2]
	if _, err := gone.claim(t.Context(), fleet.Claim{Ordinal: 0}); err != nil {
		t.Fatal(err)
	}
	both := func(c fleet.Claim) {
		t.Helper()
		var claiming sync.WaitGroup
		for _, s := range sessions[:2] {
			claiming.Go(func() {
				if _, err := s.claim(t.Context(), c); err != nil {
					t.Error(err)
				}
			})
		}
		claiming.Wait()
	}
	owners := `SELECT coalesce(string_agg(name, ' ' ORDER BY ordinal), 'nobody') FROM outbox.members WHERE ordinal IS NOT NULL`
	both(fleet.Claim{Ordinal: 0, From: gone.cfg.Instance})
	if got := db.Value(owners); got != "gone" {
		t.Fatalf("the ordinal of one that lives was taken by %s", got)
	}
	if _, err := gone.leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	both(fleet.Claim{Ordinal: 0, From: gone.cfg.Instance})
	if got := db.Value(owners); got != "a" && got != "b" {
		t.Errorf("ordinal 0 is of %s", got)
	}
	if got := db.Value(`SELECT count(*) FROM outbox.members WHERE ordinal IS NULL`); got != "2" {
		t.Errorf("%s spares, want the one that was late and the one that has left", got)
	}
}

func TestALiveNamesakeIsRefused(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	one := sit(t, db, "a", 0)
	share(t, "it has all", one)
	other := sit(t, db, "a", 0)
	await.Until(t, "the other one knows what it has", func() bool {
		n := other.now()
		return n.Err != nil || len(n.Run) > 0
	})
	if n := other.now(); !errors.Is(n.Err, ErrNamesake) || len(n.Run) > 0 || n.Frozen == "" {
		t.Fatalf("it has joined: %+v", n)
	}
	one.end()
	share(t, "it has its place", other)
}

func TestAHomeWithoutTheSchemaSaysWhatToDo(t *testing.T) {
	t.Parallel()
	address, err := pgx.ParseConfig(servers.TestDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg := fleet.Config{Name: "a", Instance: "00000000-0000-0000-0000-000000000000"}
	_, err = open(t.Context(), &Config{Config: cfg, Conn: address, Fleet: "f"})
	if err == nil || !strings.Contains(err.Error(), "outbox migrate up") {
		t.Error(err)
	}
}
