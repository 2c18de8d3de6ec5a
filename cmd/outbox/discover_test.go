package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// cluster makes databases beside one of a test, whose names begin with its.
type cluster struct {
	testdb.DB
	base string
}

// named is the one with a suffix, which need not exist.
func (c cluster) named(suffix string) testdb.DB {
	u, err := url.Parse(c.URL)
	if err != nil {
		c.T.Fatal(err)
	}
	u.Path = "/" + c.base + suffix
	return testdb.DB{T: c.T, URL: u.String()}
}

// create makes one with the outbox, dropped at the end of the test.
func (c cluster) create(suffix string) testdb.DB {
	c.T.Helper()
	c.Exec("CREATE DATABASE " + c.base + suffix + " TEMPLATE template0")
	c.T.Cleanup(func() { c.drop(suffix) })
	db := c.named(suffix)
	db.Install()
	return db
}

// drop may be called at the end of the test, when its context has ended.
func (c cluster) drop(suffix string) {
	c.T.Helper()
	conn, err := pgx.Connect(context.WithoutCancel(c.T.Context()), c.URL)
	if err == nil {
		_, err = conn.Exec(context.Background(), "DROP DATABASE IF EXISTS "+c.base+suffix+" WITH (FORCE)")
		_ = conn.Close(context.Background())
	}
	if err != nil {
		c.T.Error(err)
	}
}

// sends writes a message to a database, and waits until the relay has printed it.
func (p *process) sends(db testdb.DB, topic string) {
	p.t.Helper()
	db.Exec("INSERT INTO outbox.messages (topic, payload) VALUES ($1, '{}')", topic)
	until(p.t, topic+" is delivered", func() bool { return strings.Contains(p.stdout.String(), `"`+topic+`"`) })
}

