package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

func TestMigrateInstallsAndReports(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	d.outbox("migrate", "status", "--exit-code").want(exitError, "pending", "outbox migrate up")
	d.outbox("migrate", "up", "--dry-run").want(exitOK, "would apply 0001_outbox")
	d.outbox("migrate", "up").want(exitOK, "applied 0001_outbox")
	d.outbox("migrate", "up").want(exitOK, "nothing to do")
	d.outbox("migrate", "status", "--exit-code").want(exitOK, fmt.Sprintf("version %[1]d of %[1]d", schema.Latest()))
	var status struct{ Version, Latest int }
	r := d.outbox("migrate", "status", "-o", "json").want(exitOK)
	if err := json.Unmarshal([]byte(r.stdout), &status); err != nil || status.Version != schema.Latest() ||
		status.Latest != schema.Latest() {
		t.Errorf("%+v: %v", status, err)
	}
	d.outbox("migrate", "grants", "--writer", "w", "--relay", "r").want(exitOK, `TO "w"`, `TO "r"`)
	d.outbox("migrate", "grants", "--consumer", "c").want(exitOK, `outbox.receive(text, uuid, text, boolean) TO "c"`)
	d.outbox("migrate", "grants").want(exitUsage, "--writer", "--consumer")
	d.outbox("migrate", "sql", "--from", "9").want(exitUsage, "versions are 0")
	if r := d.outbox("migrate", "sql").want(exitOK, "CREATE TABLE outbox.cursors"); r.stderr != "" {
		t.Errorf("on standard error: %s", r.stderr)
	}
}

func TestStatusSaysWhatToDo(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.outbox("status").want(exitOK, "NO RELAY: ", "next: outbox relay").never("wait")
	d.exec(`INSERT INTO outbox.messages (topic) VALUES ('orders')`)
	d.outbox("status").want(exitOK, "no relay has ever worked on this database, and 1 message waits in outbox.messages",
		"next: outbox relay")
	d.outbox("status", "-o", "json").want(exitOK, `"waiting": {`, `"n": 1`, `"waiting_since": "2`)
	d.outbox("check").want(2, "1 message waits")
	d.exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier, owner, epoch, lease, lease_until, state, last_error, last_error_at)
		SELECT 'kafka', 0, 1, system_identifier, 'relay-1', 3, '1 hour', now() + interval '1 hour', 'stalled', E'refused\x1b[31m', now() FROM pg_control_system()`)
	d.outbox("status").want(exitOK, "STALLED", "relay-1", "check the broker", `refused\x1b[31m`).never("\x1b")
	d.outbox("status", "--exit-code").want(exitError, "outbox: stalled")
	var report health.Report
	r := d.outbox("status", "-o", "json").want(exitOK)
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil || report.Verdict.State != health.StateStalled ||
		report.Destinations[0].Pending.N != 1 {
		t.Errorf("%+v: %v", report, err)
	}
	d.outbox("destinations", "ls").want(exitOK, "kafka", "stalled")
	d.outbox("destinations", "drop", "kafka", "--yes").want(exitError, "in use", "relay-1")
	d.outbox("destinations", "drop", "kafka-2", "--yes").want(exitNotFound, "no such destination")
	d.exec(`UPDATE outbox.cursors SET lease_until = now()`)
	d.outbox("destinations", "drop", "kafka").want(exitUsage, "--yes")
	d.outbox("destinations", "drop", "kafka", "--dry-run").want(exitOK, "undelivered")
	d.outbox("destinations", "drop", "kafka", "--yes", "--reason", "moved", "--actor", "anna").want(exitOK, "dropped kafka")
	if n := d.int(`SELECT count(*) FROM outbox.audit WHERE actor = 'anna' AND reason = 'moved' AND verb = 'drop_destination'`); n != 1 {
		t.Errorf("%d audit rows", n)
	}
}

// letters adds three dead letters and a blocked lane.
func (d *database) letters() {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier) SELECT 'kafka', 0, 1, system_identifier FROM pg_control_system()`)
	d.exec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, payload, created_at, attempts, reason, error)
		SELECT 'kafka', 'k' || i, i, ('00000000-0000-7000-8000-00000000000' || i)::uuid, 'orders', 'k' || i, 0, 'the secret', now(), 10,
		       CASE i WHEN 3 THEN 'refused' ELSE 'exhausted' END, 'no ' || i
		FROM generate_series(1, 3) i`)
	d.exec(`INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, payload, created_at, retry_at, error)
		VALUES ('kafka', 'held', 7, '00000000-0000-7000-8000-000000000007', 'orders', 'held', 0, 'the secret', now(), 'infinity', 'too large'),
		       ('kafka', 'held', 8, '00000000-0000-7000-8000-000000000008', 'orders', 'held', 0, 'the secret', now(), NULL, NULL)`)
}

func TestACheckSpeaksToMonitoringSystems(t *testing.T) {
	t.Parallel()
	const ok, warning, critical, unknown = 0, 1, 2, 3
	d := setup(t)
	d.exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier, owner, lease, lease_until)
		SELECT 'kafka', 0, 1, system_identifier, 'relay-1', '1 hour', now() + interval '1 hour' FROM pg_control_system()`)
	d.outbox("check").want(ok, "OUTBOX OK - idle | 'kafka_oldest'=0s;;;0")
	d.exec(`INSERT INTO outbox.messages (topic) VALUES ('a'), ('a')`)
	d.outbox("check", "--pending-warning", "2").want(warning, "OUTBOX WARNING - kafka: pending 2, warning from 2")
	d.outbox("check", "--pending-critical", "2").want(critical, "OUTBOX CRITICAL")
	d.outbox("check", "--destination", "none").want(critical, "no relay has worked on it yet")
	r := d.outbox("check", "-o", "prometheus").want(ok, `outbox_destination_state{database="default",destination="kafka",state="flowing"} 1`,
		`outbox_destination_state{database="default",destination="kafka",state="dead"} 0`, `outbox_pending_messages{database="default",destination="kafka"} 2`)
	if strings.Contains(r.stdout, "go_") {
		t.Error("it has metrics of this process")
	}
	d.outbox("check", "-o", "json", "--pending-critical", "2").want(critical, `"result": "CRITICAL"`, `"pending"`)
	for _, args := range [][]string{{"--nonsense"}, {"-o", "table"}, {"extra", "more"}, {"--pending-warning", "-1"},
		{"--dead-warning", "2", "--dead-critical", "1"}} {
		if r := d.outbox(append([]string{"check"}, args...)...).want(unknown,
			"OUTBOX UNKNOWN - "); strings.Count(r.stdout, "\n") != 1 || r.stderr != "" {
			t.Errorf("%q prints %q and %q", args, r.stdout, r.stderr)
		}
	}
	// A relay can't work with it either.
	d.outbox("check", "--database-url", "postgres://127.0.0.1:1/x").want(critical, "OUTBOX CRITICAL - no PostgreSQL listens")
	d.exec(`UPDATE outbox.cursors SET lease_until = now() - interval '1 minute'`)
	d.outbox("check").want(critical, "OUTBOX CRITICAL - no relay for 1m", "Next: start relay-1 again: outbox relay")
}

