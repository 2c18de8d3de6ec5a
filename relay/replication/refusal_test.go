package replication

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/internal/wal"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/pgoutbox/outbox/schema"
)

// refused makes sure that a source tells why, for good, and gives back what it had taken.
func refused(t *testing.T, s *Source, want string, words ...string) {
	t.Helper()
	ctx := await.Context(t)
	if err := s.Probe(ctx); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a probe finds %v, want %q", err, want)
	}
	session, err := s.Acquire(ctx)
	if err == nil {
		_ = session.Close(ctx)
		t.Fatal("it was acquired")
	}
	if !strings.Contains(err.Error(), want) || !outbox.IsPermanent(err) {
		t.Errorf("the error is %v, want a permanent one that says %q", err, want)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error doesn't say %q: %v", word, err)
		}
	}
}

// The server may have room for one stream.
func TestASecondRunIsRefusedThoughTheServerIsOutOfReach(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	source, _ := db.source("d", Config{})
	var full atomic.Bool
	before := source.conn.DialFunc
	source.conn.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if full.Load() {
			return nil, errors.New("no room")
		}
		return before(ctx, network, addr)
	}
	streaming(t, acquire(t, source))
	full.Store(true)
	r, err := relay.New(source, relaytest.NewMemory(), relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := await.Context(t)
	if err := r.Run(ctx); !errors.Is(err, relay.ErrActive) {
		t.Errorf("Run: %v, want ErrActive", err)
	}
}

func TestARelayWithoutRightsIsToldWhichGrantItNeeds(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	role, conn := db.login("relay")
	table, err := polling.NewSnapshot(conn.Config(), "d", polling.SnapshotConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]relay.Source{"table": table, "guarded": Guard(conn.Config(), "d", table)} {
		_, err := source.Acquire(t.Context())
		if !errors.Is(err, schema.ErrForbidden) || !strings.HasSuffix(err.Error(), "migrate grants --apply --relay "+role) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAServerThatDoesNotLogEnoughIsRefused(t *testing.T) {
	t.Parallel()
	db, _ := alone(t, servers.PostgresConfig{Settings: map[string]string{"wal_level": "replica"}})
	s, _ := db.source("d", Config{})
	refused(t, s, "wal_level is not logical", "ALTER SYSTEM SET wal_level = logical", "snapshot")
}

func TestAServerWithoutAFreeSlotIsRefused(t *testing.T) {
	t.Parallel()
	db, _ := alone(t, servers.PostgresConfig{Settings: map[string]string{"max_replication_slots": "1"}})
	db.Exec("SELECT pg_create_physical_replication_slot('other')")
	s, _ := db.source("d", Config{})
	refused(t, s, "all replication slots are in use", "max_replication_slots")
	db.Exec("SELECT pg_drop_replication_slot('other')")
	streaming(t, acquire(t, s)) // nothing was left behind
	db.DropSlots()
}

func TestAStandbyIsRefused(t *testing.T) {
	t.Parallel()
	_, primary := alone(t)
	standby := servers.OwnStandby(t, primary)
	s, _ := database{testdb.DB{T: t, URL: standby.URL("postgres")}}.source("d", Config{})
	refused(t, s, cursors.ErrStandby.Error(), "primary")
}

func TestARoleThatMayNotReplicateOrPublishIsRefused(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	role := "relay_" + db.Value("SELECT current_database()::text")
	db.Exec("CREATE ROLE " + role + " LOGIN")
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), db.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer dial.HangUp(conn)
		_, _ = conn.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
	})
	db.Exec(schema.Grants("", role, ""))
	source := func() *Source {
		s, _ := db.source("d", Config{})
		s.conn.User = role
		table := s.conn.Copy()
		var err error
		if s.table, err = polling.NewSnapshot(table, "d", s.cfg.Table); err != nil {
			t.Fatal(err)
		}
		return s
	}
	refused(t, source(), "the role has no right to replicate", "ALTER ROLE", role, "REPLICATION")
	db.Exec("ALTER ROLE " + role + " REPLICATION")
	refused(t, source(), "the publication ", publicationSQL("outbox"))
	db.Exec(publicationSQL("outbox"))

	// That is all it needs.
	s := acquire(t, source())
	streaming(t, s)
	db.insert("1")
	ds := read(t, s, 1)
	testdb.Settle(t, s, &ds[0])
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAPublicationThatWouldLeaveMessagesOutIsRefused(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]string{
		"updates": "FOR TABLE outbox.messages WITH (publish = 'update', publish_via_partition_root = true)",
		"leaves":  "FOR TABLE outbox.messages WITH (publish = 'insert')",
		"other":   "FOR TABLE outbox.audit WITH (publish_via_partition_root = true)",
		"filter":  "FOR TABLE outbox.messages WHERE (topic = 'x') WITH (publish = 'insert', publish_via_partition_root = true)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Exec("CREATE PUBLICATION mine " + with)
			s, _ := db.source("d", Config{Publication: "mine"})
			refused(t, s, "the publication ", "CREATE PUBLICATION")
		})
	}
}

func TestASlotOfAnotherPluginIsLeftAlone(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	s, _ := db.source("d", Config{})
	db.Exec("SELECT pg_create_logical_replication_slot($1, 'test_decoding')", s.cfg.Slot)
	refused(t, s, "belongs to something else", "test_decoding")
	if n := db.Value("SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", s.cfg.Slot); n != "1" {
		t.Error("it was dropped")
	}
}

func TestShardGroupsAndBadNamesAreRefusedBeforeAnythingElse(t *testing.T) {
	t.Parallel()
	cfg := Config{Slot: "Not A Slot", Publication: `a"b`, CatchUp: 1, Emitted: true}
	cfg.Table.Groups = 4
	conn, err := pgx.ParseConfig("postgres://127.0.0.1:1/x")
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(conn, "d", cfg)
	for _, word := range []string{"shard groups", "Not A Slot", `a\"b`, "in the log alone"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%q is missing in %v", word, err)
		}
	}
}

// Slots are the server's, and a destination of another database may have one of the same name.
func TestASlotOfAnotherDatabaseOrDestinationIsRefusedByName(t *testing.T) {
	t.Parallel()
	db, second := newDatabase(t), newDatabase(t)
	slot := "shared_" + db.Value("SELECT oid FROM pg_database WHERE datname = current_database()")
	first, _ := db.source("d", Config{Slot: slot})
	s := acquire(t, first)
	streaming(t, s)
	other, _ := second.source("d", Config{Slot: slot})
	refused(t, other, "belongs to database", db.Config().Database)
	beside, _ := db.source("e", Config{Slot: slot})
	refused(t, beside, "belongs to destination d", "outbox destinations drop d")
	db.insert("1")
	if one(t, s) != "1" || db.Value("SELECT count(*) FROM outbox.slots") != "1" {
		t.Error("the first one was disturbed")
	}
	// A reader that is not in outbox.slots, as one of a mapped table.
	conn := db.Connect()
	err := wal.Server{Conn: db.Config(), Name: "another"}.Evict(t.Context(), conn, slot)
	if err == nil || !strings.Contains(err.Error(), "reads nothing for") {
		t.Errorf("a stream of another destination: %v", err)
	}
}