// Databases are created, renamed and dropped, and get the schema later, while a relay delivers from the others; the
// cluster's list is away for a while. Commands see the same databases.
func TestDatabasesOfAClusterComeAndGoWhileMessagesFlow(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	c := cluster{testdb.New(t), ""}
	c.base = c.Config().Database
	cfg := c.Config()
	proxy := testnet.New(t, fmt.Sprintf("%s:%d", cfg.Host, cfg.Port))
	list, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	list.Host = proxy.Addr()
	address := freeAddress(t)
	file := d.write("outbox.yaml", `http: {listen: '`+address+`'}
log: {level: info}
destinations: [{name: out, broker: {stdout: {}}}]
discover:
  - name: shop
    cluster: {url: "`+list.String()+`", recheck: 200ms}
    match: ["`+c.base+`_*"]
    every: 200ms
    max_vanish: "1"
`)
	fleet := func(args ...string) result {
		t.Helper()
		return command(t, d.folder, nil, append([]string{"--config", file}, args...)...)
	}
	fleet("config", "validate").want(exitOK, "0 destinations, 1 source of databases")
	fleet("status").want(exitError, "no database is found where discover")
	p := d.starts(nil, []string{}, "relay", "--config", file)
	until(t, "it is ready without any", func() bool { code, _ := get(t, "http://"+address+"/readyz"); return code == http.StatusOK })
	a := c.create("_a")
	p.sends(a, "a-1")
	b := c.create("_b")
	p.sends(b, "b-1")
	fleet("fleet", "plan", "--server", "http://"+address).want(exitOK, "2 databases: the relay has the same", "source shop: 2 databases", c.base+"_a")
	fleet("status").want(exitOK, "2 databases", c.base+"_a: ", c.base+"_b: ")
	fleet("check").want(exitOK, "2 databases: 2 OK")
	fleet("migrate", "up", "--all").want(exitOK, "2 databases")
	fleet("dead", "ls", "--database", c.base+"_b").want(exitOK)
	fleet("config", "validate", "--connect").want(exitOK, "source shop: ok, it has 2 databases", c.base+"_b: destination out: ok")

	// One gets the schema later, and one another name.
	c.Exec("CREATE DATABASE " + c.base + "_late TEMPLATE template0")
	t.Cleanup(func() { c.drop("_late"); c.drop("_renamed") })
	late := c.named("_late")
	p.sends(a, "a-2")
	late.Install()
	p.sends(late, "late-1")
	until(t, "it is renamed", func() bool {
		c.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`, c.base+"_b")
		conn := c.Connect()
		_, err := conn.Exec(t.Context(), "ALTER DATABASE "+c.base+"_b RENAME TO "+c.base+"_renamed")
		return err == nil
	})
	p.sends(c.named("_renamed"), "renamed-1")
	p.sends(a, "a-3")
	until(t, "the old name is gone", func() bool {
		_, metrics := get(t, "http://"+address+"/metrics")
		return !strings.Contains(metrics, `database="`+c.base+`_b"`) && strings.Contains(metrics, `outbox_discovered_databases{source="shop"} 3`)
	})

	// The list is away: nothing ends for it.
	proxy.Refuse(true)
	until(t, "the look fails", func() bool {
		_, text := get(t, "http://"+address+"/readyz")
		return strings.Contains(text, `"error"`)
	})
	fleet("status").want(exitError, "BROKEN: databases can't be looked for", "discover[0].cluster.url").never("password")
	fleet("fleet", "plan").want(exitError, "source shop: does not answer")
	proxy.Refuse(false)
	p.sends(a, "a-4")
	p.sends(late, "late-2")

	c.drop("_late")
	until(t, "the dropped one is gone", func() bool {
		_, metrics := get(t, "http://"+address+"/metrics")
		return !strings.Contains(metrics, `database="`+c.base+`_late"`)
	})
	p.sends(a, "a-5")
	if code, text := get(t, "http://"+address+"/healthz/destinations"); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// A table of tenants is emptied, and loses more than it may: nothing ends, until the setting allows it.
func TestTenantsThatVanishAtOnceAreKeptUntilItIsConfirmed(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	c := cluster{testdb.New(t), ""}
	c.base = c.Config().Database
	c.Exec("CREATE TABLE tenants (name text, url text, live boolean DEFAULT true)")
	tenants := map[string]testdb.DB{}
	for _, name := range []string{"a", "b", "c"} {
		db := c.create("_" + name)
		u, err := url.Parse(db.URL)
		if err != nil {
			t.Fatal(err)
		}
		u.User = url.UserPassword(u.User.Username(), "hidden-"+name)
		c.Exec("INSERT INTO tenants VALUES ($1, $2)", name, u.String())
		tenants[name] = db
	}
	address := freeAddress(t)
	yaml := `http: {listen: '` + address + `'}
log: {level: debug}
destinations: [{name: out, broker: {stdout: {}}}]
discover:
  - name: tenants
    query: {url: "` + c.URL + `", sql: "SELECT name, url FROM tenants WHERE live"}
    every: 100ms
    max_vanish: 10%
`
	file := d.write("outbox.yaml", yaml)
	p := d.starts(nil, []string{}, "relay", "--config", file)
	for name, db := range tenants {
		p.sends(db, name+"-1")
	}
	withheld := func(n int) {
		t.Helper()
		until(t, "what vanishes is withheld", func() bool {
			_, metrics := get(t, "http://"+address+"/metrics")
			return strings.Contains(metrics, fmt.Sprintf(`outbox_discovery_withheld_databases{source="tenants"} %d`, n))
		})
	}
	c.Exec("UPDATE tenants SET live = false")
	withheld(3)
	c.Exec("UPDATE tenants SET live = name = 'a'")
	withheld(2)
	for name, db := range tenants {
		p.sends(db, name+"-2")
	}
	if code, text := get(t, "http://"+address+"/healthz/destinations"); code != http.StatusServiceUnavailable || !strings.Contains(text, `"withheld"`) {
		t.Errorf("%d %s", code, text)
	}
	plan := func() result {
		t.Helper()
		return command(t, d.folder, nil, "fleet", "plan", "--config", file, "--server", "http://"+address)
	}
	plan().want(exitOK, "3 databases, 2 withheld", "b ", "c ")
	counted := []string{"OUTBOX_FLEET_COUNT=2", "OUTBOX_FLEET_ORDINAL=0"}
	command(t, d.folder, counted, "fleet", "plan", "--config", file, "-o", "json").want(exitOK, `"members": [`, `"ordinal `)
	c.Exec("INSERT INTO tenants VALUES ('bad', 'mysql://nothing')")
	plan().want(exitError, "1 left out", "can't be delivered from")
	c.Exec("DELETE FROM tenants WHERE name = 'bad'")

	d.write("outbox.yaml", strings.Replace(yaml, "10%", "'2'", 1))
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	until(t, "they end", func() bool {
		_, metrics := get(t, "http://"+address+"/metrics")
		return strings.Contains(metrics, `outbox_discovered_databases{source="tenants"} 1`) && !strings.Contains(metrics, `database="b"`)
	})
	p.sends(tenants["a"], "a-3")
	// Settings of all are others: they drain, and begin again.
	d.write("outbox.yaml", strings.Replace(yaml, "{name: out,", "{name: out, rate: 100,", 1))
	plan().want(exitOK, "1 changed")
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	until(t, "the change is taken over", func() bool { return strings.Contains(plan().stdout, "the relay has the same") })
	p.sends(tenants["a"], "a-4")
	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if log := p.stderr.String(); strings.Contains(log, "hidden") {
		t.Error("a password is in the log")
	}
}
