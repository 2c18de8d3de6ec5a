package admin

import (
	"strings"
	"testing"
)

// Updates of published rows need a key, which a rebase makes.
func TestARebaseOfPublishedRowsThatAreThereTwiceSaysWhatToDo(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const row = `INSERT INTO outbox.messages (xid, id, message_id, topic, segment) VALUES ('90000000', 1, '00000000-0000-0000-0000-000000000001', 't', 0)`
	d.exec(row)
	d.exec(row)
	d.cursor("d", "-1 minute")
	_, err := Rebase(t.Context(), d.Conn, "d", Action{Actor: "me"})
	if err == nil || !strings.Contains(err.Error(), "ALTER PUBLICATION … SET (publish = 'insert, delete, truncate')") {
		t.Fatalf("got %v", err)
	}
	d.exec(`ALTER PUBLICATION everything SET (publish = 'insert, delete, truncate')`)
	if _, err := Rebase(t.Context(), d.Conn, "d", Action{Actor: "me"}); err != nil {
		t.Error(err)
	}
	if n := d.int(`SELECT count(*) FROM pg_class WHERE relname LIKE '%identity' OR relreplident = 'i'`); n != 0 {
		t.Errorf("%d indexes or settings are left", n)
	}
}
