package destinations

import (
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/admin"
)

// Updates of published rows need a key, which a rebase makes.
func TestARebaseOfPublishedRowsThatAreThereTwiceSaysWhatToDo(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const row = `INSERT INTO outbox.messages (xid, id, message_id, topic, segment) VALUES ('90000000', 1, '00000000-0000-0000-0000-000000000001', 't', 0)`
	d.MustExec(row)
	d.MustExec(row)
	d.Cursor("d", "-1 minute")
	_, err := Rebase(t.Context(), d.Conn, "d", admin.Action{Actor: "me"})
	if err == nil || !strings.Contains(err.Error(), "ALTER PUBLICATION … SET (publish = 'insert, delete, truncate')") {
		t.Fatalf("got %v", err)
	}
	d.MustExec(`ALTER PUBLICATION everything SET (publish = 'insert, delete, truncate')`)
	if _, err := Rebase(t.Context(), d.Conn, "d", admin.Action{Actor: "me"}); err != nil {
		t.Error(err)
	}
	if n := d.Int(`SELECT count(*) FROM pg_class WHERE relname LIKE '%identity' OR relreplident = 'i'`); n != 0 {
		t.Errorf("%d indexes or settings are left", n)
	}
}

// A rebase leaves the replica identities of segments as they were.
func TestARebaseRestoresReplicaIdentities(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.MustExec(`ALTER TABLE outbox.messages_0 REPLICA IDENTITY NOTHING; ALTER TABLE outbox.messages_1 REPLICA IDENTITY FULL`)
	d.MustExec(`INSERT INTO outbox.messages (xid, id, topic, segment) SELECT '90000000', i, 't', i - 1 FROM generate_series(1, 3) i`)
	d.Cursor("d", "-1 minute")
	if _, err := Rebase(t.Context(), d.Conn, "d", admin.Action{Actor: "me"}); err != nil {
		t.Fatal(err)
	}
	var got string
	err := d.QueryRow(t.Context(), `SELECT string_agg(relreplident::text, '' ORDER BY relname) FROM pg_class
		WHERE oid IN ('outbox.messages_0'::regclass, 'outbox.messages_1'::regclass, 'outbox.messages_2'::regclass)`).Scan(&got)
	if err != nil || got != "nfd" {
		t.Errorf("the replica identities are %q, want nfd: %v", got, err)
	}
}
