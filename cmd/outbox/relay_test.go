package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

// fileYAML is the least configuration that delivers to a file; more is for more destinations. The lease outlasts what a
// busy machine takes: a lost one would repeat messages.
func (d *database) fileYAML(more string) string {
	return "http: {listen: ''}\nlog: {level: debug}\ndestinations:\n  - name: file\n    lease: 30s\n" +
		"    broker: {file: {path: " + d.file() + "}}\n" + more
}

func (d *database) file() string { return filepath.Join(d.folder, "events.jsonl") }

// delivered reads what is in the file, by key.
func (d *database) delivered() map[string][]string {
	d.t.Helper()
	got := map[string][]string{}
	f, err := os.Open(d.file())
	if err != nil {
		return got
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var line struct {
			Key     string
			Payload json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			continue // being written
		}
		got[line.Key] = append(got[line.Key], string(line.Payload))
	}
	return got
}

func (d *database) count() (n int) {
	for _, list := range d.delivered() {
		n += len(list)
	}
	return n
}

// publish writes n messages of each of 10 keys, a transaction each.
func (d *database) publish(topic string, n int) {
	d.t.Helper()
	for i := range n {
		d.exec(`SELECT outbox.publish($1, $2::text, key => 'key-' || k) FROM generate_series(0, 9) k`, topic, fmt.Sprint(i))
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestTheRelayDeliversAndEndsInGoodOrder(t *testing.T) {
	t.Parallel()
	d := setup(t)
	address := freeAddress(t)
	d.publish("orders", 20)
	relay := d.relay(strings.Replace(d.fileYAML(""), "''", address, 1), "--name", "relay-1")
	until(t, "all is delivered", func() bool { return d.count() == 200 })
	for key, list := range d.delivered() {
		for i, payload := range list {
			if !strings.Contains(payload, fmt.Sprint(i)) {
				t.Fatalf("%s: %q", key, list)
			}
		}
	}

	if code, _ := get(t, "http://"+address+"/livez"); code != http.StatusOK {
		t.Errorf("/livez answers %d", code)
	}
	until(t, "/readyz is ready", func() bool {
		code, body := get(t, "http://"+address+"/readyz")
		return code == http.StatusOK && strings.Contains(body, `"state": "flowing"`)
	})
	until(t, "/healthz/destinations says idle", func() bool {
		code, body := get(t, "http://"+address+"/healthz/destinations")
		return code == http.StatusOK && strings.Contains(body, `"sentence": "idle"`) && strings.Contains(body, `"age_seconds"`)
	})
	for _, line := range []string{
		`outbox_published_total{database="default",destination="file"} 200`, `outbox_insert_to_ack_seconds_count{database="default",destination="file"} 200`,
		`outbox_lease_held{database="default",destination="file",shard_group="0"} 1`, `outbox_pending_messages{database="default",destination="file"} 0`,
		`outbox_dead_messages{database="default",destination="file"} 0`, `outbox_destination_state{database="default",destination="file",state="idle"} 1`, `outbox_build_info{`, `outbox_oldest_pending_timestamp_seconds{database="default",destination="file"} 1`,
	} {
		until(t, "/metrics has "+line, func() bool {
			_, metrics := get(t, "http://"+address+"/metrics")
			return strings.Contains(metrics, line)
		})
	}
	d.outbox("status", "--exit-code").want(exitOK, "file", "IDLE")
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if log := relay.stderr.String(); !strings.Contains(log, `"msg":"relay stopped"`) {
		t.Error("the log is not JSON, or has no end")
	}
	d.outbox("status").want(exitOK, "NO RELAY", "ended")
	if n := d.count(); n != 200 {
		t.Errorf("%d delivered", n)
	}
}

func TestADestinationThatIsDownHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	d := setup(t)
	address := freeAddress(t)
	relay := d.relay(strings.Replace(d.fileYAML("  - name: nats\n    broker: {nats: {url: 'nats://u:hunter22@"+freeAddress(t)+"'}}\n"), "''", address, 1))
	d.publish("orders", 5)
	until(t, "the file has all", func() bool { return d.count() == 50 })
	until(t, "status tells of the outage", func() bool {
		r := d.outbox("status")
		return strings.Contains(r.stdout, "STALLED") && strings.Contains(r.stdout, "nats: the broker does not answer") &&
			!strings.Contains(r.stdout, "hunter22")
	})
	if code, body := get(t, "http://"+address+"/readyz"); code != http.StatusOK {
		t.Errorf("the outage of a broker makes the process unready: %s", body)
	}
	until(t, "/healthz/destinations tells of it", func() bool {
		code, body := get(t, "http://"+address+"/healthz/destinations")
		return code == http.StatusServiceUnavailable && strings.Contains(body, `"stalled"`) && strings.Contains(body, "check the broker")
	})
	if n := d.int(`SELECT count(*) FROM outbox.dead_letters`) + d.int(`SELECT coalesce(max(attempts), 0) FROM outbox.holds`); n != 0 {
		t.Errorf("the outage spent attempts")
	}
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if strings.Contains(relay.stderr.String(), "hunter22") {
		t.Error("the log has the password")
	}
}

func TestADestinationThatGivesUpLeavesTheOthersRunning(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.exec(`INSERT INTO outbox.messages (topic, headers) VALUES ('broken', '[1]')`)
	relay := d.relay(d.fileYAML("  - name: strict\n    delivery: {on_exhausted: stop}\n    topics: [broken]\n    broker: {stdout: {}}\n") +
		"    lease: 1s\n")
	d.publish("orders", 1)
	until(t, "the file has all", func() bool { return d.count() >= 10 })
	until(t, "status names the cause", func() bool {
		r := d.outbox("status")
		return strings.Contains(r.stdout, "STOPPED") && strings.Contains(r.stdout, "gave up")
	})
	d.publish("orders", 1)
	until(t, "the file has more", func() bool { return d.count() >= 20 })
	if code := relay.stop(); code != exitError {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(relay.stderr.String(), "outbox: ") {
		t.Error("the end does not name the error")
	}
}

func TestStdoutGetsMessagesAndNothingElse(t *testing.T) {
	t.Parallel()
	d := setup(t)
	relay := d.relay("http: {listen: ''}\ndestinations:\n  - name: all\n    topics: ['orders.*', '!orders.internal']\n " +
		"   broker: {stdout: {}}\n")
	for _, topic := range []string{"orders.new", "orders.internal", "carts", "orders.end"} {
		d.exec(`SELECT outbox.publish($1, '{}'::jsonb, key => 'k')`, topic)
	}
	until(t, "the last comes", func() bool { return strings.Contains(relay.stdout.String(), "orders.end") })
	lines := strings.Split(strings.TrimSpace(relay.stdout.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"orders.new"`) {
		t.Errorf("standard output: %q", lines)
	}
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestARelayThatIsToldToStopWhileItStartsHasNotFailed(t *testing.T) {
	t.Parallel()
	d := setup(t)
	// A server that takes connections and says nothing keeps it from getting any further.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	url := "postgres://postgres@" + silent.Addr().String() + "/postgres?sslmode=disable"
	relay := d.start(nil, "relay", "--database-url", url, "--set", "http.listen=", "--set", "destinations[0].name=all",
		"--set", "destinations[0].broker.stdout={}")
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := relay.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := relay.wait(); code != exitOK {
		t.Errorf("exit code %d: %s", code, relay.stderr.String())
	}
}

func TestASecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	d := setup(t)
	// A reader that stops reading keeps a call, and so the drain, from ending.
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	relay := d.relayTo(write, "http: {listen: ''}\ndestinations:\n  - name: all\n    drain_timeout: 10m\n    broker: {stdout: {}}\n")
	d.exec(`INSERT INTO outbox.messages (topic, payload) SELECT 't', convert_to(repeat('x', 100000), 'UTF8') FROM generate_series(1, 20)`)
	until(t, "the lease is taken", func() bool { return d.int(`SELECT count(*) FROM outbox.cursors WHERE lease_until > now()`) == 1 })
	if _, err := read.Read(make([]byte, 1)); err != nil { // it publishes
		t.Fatal(err)
	}
	for range 2 {
		if err := relay.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		until(t, "it drains", func() bool { return strings.Contains(relay.stderr.String(), "draining") })
	}
	if code := relay.wait(); code == exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestErrorsAtTheStartSayWhatToDo(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.configure(d.fileYAML(""))
	relay := func(url string) result {
		t.Helper()
		return command(t, d.folder, []string{"OUTBOX_DATABASE_URL=" + url}, "relay")
	}
	other := func(change func(*pgx.ConnConfig)) string {
		t.Helper()
		cfg := d.Config().Copy()
		change(cfg)
		user := cfg.User
		if cfg.Password != "" {
			user += ":" + cfg.Password
		}
		return fmt.Sprintf("postgres://%s@%s:%d/%s?sslmode=disable", user, cfg.Host, cfg.Port, cfg.Database)
	}

	nobody := freeAddress(t)
	relay("postgres://u:hunter22@"+nobody+"/x?sslmode=disable").want(exitError, "no PostgreSQL listens at "+nobody, "start it").never("hunter22")
	relay("postgres://u:hunter22@nowhere.invalid/x").want(exitError, "nowhere.invalid").never("hunter22")
	relay("postgres://u:hunter 22@h:x/y").want(exitConfig, "database.url").never("hunter")
	command(t, d.folder, nil, "status", "--database-url", "postgres://u:hun/ter22@h/y").want(exitConfig, "percent-encoded", "--database-url").never("hun/")
	command(t, d.folder, nil, "status", "--database-url", "postgres://u:hunter22@h/y?sslmode=what").want(exitConfig, "sslmode").never("hunter22")
	relay(other(func(c *pgx.ConnConfig) { c.Database = "missing_db" })).want(exitError, `no database "missing_db"`, "create it")

	empty := emptyDatabase(t)
	relay(empty.url).want(exitError, "schema is missing", "outbox migrate up")
	empty.outbox("status").want(exitError, "schema is missing", "outbox migrate up")
	empty.outbox("dead", "ls").want(exitError, "schema is missing", "outbox migrate up")

	role := "cli_" + d.Config().Database
	d.exec(`CREATE ROLE ` + role + ` LOGIN`)
	t.Cleanup(func() {
		if _, err := d.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	d.exec(schema.Grants("", "", role))
	as := other(func(c *pgx.ConnConfig) { c.User = role })
	relay(as).want(exitError, "lacks privileges", "outbox migrate grants --apply --relay "+role)
	command(t, d.folder, []string{"OUTBOX_DATABASE_URL=" + as}, "status").want(exitOK, "NO RELAY")
	d.exec(`DROP OWNED BY ` + role)
	command(t, d.folder, []string{"OUTBOX_DATABASE_URL=" + as}, "status").want(exitError, "lacks privileges", "outbox migrate grants")
	command(t, d.folder, []string{"OUTBOX_DATABASE_URL=" + as}, "migrate", "grants", "--apply", "--relay", role).
		want(exitError, "nothing was changed", "may not give these rights", "42501").never("done")
	d.outbox("migrate", "grants", "--apply", "--relay", role).want(exitOK, "done")
	// It has every right now and may pass on none: the server only warns.
	command(t, d.folder, []string{"OUTBOX_DATABASE_URL=" + as}, "migrate", "grants", "--apply", "--relay", role).
		want(exitError, "nothing was changed", `run it as `+d.Config().User+`, the owner of schema outbox`, "the server says: no").never("done")
	command(t, d.folder, []string{"OUTBOX_DATABASE_URL=" + as}, "status").want(exitOK)
	d.exec(`DROP OWNED BY ` + role)

	d.exec(`UPDATE outbox.migrations SET version = 9999 WHERE version = (SELECT max(version) FROM outbox.migrations)`)
	relay(d.url).want(exitError, "outbox")
	d.exec(`DELETE FROM outbox.migrations`)
	relay(d.url).want(exitError, "outbox migrate up")
}

func TestAWrongPasswordIsNamedAndNotPrinted(t *testing.T) {
	t.Parallel()
	server := servers.OwnPostgres(t)
	file := filepath.Join(server.DataDir(), "pg_hba.conf")
	if err := os.WriteFile(file, []byte("host all all 127.0.0.1/32 scram-sha-256\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url := strings.Replace(server.URL("postgres"), "postgres@", "postgres:hunter22@", 1)
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), `ALTER ROLE postgres PASSWORD 'another'; SELECT pg_reload_conf()`); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	until(t, "the password is asked for", func() bool {
		return command(t, folder, nil, "status", "--database-url", server.URL("postgres")).code == exitError
	})
	command(t, folder, nil, "status", "--database-url", url).
		want(exitError, `refuses user "postgres"`, "check user and password in --database-url").never("hunter22")
	command(t, folder, []string{"OUTBOX_DATABASE_URL=" + url}, "migrate", "up").want(exitError, "OUTBOX_DATABASE_URL").never("hunter22")
}

func TestAHotStandbyIsRefused(t *testing.T) {
	t.Parallel()
	primary := servers.OwnPostgres(t)
	conn, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := schema.Up(t.Context(), conn, schema.UpConfig{}); err != nil {
		t.Fatal(err)
	}
	standby := servers.OwnStandby(t, primary)
	folder := t.TempDir()
	until(t, "the standby has the schema", func() bool {
		return command(t, folder, nil, "migrate", "status", "--exit-code", "--database-url", standby.URL("postgres")).code == exitOK
	})
	yaml := "http: {listen: ''}\ndestinations:\n  - name: all\n    broker: {stdout: {}}\n"
	if err := os.WriteFile(filepath.Join(folder, "outbox.yaml"), []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, folder, nil, "relay", "--database-url", standby.URL("postgres")).want(exitError, "hot standby", "connect to the primary")
	command(t, folder, nil, "migrate", "up", "--database-url", standby.URL("postgres")).want(exitError, "standby")
	// A look is harmless.
	command(t, folder, nil, "status", "--database-url", standby.URL("postgres")).want(exitOK, "NO RELAY")
}

// toKafka is an outbox.yaml whose only destination gives up soon; more is about Kafka.
func toKafka(t *testing.T, more string) string {
	return "http: {listen: ''}\ndestinations:\n  - name: kafka\n    lease: 30s\n" +
		"    delivery: {max_attempts: 2, backoff: {initial: 10ms, max: 10ms}}\n" +
		"    broker: {kafka: {brokers: ['" + servers.TestKafka(t).Addr() + "']" + more + "}}\n"
}

// settled waits until that many messages are delivered and none is held, and requires that none is dead.
func (d *database) settled(n int) {
	d.t.Helper()
	until(d.t, "they are delivered", func() bool {
		return d.int(`SELECT count(*) FROM outbox.holds`) == 0 && d.int(`SELECT delivered FROM outbox.cursors`) == n
	})
	if dead := d.int(`SELECT count(*) FROM outbox.dead_letters`); dead != 0 {
		d.t.Errorf("%d dead letters", dead)
	}
}

func TestWhatARelayMayNotSendIsADeadLetterThatCanBeRequeued(t *testing.T) {
	t.Parallel()
	d := setup(t)
	topic := "__internal-" + d.Config().Database
	relay := d.relay(toKafka(t, ""))
	d.publish(topic, 1)
	until(t, "the dead letters are there", func() bool { return d.int(`SELECT count(*) FROM outbox.dead_letters`) == 10 })
	d.outbox("dead", "ls").want(exitOK, topic, "refused", "key-9")
	d.outbox("status").want(exitOK, "DEAD")
	var group string // one for all
	if err := d.QueryRow(t.Context(), `SELECT DISTINCT fingerprint FROM outbox.dead_letters`).Scan(&group); err != nil {
		t.Fatal(err)
	}
	d.outbox("dead", "group").want(exitOK, group, topic, "refused")
	d.outbox("dead", "requeue", "--group", group, "--yes", "--now").want(exitOK, "requeued 10 messages")
	until(t, "they have died again", func() bool { return d.int(`SELECT count(*) FROM outbox.dead_letters WHERE deaths = 2`) == 10 })
	var groups find.DeadGroups
	if err := json.Unmarshal([]byte(d.outbox("dead", "group", "-o", "json").want(exitOK).stdout), &groups); err != nil ||
		groups.Groups[0].Again != 10 {
		t.Errorf("%+v, %v", groups, err)
	}
	d.outbox("relays").want(exitOK, "kafka")
	d.outbox("audit").want(exitOK, "requeue")
	d.outbox("holds").want(exitOK, "none")
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}

	d.relay(toKafka(t, ", internal_topics: true, create_topics: true"))
	d.outbox("dead", "requeue", "--topic", topic, "--yes", "--now", "--reason",
		"internal topics are allowed now").want(exitOK, "requeued 10 messages")
	d.settled(10)
}

func TestWhatGoesToAnUnknownTopicWaitsUntilThereIsOne(t *testing.T) {
	t.Parallel()
	d := setup(t)
	topic := "missing-" + d.Config().Database
	relay := d.relay(toKafka(t, ""))
	d.publish(topic, 1)
	until(t, "all wait", func() bool { return d.int(`SELECT count(*) FROM outbox.holds`) == 10 })
	d.outbox("status").want(exitOK, topic, "doesn't exist")
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}

	d.relay(toKafka(t, ", create_topics: true"))
	d.settled(10)
}

func TestStatusWatchesUntilInterrupted(t *testing.T) {
	t.Parallel()
	d := setup(t)
	p := d.start(nil, "status", "--watch", "--interval", "100ms", "-o", "json")
	until(t, "it has looked twice", func() bool { return strings.Count(p.stdout.String(), "no_relay") >= 4 })
	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	for line := range strings.Lines(p.stdout.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not a line of JSON: %s", line)
		}
	}
}

func TestTwoRelaysOfOneNameAreRefused(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	first := d.relay(d.fileYAML(""), "--name", "twin")
	until(t, "the first is registered", func() bool { return d.int(`SELECT count(*) FROM outbox.relays`) == 1 })
	second := d.relay(d.fileYAML(""), "--name", "twin")
	if code := second.wait(); code != exitError {
		t.Errorf("exit code %d", code)
	}
	if log := second.stderr.String(); !strings.Contains(log, `"twin" runs on host`) || !strings.Contains(log, "--name") {
		t.Errorf("the second says %s", log)
	}
	d.outbox("status").want(exitOK, "twin", "IDLE")
	if code := first.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestAnotherRelayTakesOver(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	first := d.relay(d.fileYAML(""), "--name", "first")
	until(t, "the first delivers", func() bool {
		return d.int(`SELECT count(*) FROM outbox.cursors WHERE owner = 'first' AND lease_until > now()`) == 1
	})
	second := d.relay(d.fileYAML(""), "--name", "second")
	until(t, "the second stands by", func() bool { return strings.Contains(second.stderr.String(), "standing by") })
	d.publish("orders", 5)
	until(t, "all is there", func() bool { return d.count() == 50 })
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	first.wait()
	d.publish("orders", 5)
	until(t, "the rest is there", func() bool { return d.count() >= 100 })
	until(t, "the rest is settled", func() bool { return d.int(`SELECT sum(delivered) FROM outbox.cursors`) == 100 })
	d.outbox("status", "--exit-code").want(exitOK, "second")
	if code := second.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestTheRelayEmptiesSegmentsThatAreDelivered(t *testing.T) {
	t.Parallel()
	d := setup(t)
	// A segment that nobody writes to for half an hour, whatever the time is.
	d.exec(`INSERT INTO outbox.messages (topic, segment) SELECT 'old', (date_part('epoch', clock_timestamp())::bigint / 600 + 4) % 8 FROM generate_series(1, 100)`)
	relay := d.relay("retention: {interval: 100ms}\n" + d.fileYAML(""))
	until(t, "the segment is empty", func() bool { return d.int(`SELECT count(*) FROM outbox.messages`) == 0 })
	if n := d.count(); n != 100 {
		t.Errorf("%d delivered", n)
	}
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestARestoredDumpIsRefusedUntilItIsRebased(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.publish("orders", 1)
	first := d.relay(d.fileYAML(""), "--name", "first")
	until(t, "all is delivered", func() bool { return d.count() == 10 })
	if code := first.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	d.outbox("rebase", "--destination", "file", "--yes").want(exitOK, "nothing to do")
	d.exec(`UPDATE outbox.cursors SET system_identifier = 1`) // as after pg_dump and pg_restore elsewhere
	d.publish("orders", 1)

	second := d.relay(d.fileYAML(""), "--name", "second")
	until(t, "the log says what to do", func() bool {
		return strings.Contains(second.stderr.String(), "outbox rebase --destination file")
	})
	until(t, "the verdict says it, too", func() bool {
		r := d.outbox("status")
		return strings.Contains(r.stdout, "BROKEN") && strings.Contains(r.stdout, "outbox rebase --destination file")
	})
	if code := second.stop(); code != exitOK || d.count() != 10 {
		t.Errorf("exit code %d, %d delivered", code, d.count())
	}
	d.outbox("rebase").want(exitUsage, "--destination")
	d.outbox("rebase", "--destination", "flie", "--yes").want(exitNotFound, "outbox destinations ls")
	d.outbox("rebase", "--destination", "file").want(exitUsage, "--yes")
	d.outbox("rebase", "--destination", "file", "--yes", "--reason", "restored").want(exitOK, "rebased file: 10 messages")
	third := d.relay(d.fileYAML(""), "--name", "third")
	until(t, "the rest is delivered", func() bool { return d.count() == 20 })
	if code := third.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
