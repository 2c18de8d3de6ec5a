package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/schema"
)

// many is a Daemon for several databases, with an output that all of their messages come to.
type many struct {
	t   *testing.T
	out *lines
	d   *Daemon
}

func installed(t *testing.T) testdb.DB {
	db := testdb.Published(t)
	return db
}

// from configures a database; its messages go to the output.
func from(name string, conn *pgx.ConnConfig, change func(*config.Config)) Database {
	cfg := fields.Default[config.Config]()
	cfg.Name, cfg.HTTP.Listen, cfg.HTTP.API = "relay", "127.0.0.1:0", true
	to := fields.Default[config.Destination]()
	to.Name, to.Broker.Stdout = "all", &brokers.Stdout{}
	cfg.Destinations = []config.Destination{to}
	cfg.Database.URL = scalar.NewURL(conn.ConnString())
	if change != nil {
		change(&cfg)
	}
	return Database{Name: name, Origin: "the test", Conn: conn, Config: cfg}
}

func deliverFrom(t *testing.T, databases ...Database) *many {
	t.Helper()
	m := &many{t: t, out: &lines{came: make(chan struct{}, 1)}}
	var err error
	if m.d, err = New(databases, Options{Several: true, Stdout: m.out, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	await.Until(t, "there are paths", func() bool { return m.d.handler.Load() != nil })
	return m
}

// get asks for a path.
func (m *many) get(path string) (int, string) {
	answer := httptest.NewRecorder()
	request := httptest.NewRequest(http.MethodGet, path, nil)
	request.Host = "localhost"
	(*m.d.handler.Load()).ServeHTTP(answer, request)
	return answer.Code, answer.Body.String()
}

// send writes a message, and waits until it is delivered.
func (m *many) send(db testdb.DB, topic string) {
	m.t.Helper()
	m.write(db, topic)
	await.Until(m.t, topic+" comes", func() bool {
		m.out.mu.Lock()
		defer m.out.mu.Unlock()
		return strings.Contains(m.out.text.String(), `"`+topic+`"`)
	})
}

func (m *many) write(db testdb.DB, topic string) {
	m.t.Helper()
	writer, err := outbox.NewWriter(outbox.WriterConfig{})
	if err == nil {
		err = pgx.BeginFunc(m.t.Context(), db.Connect(), func(tx pgx.Tx) error {
			_, err := writer.Write(m.t.Context(), tx, outbox.Message{Topic: topic, Payload: []byte("{}")})
			return err
		})
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// A database that is away at the start, or hangs later, is named, costs the others nothing, and is delivered from when
// it can be.
func TestADatabaseThatIsAwayOrHangsLeavesTheOthersDelivering(t *testing.T) {
	t.Parallel()
	well, away := installed(t), installed(t)
	proxy, address := testnet.Before(t, away.Config())
	proxy.Refuse(true)
	m := deliverFrom(t, from("well", well.Config(), nil), from("away", address, nil))
	m.send(well, "first")
	await.Until(t, "the verdict names the one that is away", func() bool {
		code, text := m.get("/databases/away/healthz/destinations")
		return code == http.StatusServiceUnavailable && strings.Contains(text, `"broken"`)
	})
	if code, text := m.get("/readyz"); code != http.StatusOK || !strings.Contains(text, `"away"`) {
		t.Errorf("ready while one of two is: %d %s", code, text)
	}
	if code, _ := m.get("/healthz/destinations"); code != http.StatusServiceUnavailable {
		t.Errorf("one does not deliver: %d", code)
	}
	proxy.Refuse(false)
	m.send(away, "late")
	await.Until(t, "all is well", func() bool { code, _ := m.get("/healthz/destinations"); return code == http.StatusOK })

	if err := proxy.Freeze(); err != nil {
		t.Fatal(err)
	}
	m.write(away, "frozen")
	m.send(well, "beside")
	if code, text := m.get("/databases/well/api/v1/status"); code != http.StatusOK || !strings.Contains(text, well.Config().Database) {
		t.Errorf("the API of the other: %d %s", code, text)
	}
	if err := proxy.Thaw(); err != nil {
		t.Fatal(err)
	}
	m.send(away, "thawed")
	_, metrics := m.get("/metrics")
	for _, part := range []string{`outbox_published_total{database="well",destination="all"} 2`, `outbox_published_total{database="away",destination="all"} `} {
		if !strings.Contains(metrics, part) {
			t.Errorf("no %s in\n%s", part, metrics)
		}
	}
}

// Another configuration reaches the databases that it is about, and no other.
func TestAnotherConfigurationIsTakenOverWhileMessagesFlow(t *testing.T) {
	t.Parallel()
	same, changed, gone, added := installed(t), installed(t), installed(t), installed(t)
	first := []Database{from("same", same.Config(), nil), from("changed", changed.Config(), nil), from("gone", gone.Config(), nil)}
	m := deliverFrom(t, first...)
	m.send(same, "same-1")
	m.send(changed, "changed-1")
	m.send(gone, "gone-1")

	next := []Database{from("same", same.Config(), nil), from("changed", changed.Config(), func(c *config.Config) {
		other := c.Destinations[0]
		other.Name = "other"
		c.Destinations = append(c.Destinations, other)
		c.Destinations[0].ShardGroups = 2
	}), from("added", added.Config(), nil)}
	if err := m.d.Reload(next[0].Config, next); err != nil {
		t.Fatal(err)
	}
	m.send(added, "added-1")
	await.Until(t, "the changed one delivers to both", func() bool {
		_, metrics := m.get("/metrics")
		return strings.Contains(metrics, `outbox_published_total{database="changed",destination="other"} 1`) &&
			!strings.Contains(metrics, `database="gone"`)
	})
	m.send(same, "same-2")
	await.Until(t, "the same one has gone on counting", func() bool {
		_, metrics := m.get("/metrics")
		return strings.Contains(metrics, `outbox_published_total{database="same",destination="all"} 2`)
	})
	await.Until(t, "it has two shard groups", func() (two bool) {
		if err := changed.Connect().QueryRow(t.Context(), `SELECT count(*) = 2 FROM outbox.cursors WHERE destination = 'all'`).Scan(&two); err != nil {
			t.Fatal(err)
		}
		return two
	})
	if code, _ := m.get("/databases/gone/readyz"); code != http.StatusNotFound {
		t.Errorf("the one that is gone answers %d", code)
	}
	m.write(gone, "gone-2")
	m.send(changed, "changed-2")
	m.out.mu.Lock()
	defer m.out.mu.Unlock()
	if strings.Contains(m.out.text.String(), "gone-2") {
		t.Error("the one that is gone delivers")
	}
}

// A command that is shown or sent works as it stands where there are several databases.
// An administrator's timeouts are for the services of the database: the monitor and the API bound their statements
// themselves, and keep connections that rest.
func TestTheTimeoutsOfADatabaseBindNeitherTheMonitorNorTheAPI(t *testing.T) {
	t.Parallel()
	db := installed(t)
	cfg := db.Config()
	for _, name := range []string{"statement_timeout", "lock_timeout", "idle_session_timeout"} {
		db.Exec("ALTER DATABASE " + cfg.Database + " SET " + name + " = '31s'")
	}
	m := newMetrics(newBook(prometheus.NewRegistry(), "one"))
	u, err := newUnit(from("one", cfg, nil), m, &brokers.Pool{}, Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer u.release()
	monitor, err := u.watch.conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer connect.Close(monitor)
	api, err := pool(t.Context(), cfg, "outbox api")
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	const bounds = `SELECT string_agg(setting, ' ') FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_session_timeout')`
	for what, session := range map[string]schema.Querier{"monitor": monitor, "API": api} {
		var got string
		if err := session.QueryRow(t.Context(), bounds).Scan(&got); err != nil || got != "0 0 0" {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}

func TestCommandsNameTheDatabase(t *testing.T) {
	t.Parallel()
	orders, billing := installed(t), installed(t)
	m := deliverFrom(t, from("orders", orders.Config(), nil), from("billing", billing.Config(), nil))
	if _, err := orders.Connect().Exec(t.Context(), `INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic,
		key, shard, payload, created_at, attempts, reason, error)
		VALUES ('all', 'k', nextval('outbox.messages_id_seq'), '00000000-0000-7000-8000-000000000001', 'a', 'k', 0, '', now(), 1,
			'refused', 'no')`); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the verdict's command names the database", func() bool {
		_, text := m.get("/databases/orders/healthz/destinations")
		return strings.Contains(text, ` --database orders"`)
	})
	if _, text := m.get("/databases/billing/healthz/destinations"); strings.Contains(text, "orders") {
		t.Errorf("the other one has a part of it: %s", text)
	}
	const want = "See: outbox dead ls --destination all --database orders; outbox status --database orders."
	if got := listCommand(m.d.units[0].displayName(), "all", false); got != want {
		t.Errorf("a notification says %q", got)
	}
}

// One page shows every database, the worst first, also one that can't be read, and each one's console leads to it.
func TestThePageOfAllDatabases(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	shop, billing := installed(t), installed(t)
	proxy, address := testnet.Before(t, billing.Config())
	proxy.Refuse(true)
	m := deliverFrom(t, from("shop", shop.Config(), nil), from("billing", address, nil))
	m.send(shop, "first")
	const page = "/databases/shop/console/databases"
	await.Until(t, "both are on the page", func() bool {
		_, text := m.get(page)
		first, last := strings.Index(text, `<td data-label="Database"><a class="name" href="../../billing/console/">billing</a>`),
			strings.Index(text, `<td data-label="Database"><a class="name" href="../../shop/console/">shop</a>`)
		return first > 0 && last > first && strings.Contains(text, ">not yet<") &&
			strings.Contains(text, "1 of 2 databases needs you: billing (broken)") &&
			strings.Contains(text, "billing: broken: ")
	})
	if _, text := m.get("/databases/shop/console/"); !strings.Contains(text, `href="databases" data-key="b"`) || !strings.Contains(text, `title="shop">shop</span>`) {
		t.Errorf("the overview of one does not lead to the page of all:\n%s", text)
	}
	answer := httptest.NewRecorder()
	(*m.d.handler.Load()).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
	if to := answer.Header().Get("Location"); to != page {
		t.Errorf("the top leads to %q", to)
	}
	proxy.Refuse(false)
	await.Until(t, "all is well", func() bool {
		_, text := m.get(page)
		return strings.Contains(text, "all 2 databases are well") && !strings.Contains(text, ">not yet<")
	})
	w := m.d.units[1].watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.seen.IsZero() {
		t.Error("the page of all has made looks at the other database more frequent")
	}
}

// A user of one team's database neither sees nor changes another team's, though destinations have the same names.
func TestAUserOfOneDatabaseHasNoPlaceInAnother(t *testing.T) {
	t.Parallel()
	shop, billing := installed(t), installed(t)
	const token = "0123456789abcdef0123456789abcdef"
	team := func(c *config.Config) {
		c.HTTP.Users = []config.User{{Name: "shop-team", Role: "operator", Destinations: []string{"all"},
			Databases: []string{"shop"}, Token: scalar.NewSecret(token)}}
	}
	m := deliverFrom(t, from("shop", shop.Config(), team), from("billing", billing.Config(), team))
	m.send(shop, "first")
	ask := func(method, path, body string) (int, string) {
		answer := httptest.NewRecorder()
		request := httptest.NewRequest(method, path, strings.NewReader(body))
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("Content-Type", "application/json")
		(*m.d.handler.Load()).ServeHTTP(answer, request)
		return answer.Code, answer.Body.String()
	}
	const pause = `{"destination":"all","dry_run":true,"unseen":true}`
	for path, want := range map[string]int{
		"/databases/shop/api/v1/status": http.StatusOK, "/databases/billing/api/v1/status": http.StatusForbidden,
		"/databases/shop/console/": http.StatusOK, "/databases/billing/console/": http.StatusForbidden,
		"/databases/billing/console/databases": http.StatusForbidden, "/databases/billing/api/v1/openapi.json": http.StatusForbidden,
	} {
		if code, text := ask(http.MethodGet, path, ""); code != want {
			t.Errorf("%s: %d, want %d: %s", path, code, want, text)
		}
	}
	if code, text := ask(http.MethodPost, "/databases/shop/api/v1/pause", pause); code != http.StatusOK {
		t.Errorf("a pause in its own: %d %s", code, text)
	}
	if code, text := ask(http.MethodPost, "/databases/billing/api/v1/pause", pause); code != http.StatusForbidden ||
		!strings.Contains(text, "shop-team may look into shop") {
		t.Errorf("a pause in another: %d %s", code, text)
	}
	code, text := ask(http.MethodGet, "/databases/shop/console/databases", "")
	if code != http.StatusOK || strings.Contains(text, "billing") {
		t.Errorf("the page of all databases shows another team's: %d", code)
	}
}

// Databases that deliver to the same broker share its client, until the last of them ends.
func TestDatabasesShareABrokersClient(t *testing.T) {
	t.Parallel()
	orders, billing := installed(t), installed(t)
	proxy := testnet.New(t, strings.TrimPrefix(servers.TestNATS(t).URL(), "nats://"))
	stream := strings.ReplaceAll(outbox.NewID().String(), "-", "")
	to := func(c *config.Config) {
		n := fields.Default[brokers.NATS]()
		n.URL, n.Stream, n.CreateStream, n.Subject = scalar.NewURL("nats://"+proxy.Addr()), stream, true, stream+".{topic}"
		c.Destinations[0].Broker = brokers.Broker{NATS: &n}
	}
	both := []Database{from("orders", orders.Config(), to), from("billing", billing.Config(), to)}
	m := deliverFrom(t, both...)
	delivered := func(database string, n int) {
		t.Helper()
		line := fmt.Sprintf(`outbox_published_total{database=%q,destination="all"} %d`, database, n)
		await.Until(t, line, func() bool { _, metrics := m.get("/metrics"); return strings.Contains(metrics, line) })
	}
	m.write(orders, "first")
	m.write(billing, "first")
	delivered("orders", 1)
	delivered("billing", 1)
	if err := m.d.Reload(both[1].Config, both[1:]); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the other one has ended", func() bool {
		code, _ := m.get("/databases/orders/readyz")
		return code == http.StatusNotFound
	})
	m.write(billing, "second")
	delivered("billing", 2)
	if n := proxy.Opened(); n != 1 {
		t.Errorf("%d connections to the broker, want 1", n)
	}
}