func TestDeadLettersAreListedAndShownWithoutPayloads(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.outbox("dead", "ls").want(exitOK, "none")
	d.letters()
	d.outbox("dead", "ls").want(exitOK, "00000000-0000-7000-8000-000000000001", "exhausted", "no 2", "k3").never("secret", "too large")
	d.outbox("dead", "ls", "--cause", "refused").want(exitOK, "k3").never("k1")
	d.outbox("dead", "ls", "--blocked").want(exitOK, "too large", "BEHIND").never("no 1")
	d.outbox("dead", "ls", "--limit", "2").want(exitOK, "--after kafka:2:00000000-0000-7000-8000-000000000002").never("k3")
	d.outbox("dead", "ls", "--after", "kafka:2:00000000-0000-7000-8000-000000000002").want(exitOK, "k3").never("k2")
	d.outbox("dead", "ls", "--payload").want(exitUsage, "-o json")
	d.outbox("dead", "ls", "--cause", "bad").want(exitUsage, "invalid, refused, exhausted")
	d.outbox("dead", "ls", "-o", "xml").want(exitUsage, "table, json or jsonl")
	if lines := strings.Split(strings.TrimSpace(d.outbox("dead", "ls", "-o", "jsonl").want(exitOK).stdout), "\n"); len(lines) != 3 {
		t.Errorf("%d lines", len(lines))
	}
	var list []find.DeadLetter
	r := d.outbox("dead", "ls", "-o", "json", "--payload").want(exitOK)
	if err := json.Unmarshal([]byte(r.stdout), &list); err != nil || len(list) != 3 || string(list[0].Payload) != "the secret" {
		t.Errorf("%+v: %v", list, err)
	}
	d.outbox("dead", "show", "00000000-0000-7000-8000-000000000002").want(exitOK, "no 2", "position").never("secret")
	d.outbox("dead", "show", "2", "--payload").want(exitOK, "the secret")
	file := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(file, []byte("new \xff"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.outbox("dead", "edit", "2", "topic=bills", "--payload", "@"+file, "--dry-run").want(exitOK, "- topic", "orders",
		"+ topic", "bills", "the secret", "6e657720ff")
	d.outbox("dead", "edit", "2", "topic=bills", "--payload", "@"+file).want(exitUsage, "+ topic", "--yes")
	d.outbox("dead", "edit", "2", "topic=bills", "--payload", "@"+file+".none").want(exitUsage, "--payload", "no such file")
	d.outbox("dead", "edit", "2", "topic=***").want(exitUsage, "can't be written back")
	d.outbox("dead", "edit", "2", "key=x").want(exitUsage, "topic=, event_type=")
	d.outbox("dead", "edit", "2", "header.=x").want(exitUsage, "header.NAME to remove one")
	// Rows may have a header without a name.
	d.outbox("dead", "edit", "2", "header.", "header.absent", "topic=bills", "--dry-run").want(exitOK, "+ topic")
	d.outbox("dead", "show", "2", "--payload").want(exitOK, "the secret").never("edited")
	d.outbox("dead", "edit", "2", "--empty-payload", "--payload", "@"+file).want(exitUsage, "excludes another payload")
	d.outbox("dead", "edit", "2", "--empty-payload", "--yes").want(exitOK, "edited")
	if n := d.int(`SELECT octet_length(payload) FROM outbox.dead_letters WHERE id = 2`); n != 0 {
		t.Errorf("the payload has %d bytes", n)
	}
	d.outbox("dead", "edit", "2", "topic=bills", "--payload", "@"+file, "--yes").want(exitOK, "edited", "outbox dead requeue")
	d.outbox("dead", "show", "2", "--payload").want(exitOK, "- topic", "orders", "+ topic", "bills", "- payload", "the secret")
	d.outbox("dead", "edit", "2", "--restore", "--yes").want(exitOK, "edited")
	d.outbox("dead", "show", "9").want(exitNotFound, "outbox dead ls")
	d.outbox("dead", "show", "nonsense").want(exitUsage, "neither a message id")
	d.outbox("dead", "show").want(exitUsage, "--help")
}

func TestDestructiveCommandsPreviewAndAsk(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.letters()
	left := func() int { return d.int(`SELECT count(*) FROM outbox.dead_letters`) }
	for _, verb := range []string{"requeue", "discard", "ack"} {
		d.outbox("dead", verb).want(exitUsage, "nothing is selected")
		d.outbox("dead", verb, "--all").want(exitUsage, "MESSAGES", "--yes")
		d.outbox("dead", verb, "--all", "--dry-run").want(exitOK, "MESSAGES", "exhausted")
		d.outbox("dead", verb, "--all", "--yes", "--max", "2").want(exitError, "3 are selected, at most 2")
		d.outbox("dead", verb, "9", "--yes").want(exitNotFound, "no dead letter", "has such an id")
		d.outbox("dead", verb, "--topic", "carts", "--yes").want(exitOK, "nothing matches")
	}
	if n := left(); n != 3 {
		t.Fatalf("%d are left of 3", n)
	}
	d.outbox("dead", "ack", "1", "--yes", "--now", "--actor", "anna").want(exitOK, "acknowledged 1 message")
	d.outbox("dead", "ls").want(exitOK, "KNOWN TO", "anna")
	d.outbox("dead", "ls", "--new").want(exitOK, "no 2").never("no 1")
	d.outbox("dead", "ls", "--new", "--blocked").want(exitUsage, "exclude each other")
	d.outbox("dead", "show", "1").want(exitOK, "acknowledged", "by anna")
	d.outbox("dead", "ack", "--all", "--blocked", "--yes").want(exitError, "blocked messages can't be acknowledged")
	d.outbox("status", "--exit-code").want(exitError, "2 new dead letters", "outbox dead ack --destination kafka")
	d.outbox("dead", "requeue", "1", "--yes", "--now", "--reason", "mended").want(exitOK, "requeued 1 message")
	d.outbox("dead", "discard", "00000000-0000-7000-8000-000000000002", "--yes", "--now").want(exitOK, "discarded 1 message")
	r := d.outbox("dead", "discard", "--cause", "refused", "--yes", "--now", "-o", "json").want(exitOK)
	var out jobs.Job
	if err := json.Unmarshal([]byte(r.stdout), &out); err != nil || out.Done != 1 {
		t.Errorf("%+v: %v", out, err)
	}
	if n := left(); n != 0 {
		t.Errorf("%d are left", n)
	}
	if n := d.int(`SELECT count(*) FROM outbox.holds WHERE id = 1 AND retry_at <= now() AND attempts = 0`); n != 1 {
		t.Error("the requeued one is not due")
	}
	d.outbox("dead", "requeue", "--blocked", "--key", "held", "--yes", "--now").want(exitOK, "requeued 1 message")
	if n := d.int(`SELECT count(*) FROM outbox.holds WHERE retry_at = 'infinity'`); n != 0 {
		t.Error("the lane is still blocked")
	}
	if n := d.int(`SELECT count(*) FROM outbox.audit WHERE actor LIKE '%@%'`); n != 4 {
		t.Errorf("%d audit rows", n)
	}
}

func TestWrongUsageExitsWith2(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	command(t, folder, nil, "nonsense").want(exitUsage, "unknown command")
	command(t, folder, nil, "staus").want(exitUsage, `did you mean "status"?`)
	command(t, folder, nil, "dead", "nonsense").want(exitUsage, "unknown command")
	command(t, folder, nil, "dead").want(exitOK, "requeue")
	command(t, folder, nil, "status", "--nonsense").want(exitUsage, "unknown flag", "--help")
	command(t, folder, nil, "status", "now").want(exitUsage, "now")
	command(t, folder, nil, "status").want(exitUsage, "no database is named", "OUTBOX_DATABASE_URL")
	command(t, folder, nil, "relay", "--set", "nonsense").want(exitUsage, "PATH=VALUE")
	if r := command(t, folder, nil, "--help").want(exitOK, "Exit codes"); r.stderr != "" {
		t.Errorf("help on standard error: %s", r.stderr)
	}
	command(t, folder, nil, "version").want(exitOK, "outbox ", fmt.Sprint("schema ", schema.Latest()))
	command(t, folder, nil, "version", "-o", "json").want(exitOK, fmt.Sprint(`"schema": `, schema.Latest()))
	command(t, folder, nil, "completion", "bash").want(exitOK, "__start_outbox")
}

func TestConfigurationFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, "outbox.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"DATABASE_URL=postgres://u:hunter22@127.0.0.1:1/x"}
	command(t, folder, env, "relay").want(exitConfig, "there is no outbox.yaml here", "outbox config schema")
	command(t, folder, env, "relay", "--config", "missing.yaml").want(exitConfig, "missing.yaml", "can't read the file")
	command(t, folder, append(env, "OUTBOX_CONFIG=missing.yaml"), "config", "validate").want(exitConfig, "missing.yaml")

	write("destinations:\n  - name: Bad Name\n    brokr: {}\n    deliver: {}\n")
	for _, args := range [][]string{{"config", "validate"}, {"config", "show"}, {"relay"}} {
		command(t, folder, env, args...).want(exitConfig, "outbox.yaml:2", "outbox.yaml:3", `did you mean "broker"`, `did you mean "delivery"`).never("hunter22")
	}
	write("destinations:\n  - name: all\n    broker: {kafka: {brokers: ['http://x:1']}}\n")
	command(t, folder, env, "config", "validate").want(exitConfig, "an address is host:port")
	write("database: {schema: other}\ndestinations:\n  - name: all\n    broker: {stdout: {}}\n")
	command(t, folder, env, "config", "validate").want(exitConfig, "schema")

	write("destinations:\n  - name: all\n    broker: {stdout: {}}\n")
	command(t, folder, env, "config", "validate").want(exitOK, "outbox.yaml is valid: 1 destination")
	command(t, folder, env, "config", "show", "--set", "destinations.0.delivery.batch=7").want(exitOK, "batch: 7",
		"outbox.yaml:2").never("hunter22")
	command(t, folder, env, "config", "schema").want(exitOK, "json-schema.org")
}

func TestTheConfigurationIsTriedOut(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	write := func(brokers string) {
		d.configure(d.fileYAML("  - name: kafka\n    broker: {kafka: {brokers: ['" + brokers + "']}}\n"))
	}
	write(freeAddress(t)) // and nothing listens there
	d.outbox("config", "validate").want(exitOK, "2 destinations")
	d.outbox("config", "validate", "--connect").want(exitError, "database: ", "outbox migrate up", "destination file: ok, it answers",
		"destination kafka: ", "refused", "2 of 3 can't be used")
	d.outbox("migrate", "up").want(exitOK)
	write(servers.TestKafka(t).Addr())
	d.outbox("config", "validate", "--connect").want(exitOK, "database: ok", "destination kafka: ok, it answers; topics")
}
