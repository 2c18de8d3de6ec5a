package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
)

// ownTables are tables whose rows are marked in each of the ways, with how the relay reads them.
var ownTables = map[string]struct{ ddl, source string }{
	"timestamp": {
		"CREATE TABLE own (id uuid PRIMARY KEY, seq bigserial, key text, body jsonb, extra jsonb, sort text, sent_at timestamptz)",
		`{strategy: advisory, table: own, order: seq, columns: {id: id, topic: "shop.{sort}", key: "{key}", payload: body, headers: extra,
		  event_type: sort, header_columns: [seq=seq]}, done: {how: timestamp, column: sent_at}}`,
	},
	"status": {
		`CREATE TABLE own (id bigserial PRIMARY KEY, key text, body jsonb, extra json, sort text, state text NOT NULL DEFAULT 'new',
		  since timestamptz, sent_at timestamptz)`,
		`{strategy: lease, table: own, columns: {id: id, topic: "shop.{sort}", key: "{key}", payload: body, headers: extra, event_type: sort},
		  done: {how: status, column: state, waiting: new, value: sent, at: sent_at}, claim: {status: busy, since: since}}`,
	},
	"delete": {
		"CREATE TABLE own (id bigserial PRIMARY KEY, key text, body jsonb, extra jsonb, sort text)",
		`{strategy: skiplocked, table: own, columns: {id: id, topic: "shop.{sort}", key: "{key}", payload: body, headers: extra, event_type: sort},
		  done: {how: delete}, rows_may_be_deleted: true}`,
	},
}

// TestATableIsLeftForTheDefaultOneWhileItIsWritten: writers never stop, and change from the table to the outbox one
// after the other. Everything arrives once, and each key in order.
func TestATableIsLeftForTheDefaultOneWhileItIsWritten(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for how, own := range ownTables {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := setup(t)
			d.exec(own.ddl)
			d.exec("CREATE TABLE keys (key text PRIMARY KEY, seq int NOT NULL DEFAULT 0)")
			const keys, writers = 8, 4
			d.exec("INSERT INTO keys SELECT 'k' || n FROM generate_series(1, $1::int) n", keys)

			var direct [writers]atomic.Bool // whether a writer writes to the outbox
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			for w := range writers {
				running.Go(func() { d.writeOwn(ctx, w, keys, &direct[w]) })
			}
			written := func() (n int) { return d.int("SELECT sum(seq) FROM keys") }
			more := func(n int) {
				t.Helper()
				n += written()
				until(t, "writers write", func() bool { return written() >= n })
			}
			file := filepath.Join(d.folder, "events.jsonl") // of all relays, one after the other
			start := func(source string) *process {
				t.Helper()
				name := "new"
				if source != "" {
					name, source = "own", "\n    source: "+source
				}
				yaml := fmt.Sprintf("http: {listen: ''}\ndestinations:\n  - name: %s%s\n    lease: 30s\n    broker: {file: {path: %s}}\n",
					name, source, file)
				if err := os.WriteFile(filepath.Join(d.folder, "outbox.yaml"), []byte(yaml), 0o600); err != nil {
					t.Fatal(err)
				}
				return d.start(nil, "relay")
			}
			stopped := func(p *process) {
				t.Helper()
				if code := p.stop(); code != exitOK {
					t.Errorf("exit code %d", code)
				}
			}
			from := func(args ...string) result {
				return d.outbox(append([]string{"migrate", "from", "--table", "own"}, args...)...)
			}
			old := start(own.source)
			more(100)
			from().want(exitOK, "as destination own does", "CREATE OR REPLACE TRIGGER", "rows wait now")
			from("--step", "2").want(exitError, "run step 1 first")
			from("--step", "1").want(exitOK)
			more(100)
			from("--step", "2").want(exitOK, "nothing waits")
			stopped(old)

			// All the way back.
			from("--undo", "1").want(exitOK)
			expected := len(ownEvents(file)) + d.int("SELECT count(*) FROM outbox.messages")
			next := start("")
			until(t, "the copies have come", func() bool { return len(ownEvents(file)) >= expected })
			stopped(next)
			old = start(own.source)
			more(100)

			// And for good.
			from("--step", "1").want(exitOK)
			from("--step", "2").want(exitOK)
			stopped(old)
			next = start("")
			for w := range writers {
				direct[w].Store(true)
				more(50)
			}
			stop()
			running.Wait()
			from("--step", "5").want(exitOK)
			if d.int("SELECT count(*) FROM pg_class WHERE relname = 'own_moved'") != 1 {
				t.Error("the table has kept its name")
			}
			from("--undo", "5").want(exitOK)

			var got []ownEvent
			until(t, "all has come", func() bool {
				got = ownEvents(file)
				return len(got) >= written()
			})
			stopped(next)
			got = ownEvents(file)
			seen := make(map[string]int) // the last number of a key
			inverted := 0
			for _, e := range got {
				if e.Topic != "shop.Paid" || e.EventType != "Paid" || e.Headers["tenant"] != "7" {
					t.Fatalf("%+v", e)
				}
				if e.Payload.Seq != seen[e.Key]+1 {
					inverted++
				}
				seen[e.Key] = e.Payload.Seq
			}
			if len(got) != written() || inverted > 0 {
				t.Errorf("%d written, %d delivered, %d of them out of order", written(), len(got), inverted)
			}
		})
	}
}

