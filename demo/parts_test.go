package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

func TestAnotherDatabaseOfAServer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ given, want string }{
		{"postgres://me:p%40ss@host:5433/orders?sslmode=disable", "postgres://me:p%40ss@host:5433/x?sslmode=disable"},
		{"postgresql://host", "postgresql://host/x"},
		{"postgres://host/a?dbname=b&application_name=c", "postgres://host/x?application_name=c"},
		{"host=h user=me dbname=orders", "host=h user=me dbname=orders dbname=x"},
	} {
		if got := withDatabase(test.given, "x"); got != test.want {
			t.Errorf("withDatabase(%s) = %s, want %s", test.given, got, test.want)
		}
	}
}

func TestTheBookKnowsWhatWasOvertaken(t *testing.T) {
	t.Parallel()
	b := newBook(2)
	now := time.Now()
	var ids []check.ID
	for range 4 {
		id := check.ID{Key: 1, Seq: b.draw(1)}
		b.depart(id, departure{at: now.Add(-time.Minute), poison: id.Seq == 2})
		ids = append(ids, id)
	}
	if n := b.overtaken(now, time.Second); n != 0 {
		t.Errorf("%d overtaken while nothing has arrived", n)
	}
	passed := 0
	b.await(ids[1], func() { passed++ })
	if _, found := b.arrive(ids[2]); !found {
		t.Error("the third wasn't under way")
	}
	if n := b.overtaken(now, time.Second); n != 1 {
		t.Errorf("%d overtaken, want the first; the second is poison", n)
	}
	if n := b.overtaken(now, time.Hour); n != 0 {
		t.Errorf("%d overtaken for an hour", n)
	}
	b.arrive(ids[3])
	if passed != 1 {
		t.Errorf("told %d times that the order goes on", passed)
	}
	b.cancel(ids[0])
	if n := b.overtaken(now, time.Second); n != 0 {
		t.Errorf("%d overtaken after the first was cancelled", n)
	}
	if _, found := b.arrive(ids[3]); found {
		t.Error("the fourth arrived for the first time twice")
	}
	if _, found := b.arrive(check.ID{Key: 99, Seq: 1}); found {
		t.Error("an order that isn't there has an event under way")
	}
}

func TestThePacerKeepsTheRateAndMakesNothingUp(t *testing.T) {
	t.Parallel()
	var p pacer
	p.set(1000)
	began := time.Now()
	for range 50 {
		if !p.wait(t.Context()) {
			t.Fatal("it gave up")
		}
	}
	if took := time.Since(began); took < 45*time.Millisecond {
		t.Errorf("50 events at 1,000 a second took %v", took)
	}
	p.mu.Lock()
	p.next = time.Now().Add(-time.Hour)
	p.mu.Unlock()
	p.wait(t.Context())
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Until(p.next) < -time.Second {
		t.Error("an hour of events would be made up for")
	}
}

func TestLatenciesAreOfTheLastSeconds(t *testing.T) {
	t.Parallel()
	l := newLatency()
	l.record(time.Second, false)
	for range latencySeconds - 1 {
		l.turn()
		l.record(time.Millisecond, true)
	}
	if got := l.last(); got.Count != latencySeconds || got.P99 < 990*time.Millisecond {
		t.Errorf("the second is still among the last ones, and isn't in %+v", got)
	}
	l.turn()
	if got := l.last(); got.Count != latencySeconds-1 || got.P99 > 2*time.Millisecond {
		t.Errorf("the second has passed, and is in %+v", got)
	}
	all, calm := l.total()
	if all.Count != latencySeconds || calm.Count != latencySeconds-1 || all.Max < 990*time.Millisecond || calm.Max > 2*time.Millisecond {
		t.Errorf("all %+v, calm %+v", all, calm)
	}
}

func TestOldFoldersOfDeadDemosAreRemoved(t *testing.T) {
	base := t.TempDir()
	t.Setenv("TMPDIR", base)
	dead := filepath.Join(base, folderPrefix+"999999999-x")
	if err := os.Mkdir(dead, 0o700); err != nil {
		t.Fatal(err)
	}
	folder, err := newFolder()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); err == nil {
		t.Error("a dead demo's folder is still there")
	}
	if !strings.HasPrefix(folder, base) {
		t.Errorf("the folder is %s", folder)
	}
	if again, err := newFolder(); err != nil || again == folder {
		t.Errorf("a second folder: %s, %v", again, err)
	}
	if _, err := os.Stat(folder); err != nil {
		t.Error("a living demo's folder was removed")
	}
}
