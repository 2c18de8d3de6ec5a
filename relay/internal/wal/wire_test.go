package wal

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testdb"
)

// starved returns from its writes when the answer is there and was not read: as where the CPU is taken away between the
// system call and the return. pgx then reads in the background.
type starved struct {
	net.Conn
	late bool
}

func (c *starved) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.late {
		time.Sleep(40 * time.Millisecond) // longer than the 15 ms that pgx lets a write take
	}
	return n, err
}

func TestAConnectionThatIsReadInTheBackgroundCanBeTakenOver(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE TABLE events (id bigint)`)
	slot := "wire_" + db.Value("SELECT current_database()::text")
	t.Cleanup(func() { db.DropSlots() })
	server := Server{db.Config(), "d"}
	line := &starved{late: true}
	server.Conn.DialFunc = func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		line.Conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return line, err
	}
	conn, err := server.ConnectWAL(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := takeOver(conn)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	line.late = false
	db.Exec(`CREATE PUBLICATION taken FOR TABLE events`)
	db.Exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	if err := w.begin(t.Context(), "START_REPLICATION SLOT "+
		slot+" LOGICAL 0/0 (proto_version '1', publication_names 'taken')"); err != nil {
		t.Fatal(err)
	}
	// It streams, and a deadline that passes leaves it as it was.
	for w.fill(t.Context(), time.Now().Add(time.Millisecond)) != errTick {
		for _, _, ok := w.frame(); ok; _, _, ok = w.frame() {
		}
	}
	db.Exec(`INSERT INTO events VALUES (1)`)
	for {
		typ, _, ok := w.frame()
		if ok && typ == 'd' {
			return
		}
		if !ok {
			if err := w.fill(t.Context(), time.Now().Add(await.Patience)); err != nil {
				t.Fatal(err)
			}
		}
	}
}
