package console

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/proof/rig"
)

func TestMain(m *testing.M) { servers.Main(m) }

// sizes are how much there is to see. OUTBOX_CONSOLE_SIZE=large takes what an operator may meet.
type sizes struct {
	messages, dead, held, destinations int
	calm                               bool // every broker answers at first
}

func size() sizes {
	if os.Getenv("OUTBOX_CONSOLE_SIZE") == "large" {
		return sizes{messages: 1_000_000, dead: 10_000, held: 1_000, destinations: 20}
	}
	return small
}

var small = sizes{messages: 2_000, dead: 400, held: 60, destinations: 8}

// world is a live system.
type world struct {
	testdb.DB
	base    string // of the console
	relay   *rig.Relay
	missing atomic.Bool // what the destination orders is sent to
}

// Tokens of the users.
const (
	operator = "0123456789abcdef0123456789abcdef-anna"
	viewer   = "0123456789abcdef0123456789abcdef-vera"
)

// setup starts a system with destinations that flow, and some that don't.
func setup(t *testing.T, n sizes) *world {
	t.Helper()
	w := &world{DB: testdb.Published(t)}
	sink := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case w.missing.Load() && strings.HasPrefix(r.URL.Path, "/orders"):
			http.Error(rw, "topic orders.v2 does not exist", http.StatusNotFound)
		case strings.HasPrefix(r.URL.Path, "/search"):
			http.Error(rw, "schema 42 is unknown", http.StatusUnprocessableEntity)
		}
	}))
	t.Cleanup(sink.Close)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + closed.Addr().String()
	_ = closed.Close()
	if n.calm {
		nobody = sink.URL
	}
	folder := t.TempDir()
	var config strings.Builder
	fmt.Fprintf(&config, "database: {url: %q}\ndestinations:\n", w.URL)
	web := func(name, topics, to string) {
		fmt.Fprintf(&config, "  - {name: %s, topics: [%s], broker: {http: {url: %q, allow_networks: [127.0.0.0/8]}}}\n",
			name, topics, to+"/"+name)
	}
	web("orders-kafka", "orders", sink.URL+"/orders")
	web("warehouse", "stock", nobody)
	web("search-index", "never", sink.URL)
	for _, name := range []string{"billing", "mail", "audit-trail", "legacy"} {
		fmt.Fprintf(&config, "  - {name: %s, topics: [orders, users], broker: {file: {path: %s}}}\n",
			name, filepath.Join(folder, name+".jsonl"))
	}
	for i := 7; i < n.destinations; i++ {
		file := filepath.Join(folder, fmt.Sprint("a", i, ".jsonl"))
		fmt.Fprintf(&config, "  - {name: analytics-%d, topics: [users], broker: {file: {path: %s}}}\n", i-6, file)
	}
	relay, address := serve(t, folder, config.String())
	w.relay, w.base = relay, "http://"+address+"/console/"
	w.Await(`SELECT count(*) = ` + strconv.Itoa(n.destinations) + ` FROM outbox.cursors WHERE lease_until > now()`)
	w.fill(n)
	return w
}

// serve starts a relay with a port and users.
func serve(t *testing.T, folder, config string) (relay *rig.Relay, address string) {
	t.Helper()
	address, err := rig.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	config += fmt.Sprintf(`name: relay-1
http:
  listen: %s
  users:
    - {name: anna, role: operator, token: %s}
    - {name: vera, token: %s}
`, address, operator, viewer)
	program, err := rig.Build(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	if relay, err = rig.StartRelay(program, folder, "relay-1", config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := relay.Stop(await.Patience); err != nil {
			t.Error(err)
		}
	})
	if err := relay.Up(t.Context(), await.Patience); err != nil {
		t.Fatal(err)
	}
	return relay, address
}

// fill gives the system its past.
func (w *world) fill(n sizes) {
	w.Exec(`INSERT INTO outbox.messages (topic, key, payload)
		SELECT 'users', 'user-' || i % 1000, '{"n":1}' FROM generate_series(1, $1::int) i`, n.messages)
	const dead = `
		INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, payload,
			headers, content_type, created_at, dead_at, attempts, reason, error, deaths)
		SELECT $1, 'c-' || i % 97, i + $6, gen_random_uuid(), $2, 'c-' || i % 97, 0,
			convert_to('{"order":' || i || ',"card":{"number":"4111"}}', 'UTF8'), '{"tenant":"shop"}', 'application/json',
			now() - interval '3 hours', now() - i * interval '1 second', 1, $3, $4 || i || ' bytes', 1 + (i % 40 = 0)::int
		FROM generate_series(1, $5::int) i`
	w.Exec(dead, "billing", "orders", "refused", "413: the value is too large: ", n.dead*8/10, 0)
	w.Exec(dead, "search-index", "orders", "exhausted", "schema 42 is unknown; ", n.dead/10, 1_000_000)
	w.Exec(dead, "billing", "users", "refused", "timeout after 30 s; ", n.dead/10, 2_000_000)
	w.Exec(`INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, payload, created_at, held_at,
			attempts, retry_at, error)
		SELECT 'search-index', 'p-' || i, i, gen_random_uuid(), 'products', 'p-' || i, 0, 'x', now() - interval '20 minutes',
			now() - interval '19 minutes', 10, 'infinity', '422: schema 42 is unknown'
		FROM generate_series(1, $1::int) i`, n.held)
	w.Exec(`INSERT INTO outbox.controls (destination, topic, lane, until, actor, reason)
		VALUES ('mail', '', '', now() + interval '2 hours', 'anna', 'billing migration')`)
	w.Exec(`INSERT INTO outbox.audit (actor, verb, destination, reason, detail, at) VALUES
		('anna', 'pause', 'mail', 'billing migration', '{}', now() - interval '11 minutes'),
		('ben', 'requeue', 'billing', 'fixed schema', '{"changed": 120}', now() - interval '2 hours')`)
	w.Exec(`VACUUM ANALYZE outbox.messages, outbox.dead_letters, outbox.holds`) // as autovacuum does, within a minute
}

// write has messages come, until the test ends.
func (w *world) write(ctx context.Context) {
	conn := w.Connect()
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	w.T.Cleanup(func() {
		stop()
		<-ended
	})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(100 * time.Millisecond); ctx.Err() == nil; {
			_, _ = conn.Exec(ctx, `INSERT INTO outbox.messages (topic, key, payload)
				SELECT (ARRAY['orders', 'users', 'stock'])[1 + i % 3], 'k-' || i, '{"n":1}' FROM generate_series(1, 12) i`)
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
}