func TestTheEndOfATableWaitsForItsRows(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.exec("CREATE TABLE shop_outbox (id bigserial PRIMARY KEY, topic text NOT NULL, payload jsonb NOT NULL, published_at timestamptz)")
	d.exec(`INSERT INTO shop_outbox (topic, payload) VALUES ('orders', '{}')`)
	from := func(args ...string) result {
		return d.outbox(append([]string{"migrate", "from", "--table", "shop_outbox"}, args...)...)
	}
	from().want(exitOK, "as the doctor proposes", "1 rows wait now")
	from("--step", "5").want(exitError, "rows may wait in the table")
	from("--step", "3").want(exitUsage, "yours")
	from("--step", "1", "--undo", "1").want(exitUsage)
	d.exec("CREATE TABLE bytes_outbox (id bigserial PRIMARY KEY, topic text NOT NULL, key bytea, payload jsonb NOT " +
		"NULL, published_at timestamptz)")
	d.outbox("migrate", "from", "--table", "bytes_outbox", "--step", "1").want(exitError, "bytea")
}

// The trigger of step 1 leaves rows alone that don't wait when they are inserted. By step 5 the configuration has no
// source any more.
func TestTheEndOfATableFindsRowsThatBeganToWait(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.exec(`CREATE TABLE own (id bigserial PRIMARY KEY, key text, body jsonb, state text DEFAULT 'new', "wait""s" timestamptz, since timestamptz)`)
	from := func(args ...string) result {
		return d.outbox(append([]string{"migrate", "from", "--table", "own"}, args...)...)
	}
	config := func(source string) {
		t.Helper()
		yaml := fmt.Sprintf("destinations:\n  - name: own\n%s    broker: {file: {path: %s}}\n", source, filepath.Join(d.folder, "events"))
		if err := os.WriteFile(filepath.Join(d.folder, "outbox.yaml"), []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ strategy, marks, stays, waits, done string }{
		{"lease", `done: {how: status, column: state, waiting: new, value: sent}, claim: {status: busy, since: since}`,
			`INSERT INTO own (state) VALUES ('draft'), ('busy')`, `UPDATE own SET state = 'new' WHERE state = 'draft'`, `UPDATE own SET state = 'sent'`},
		{"advisory", `done: {how: timestamp, column: 'wait"s'}`,
			`INSERT INTO own ("wait""s") VALUES (now())`, `UPDATE own SET "wait""s" = NULL`, `UPDATE own SET "wait""s" = now()`},
		{"lease", `done: {how: delete}, claim: {until: 'wait"s'}, rows_may_be_deleted: true`,
			`INSERT INTO own ("wait""s") VALUES ('infinity')`, `SELECT`, `DELETE FROM own`},
	} {
		d.exec(`DROP TRIGGER IF EXISTS outbox_move ON own; TRUNCATE own`)
		source := "    source: {strategy: " + c.strategy + ", table: own, columns: {id: id, topic: t, key: '{key}', payload: body}, " +
			c.marks + "}\n"
		config(source)
		from("--step", "1").want(exitOK, "SELECT lastval()", "currval('public.own_id_seq')")
		d.exec(`INSERT INTO own (body) VALUES ('{}')`)
		from("--step", "5").want(exitError, "do steps 1 and 2 first")
		from("--step", "2").want(exitOK, "nothing waits")
		from().want(exitOK, "SELECT lastval()", "LOCK TABLE", "RENAME TO")
		config("")
		d.exec(c.stays)
		d.exec(c.waits)
		if n := d.int(`SELECT count(*) FROM own WHERE body IS NULL`); n == 0 {
			t.Errorf("%s: no row has stayed", c.marks)
		}
		from("--step", "5").want(exitError, "rows wait in the table: ", `give its destination "source" again`)
		d.exec(c.done)
		from("--step", "5").want(exitOK)
		from("--undo", "5").want(exitOK)
		config(source)
		from("--step", "1").want(exitOK)
		from("--step", "5").want(exitError, "do steps 1 and 2 first")
	}
}

type ownEvent struct {
	Topic, Key string
	EventType  string `json:"event_type"`
	Headers    map[string]string
	Payload    struct{ Seq int }
}

func ownEvents(file string) (all []ownEvent) {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var e ownEvent
		if json.Unmarshal(lines.Bytes(), &e) == nil { // the last one may be being written
			all = append(all, e)
		}
	}
	return all
}

