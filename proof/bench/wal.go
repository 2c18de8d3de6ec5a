package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/proof/rig"
	"github.com/pgoutbox/outbox/relay/replication"
)

// slot is the name of one of this run's slots: no other run has a database of that name.
func (b *bed) slot(of string) string { return b.database + "_" + of }

// publicationSQL makes the publication that readers of the log read.
func publicationSQL() string {
	return mapping.CreatePublicationSQL("outbox", mapping.TableName{Schema: "outbox", Name: "messages"})
}

// prepareLog makes a slot that stands before what is written from now on. Contenders get copies of it.
func (b *bed) prepareLog(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, publicationSQL()); err != nil {
		return fmt.Errorf("make a publication: %w", err)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", b.slot("base")); err != nil {
		return fmt.Errorf("make a replication slot: %w", err)
	}
	return nil
}

// standBefore gives a contender a slot that stands before the backlog. A relay finds it as if it had read up to
// there.
func (b *bed) standBefore(ctx context.Context, conn *pgx.Conn, contender string) error {
	slot := b.slot(contender)
	if err := b.dropSlots(ctx, conn, slot); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_copy_logical_replication_slot($1, $2)", b.slot("base"), slot); err != nil {
		return fmt.Errorf("copy the replication slot: %w", err)
	}
	if contender == Pgoutput {
		return nil
	}
	version, err := replication.Publication(ctx, conn, "outbox")
	if err != nil {
		return err
	}
	for _, sql := range []string{
		`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier)
			SELECT '` + destination + `', 0, 1, s.system_identifier FROM pg_control_system() s`,
		`INSERT INTO outbox.slots (destination, slot, publication, publication_version, position, fallback, fallback_lsn)
			SELECT '` + destination + `', s.slot_name, 'outbox', '` + version + `', s.confirmed_flush_lsn, '1:1:', s.confirmed_flush_lsn
			FROM pg_replication_slots s WHERE s.slot_name = '` + slot + `'`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("place the relay before the backlog: %w", err)
		}
	}
	return nil
}

// dropSlots drops this run's slots whose names begin with prefix, when their readers have ended.
func (b *bed) dropSlots(ctx context.Context, conn *pgx.Conn, prefix string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		_, err := conn.Exec(ctx,
			"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE starts_with(slot_name, $1)", prefix)
		var busy *pgconn.PgError
		if err == nil || !errors.As(err, &busy) || busy.Code != "55006" {
			return err
		}
		if err := rig.Pause(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("drop a replication slot: %w", busy)
		}
	}
}

// leaveNoSlots drops those of the run's database, which keep it from being dropped. They can be from inside only.
func (b *bed) leaveNoSlots(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return b.dropSlots(ctx, conn, b.database)
}

