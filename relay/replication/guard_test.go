package replication

import (
	"errors"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/destinations"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay/polling"
)

func TestARelayOfTheTableIsRefusedWhileTheLogIsRead(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	logged, _ := db.source("d", Config{})
	s := acquire(t, logged)
	streaming(t, s)
	db.insert("1")
	ds := read(t, s, 1)
	testdb.Settle(t, s, &ds[0])

	table, err := polling.NewSnapshot(db.Config(), "d", polling.SnapshotConfig{})
	if err != nil {
		t.Fatal(err)
	}
	guarded := Guard(db.Config(), "d", table)
	if _, err := guarded.Acquire(t.Context()); !isReadFromLog(err) || !outbox.IsPermanent(err) {
		t.Fatalf("while the log is read: %v", err)
	}
	conn := db.Connect()
	abandon := destinations.HandoverOptions{Abandon: true}
	action := admin.Action{Actor: "test"}
	if err := destinations.Handover(t.Context(), conn, "d", destinations.ByTable, abandon, action); !errors.Is(err, admin.ErrInUse) {
		t.Fatalf("abandoned under its owner: %v", err)
	}
	if err := destinations.Handover(t.Context(), conn, "d", destinations.ByLog, abandon, action); err == nil {
		t.Fatal("the table was abandoned")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := guarded.Acquire(t.Context()); !isReadFromLog(err) {
		t.Fatalf("when nobody owns it: %v", err)
	}
	db.insert("2")
	await.Until(t, "the stream has ended", func() bool {
		return db.try("SELECT NOT active FROM pg_replication_slots WHERE slot_name = $1", logged.cfg.Slot)
	})
	if err := destinations.Handover(t.Context(), conn, "d", destinations.ByTable, abandon, action); err != nil {
		t.Fatal(err)
	}
	if n := db.Value("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); n != "0" {
		t.Errorf("%s slots are left", n)
	}
	owned, err := guarded.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// 1 may come again.
	got := texts(read(t, owned, 1))
	if got[0] == "1" {
		got = texts(read(t, owned, 1))
	}
	if got[0] != "2" {
		t.Errorf("read %q", got)
	}
	if err := owned.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// It stood by while another began to read the log.
func TestARelayOfTheTableThatStoodByIsRefusedWhenTheLogIsRead(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	logged, _ := db.source("d", Config{})
	s := acquire(t, logged) // the table is read yet
	cfg := polling.SnapshotConfig{}
	table, err := polling.NewSnapshot(db.Config(), "d", cfg)
	if err != nil {
		t.Fatal(err)
	}
	refusal := make(chan error, 1)
	go func() {
		owned, err := Guard(db.Config(), "d", table).Acquire(t.Context())
		if err == nil {
			_ = owned.Close(t.Context())
		}
		refusal <- err
	}()
	await.Until(t, "it stands by", func() bool {
		return db.try("SELECT count(*) > 1 FROM pg_stat_activity WHERE datname = current_database() AND " +
			"application_name LIKE 'outbox relay%' AND pid <> pg_backend_pid()")
	})
	streaming(t, s)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-refusal; !isReadFromLog(err) {
		t.Errorf("it took over: %v", err)
	}
	again, _ := db.source("d", Config{})
	if s := acquire(t, again); !s.isStreaming() {
		t.Error("the log is not read on")
	}
}

func isReadFromLog(err error) bool {
	return err != nil && strings.Contains(err.Error(), "is read from the write-ahead log")
}