// writeOwn writes until ctx ends: to the table, or to the outbox. Some transactions are rolled back.
func (d *database) writeOwn(ctx context.Context, w, keys int, direct *atomic.Bool) {
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		d.t.Error(err)
		return
	}
	defer conn.Close(context.WithoutCancel(ctx))
	whole := context.WithoutCancel(ctx) // so that what is counted as written is known
	var writer outbox.Writer
	for n := w; ctx.Err() == nil; n++ {
		tx, err := conn.Begin(whole)
		if err != nil {
			d.t.Error(err)
			return
		}
		var seq int
		key := fmt.Sprintf("k%d", 1+n%keys)
		err = tx.QueryRow(whole, "UPDATE keys SET seq = seq + 1 WHERE key = $1 RETURNING seq", key).Scan(&seq)
		body := fmt.Sprintf(`{"Seq": %d}`, seq)
		switch {
		case err != nil:
		case direct.Load():
			_, err = writer.Write(whole, tx, outbox.Message{Topic: "shop.Paid", Key: key, EventType: "Paid",
				Payload: []byte(body), ContentType: "application/json",
				Headers: []outbox.Header{{Name: "tenant", Value: "7"}}})
		default:
			id := "DEFAULT"
			if d.uuids(whole, tx) {
				id = "gen_random_uuid()"
			}
			_, err = tx.Exec(whole, "INSERT INTO own (id, key, body, extra, sort) "+
				"VALUES ("+id+", $1, $2, '{\"tenant\": \"7\"}', 'Paid')", key, body)
		}
		if err != nil {
			d.t.Errorf("writer %d: %v", w, err)
			return
		}
		if n%7 == 0 {
			err = tx.Rollback(whole)
		} else {
			err = tx.Commit(whole)
		}
		if err != nil {
			d.t.Error(err)
		}
	}
}

// uuids reports whether the table's ids are.
func (d *database) uuids(ctx context.Context, tx pgx.Tx) (are bool) {
	err := tx.QueryRow(ctx, "SELECT atttypid = 'uuid'::regtype FROM pg_attribute WHERE attrelid = 'own'::regclass AND "+
		"attname = 'id'").Scan(&are)
	if err != nil {
		d.t.Error(err)
	}
	return are
}