// streams waits until the relay reads the log.
func streams(ctx context.Context, conn *pgx.Conn, p *process) error {
	for {
		var yes bool
		err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM outbox.slots WHERE position IS NOT NULL)").Scan(&yes)
		if yes || err != nil {
			return err
		}
		if err := p.ended(); err != nil {
			return err
		}
		if err := rig.Pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// runWAL is the floor of reading the log: pgoutput, decoded, into the pipe. It confirms nothing, knows no
// position, and stops at the first error.
func runWAL(ctx context.Context, o order, started func()) error {
	cfg, err := pgconn.ParseConfig(o.Database)
	if err != nil {
		return err
	}
	cfg.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if o.Slot == "" {
		o.Slot = "outbox_bench_floor"
		if _, err := conn.Exec(ctx, "CREATE_REPLICATION_SLOT "+
			o.Slot+" TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT").ReadAll(); err != nil {
			return err
		}
	}
	return runFloor(ctx, o, 0, started, func(out pipe, free chan *page) error {
		w := &walReader{ctx: ctx, conn: conn, free: free, out: out}
		return w.run("START_REPLICATION SLOT " + o.Slot + " LOGICAL 0/0 (proto_version '1', publication_names 'outbox', binary 'true')")
	})
}

type walReader struct {
	ctx  context.Context
	conn *pgconn.PgConn
	free chan *page
	out  pipe

	page             *page
	first            time.Time // row of the page
	sent             time.Time // the page before
	busy             bool      // rows come faster than they are worth a page each
	id, key, payload int       // columns
}

func (w *walReader) run(command string) (err error) {
	frontend := w.conn.Frontend()
	frontend.Send(&pgproto3.Query{String: command})
	if err := frontend.Flush(); err != nil {
		return err
	}
	stop := context.AfterFunc(w.ctx, func() { _ = w.conn.Conn().SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if w.page, err = take(w.ctx, w.free); err != nil {
		return err
	}
	for w.ctx.Err() == nil {
		deadline := time.Time{}
		if len(w.page.rows) > 0 && frontend.ReadBufferLen() == 0 {
			if !w.busy || time.Since(w.first) > time.Millisecond {
				if err := w.send(); err != nil {
					return err
				}
			} else {
				deadline = w.first.Add(time.Millisecond)
			}
		}
		if err := w.conn.Conn().SetReadDeadline(deadline); err != nil {
			return err
		}
		message, err := frontend.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return err
		}
		switch m := message.(type) {
		case *pgproto3.CopyData:
			err = w.data(m.Data)
		case *pgproto3.ErrorResponse:
			err = pgconn.ErrorResponseToPgError(m)
		}
		if err != nil {
			return err
		}
	}
	return w.ctx.Err()
}

func (w *walReader) send() (err error) {
	now := time.Now()
	w.busy = len(w.page.rows) > 8 || now.Sub(w.sent) < 150*time.Microsecond
	w.sent = now
	if err := w.out.send(w.ctx, w.page); err != nil {
		return err
	}
	w.page, err = take(w.ctx, w.free)
	return err
}

// data reads a message as far as a bare loop needs to.
func (w *walReader) data(b []byte) error {
	if len(b) == 18 && b[0] == 'k' && b[17] != 0 {
		answer := make([]byte, 34)
		answer[0] = 'r'
		frontend := w.conn.Frontend()
		frontend.Send(&pgproto3.CopyData{Data: answer})
		return frontend.Flush()
	}
	if len(b) < 26 || b[0] != 'w' {
		return nil
	}
	switch b = b[25:]; b[0] {
	case 'R':
		w.columns(b[5:])
	case 'I':
		return w.insert(b[6:])
	}
	return nil
}

// columns finds the wanted ones: names are texts that end with a zero.
func (w *walReader) columns(b []byte) {
	skip := func() string {
		i := slices.Index(b, 0)
		text := string(b[:i])
		b = b[i+1:]
		return text
	}
	skip()
	skip()
	n := int(binary.BigEndian.Uint16(b[1:]))
	b = b[3:]
	for i := range n {
		b = b[1:]
		switch skip() {
		case "message_id":
			w.id = i
		case "key":
			w.key = i
		case "payload":
			w.payload = i
		}
		b = b[8:]
	}
}

func (w *walReader) insert(b []byte) error {
	n := int(binary.BigEndian.Uint16(b))
	b = b[2:]
	var id, key, payload []byte
	for i := range n {
		format := b[0]
		b = b[1:]
		if format != 'b' && format != 't' {
			continue
		}
		size := binary.BigEndian.Uint32(b)
		value := b[4 : 4+size]
		b = b[4+size:]
		switch i {
		case w.id:
			id = value
		case w.key:
			key = value
		case w.payload:
			payload = value
		}
	}
	if len(w.page.rows) == 0 {
		w.first = time.Now()
	}
	if !w.page.add(id, key, payload) {
		if err := w.send(); err != nil {
			return err
		}
		w.first = time.Now()
		w.page.add(id, key, payload)
	}
	return nil
}
