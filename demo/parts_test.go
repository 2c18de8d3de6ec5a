package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

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

func TestTheKafkaProxyPutsItselfIntoEveryAddress(t *testing.T) {
	t.Parallel()
	p, err := startKafkaProxy([]string{"127.0.0.1:9092"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()

	metadata := kmsg.NewPtrMetadataResponse()
	for _, port := range []int32{9092, 9093} {
		broker := kmsg.NewMetadataResponseBroker()
		broker.NodeID, broker.Host, broker.Port = port, "kafka.example", port
		metadata.Brokers = append(metadata.Brokers, broker)
	}
	for _, version := range []int16{0, 4, 9, 12} {
		metadata.SetVersion(version)
		frame := []byte{0, 0, 0, 17}
		if metadata.IsFlexible() {
			frame = append(frame, 0)
		}
		header := len(frame)
		changed, err := p.translate(metadata.AppendTo(frame), &question{key: metadata.Key(), version: version})
		if err != nil {
			t.Fatal(err)
		}
		got := kmsg.NewPtrMetadataResponse()
		got.SetVersion(version)
		if err := got.ReadFrom(changed[header:]); err != nil {
			t.Fatal(err)
		}
		if len(got.Brokers) != 2 || got.Brokers[0].Port == got.Brokers[1].Port {
			t.Fatalf("version %d: %+v", version, got.Brokers)
		}
		for _, b := range got.Brokers {
			if b.Host != "127.0.0.1" || b.Port == b.NodeID {
				t.Errorf("version %d still names %s:%d", version, b.Host, b.Port)
			}
		}
		if changed[3] != 17 {
			t.Errorf("version %d: the correlation id is gone", version)
		}
	}

	if _, err := p.translate([]byte{0, 0, 0, 1, 0xff, 0xff}, &question{key: metadata.Key(), version: 12}); err == nil {
		t.Error("garbage was translated")
	}
	plain := []byte{0, 0, 0, 2, 1, 2, 3}
	if got, err := p.translate(plain, nil); err != nil || !slices.Equal(got, plain) {
		t.Errorf("a response without addresses became %v, %v", got, err)
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
