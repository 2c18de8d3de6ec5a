package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

func TestTheDoctorLooksAtEverythingAndItsRepairsRepair(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	d.outbox("doctor").want(exitError, "outbox migrate up")
	d.outbox("migrate", "up").want(exitOK)
	symptoms := func(about string) (found []health.Symptom) {
		t.Helper()
		var e health.Examination
		r := d.outbox("doctor", "-o", "json").want(exitOK)
		if err := json.Unmarshal([]byte(r.stdout), &e); err != nil {
			t.Fatal(err)
		}
		for _, s := range e.Symptoms {
			if s.About == about {
				found = append(found, s)
			}
		}
		return found
	}
	for _, about := range []string{"schema", "rights", "pooler", "clock", "statistics", "index", "slot"} {
		if s := symptoms(about); len(s) > 0 {
			t.Errorf("just installed: %+v", s)
		}
	}
	if s := symptoms("settings"); len(s) == 0 || !strings.Contains(s[0].Text, "fsync is off") { // as clusters of tests have it
		t.Errorf("settings: %+v", s)
	}
	d.exec(`DROP INDEX outbox.messages_xid_id`)
	s := symptoms("index")
	if len(s) != 1 {
		t.Fatalf("an index was dropped: %+v", s)
	}
	r := d.outbox("doctor", "--exit-code").want(exitError, "FAULT: index")
	if advice, fault := strings.Index(r.stdout, "ADVICE:"), strings.LastIndex(r.stdout, "FAULT:"); advice >= 0 && advice < fault {
		t.Errorf("the worst isn't first:\n%s", r.stdout)
	}
	d.exec(s[0].Repair)
	if s := symptoms("index"); len(s) > 0 {
		t.Errorf("its repair was run: %+v", s)
	}

	// A publication of all tables holds ours, and tables that destinations read.
	d.exec(`CREATE TABLE "Author's" (id bigint); CREATE PUBLICATION everything FOR ALL TABLES`)
	d.exec(`INSERT INTO outbox.tables (destination, shard_group, shard_groups, owner, session, strategy, mapping, state, state_since, lag_objective)
		VALUES ('shop', 0, 1, 'r', 's', 'advisory', '{"Table": "Author''s"}', 'flowing', now(), '30s')`)
	d.exec(`ALTER TABLE outbox.controls REPLICA IDENTITY NOTHING`)
	found := symptoms("publication")
	var texts []string
	for _, s := range found {
		texts = append(texts, s.Text+": "+s.Repair)
	}
	const text = "publication everything is FOR ALL TABLES, and so holds %s, whose rows have no replica identity: " +
		"the server refuses every change of a row that it publishes: ALTER TABLE %[1]s REPLICA IDENTITY %s"
	if want := []string{fmt.Sprintf(text, `"Author's"`, "FULL"), fmt.Sprintf(text, "outbox.controls", "DEFAULT")}; !slices.Equal(texts, want) {
		t.Fatalf("it finds\n%q, want\n%q", texts, want)
	}
	for _, s := range found {
		d.exec(s.Repair)
	}
	if s := symptoms("publication"); len(s) > 0 {
		t.Errorf("its repairs were run: %+v", s)
	}
	d.outbox("doctor", "--table", "outbox.messages", "--server", "http://127.0.0.1:1").want(exitUsage, "this machine")

	pooler := servers.OwnPgBouncer(t, servers.PgBouncerConfig{Server: servers.TestPostgres(t).Addr()})
	d.outbox("doctor", "--database-url", pooler.URL(d.Config().Database)).want(exitOK, "RISK: pooler", "the address of PostgreSQL itself")
}

func TestTheDoctorAsksTheBrokersOfTheConfiguration(t *testing.T) {
	t.Parallel()
	d := setup(t)
	file := filepath.Join(d.folder, "outbox.yaml")
	yaml := d.fileYAML("  - name: nats\n    broker: {nats: {url: 'nats://" + freeAddress(t) + "'}}\n")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	d.outbox("doctor", "--exit-code").want(exitError, "FAULT: destination nats", "outbox config validate --connect")
}

func TestTheDoctorKnowsThatARelayHasItsFileOpen(t *testing.T) {
	t.Parallel()
	d := setup(t)
	if err := os.WriteFile(filepath.Join(d.folder, "outbox.yaml"), []byte(d.fileYAML("")), 0o600); err != nil {
		t.Fatal(err)
	}
	d.relay(d.fileYAML(""))
	until(t, "the relay has opened its file", func() bool { _, err := os.Stat(d.file()); return err == nil })
	d.outbox("config", "validate", "--connect").want(exitOK, "destination file: ok")
	if run := d.outbox("doctor"); strings.Contains(run.stdout, "destination file:") {
		t.Errorf("the relay's own file is a symptom:\n%s", run.stdout)
	}
}

func TestACanaryTravelsTheWholeWay(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.outbox("canary", "canaries", "--yes").want(exitError, "start a relay")
	d.relay(d.fileYAML("  - name: elsewhere\n    broker: {nats: {url: 'nats://" + freeAddress(t) + "'}}\n"))
	until(t, "both destinations have a cursor", func() bool { return d.int(`SELECT count(*) FROM outbox.cursors`) == 2 })
	d.outbox("canary", "canaries", "--dry-run").want(exitOK)
	d.outbox("canary", "canaries").want(exitUsage, "--yes")
	d.outbox("canary", "canaries", "--destination", "file", "--key", "tweety", "--yes", "--reason", "a test").want(exitOK,
		"file settled it after").never("elsewhere")
	if got := d.delivered()["tweety"]; len(got) != 1 || !strings.Contains(got[0], "canary") {
		t.Errorf("delivered: %q", got)
	}
	d.outbox("canary", "canaries", "--yes", "--wait", "10s").want(exitError, "file settled it", "elsewhere has not come to it")
	if n := d.int(`SELECT count(*) FROM outbox.audit WHERE verb = 'canary'`); n != 3 {
		t.Errorf("%d rows in the audit", n)
	}
}

func TestTheDoctorsProposalSaysThatRowsWillBeDeleted(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	d.exec(`CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
		type varchar(255) NOT NULL, payload jsonb)`)
	d.outbox("doctor", "--table", "outboxevent").want(exitOK, "preset: \"debezium\"\n  # This preset DELETES delivered rows.",
		"delivered rows are DELETED", "or read the table by the write-ahead log")
}

// What a relay's role lacks is told by validate and by the doctor, with what repairs it, and not first by a relay.
func TestWhatARelayCouldNotDoIsToldBeforeItRuns(t *testing.T) {
	t.Parallel()
	d := setup(t)
	role := "relay_" + d.Config().Database
	d.exec("CREATE ROLE " + role + " LOGIN")
	t.Cleanup(func() { _, _ = d.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	d.exec(schema.Grants("", role, role))
	d.exec(`CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, payload text, sent_at timestamptz)`)
	slot := "shop_" + d.Config().Database
	d.exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	t.Cleanup(func() { d.dropSlot(slot) })
	columns := "      table: events\n      columns: {id: id, topic: '{topic}', payload: payload}\n"
	yaml := d.fileYAML("    replication: {}\n" +
		"  - name: marked\n    broker: {stdout: {}}\n    source:\n      strategy: advisory\n" + columns +
		"      done: {how: timestamp, column: sent_at}\n      failure: {dead_table: dead}\n" +
		"  - name: logged\n    broker: {stdout: {}}\n    replication: {slot: " + slot + ", publication: shop}\n" +
		"    source:\n      strategy: replication\n" + columns)
	if err := os.WriteFile(filepath.Join(d.folder, "outbox.yaml"), []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(d.url)
	if err != nil {
		t.Fatal(err)
	}
	address.User = url.User(role)
	as := func(args ...string) result { return d.outbox(append(args, "--database-url", address.String())...) }
	lacks := []string{"source of file: the role has no right to replicate", `ALTER ROLE "` + role + `" REPLICATION`,
		`CREATE PUBLICATION "outbox" FOR TABLE "outbox"."messages"`, "source of marked: the table of dead letters",
		"outbox migrate sources", "source of logged: there is no publication"}
	as("config", "validate", "--connect").want(exitError, lacks...)
	for i := range lacks {
		lacks[i] = strings.Replace(lacks[i], "source of", "FAULT: source of", 1)
	}
	as("doctor", "--exit-code").want(exitError, lacks...)

	d.exec(`ALTER ROLE ` + role + ` REPLICATION`)
	d.exec(`CREATE PUBLICATION outbox FOR TABLE outbox.messages WITH (publish = 'insert', publish_via_partition_root = true)`)
	d.outbox("migrate", "sources", "--apply").
		want(exitError, "dead letters", "isn't sent through the slot", "pg_drop_replication_slot('"+slot+"')")
	d.dropSlot(slot)
	d.outbox("migrate", "sources", "--apply").want(exitOK, "publication shop", "replication slot "+slot)
	as("config", "validate", "--connect").want(exitError, "source of file: ok", "source of logged: ok",
		"source of marked: ", "permission denied",
		`GRANT SELECT, UPDATE, DELETE ON "events" TO "`+role+`"; GRANT SELECT, INSERT ON "dead" TO "`+role+`"`)
	d.exec(`GRANT SELECT, UPDATE, DELETE ON events TO ` + role + `; GRANT SELECT, INSERT ON dead TO ` + role)
	as("config", "validate", "--connect").want(exitOK, "source of marked: ok, no row waits")
	as("doctor").want(exitOK, "source of file", "source of marked (no row waits", "source of logged").never("FAULT: source")
}

// One table has several names, and the server knows that they mean one.
func TestTwoDestinationsOfOneTableAreToldBeforeTheyRun(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.exec(`CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, payload text, sent_at timestamptz)`)
	d.exec(mapping.OffsetsDDL(mapping.TableName{Name: "moved"}))
	source := func(name, strategy, more string) string {
		return "  - name: " + name + "\n    broker: {stdout: {}}\n    source:\n      strategy: " + strategy +
			"\n      columns: {id: id, topic: '{topic}', payload: payload}\n" + more
	}
	marks := "      done: {how: timestamp, column: sent_at}\n      failure: {dead_table: dead}\n"
	yaml := d.fileYAML(source("one", "advisory", "      table: events\n"+marks) +
		source("two", "skiplocked", "      table: public.events\n"+marks) +
		source("three", "serial", "      table: events\n      offsets: {table: moved}\n") +
		source("four", "serial", "      table: events\n      offsets: {table: public.moved}\n"))
	if err := os.WriteFile(filepath.Join(d.folder, "outbox.yaml"), []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	d.outbox("migrate", "sources", "--apply").want(exitOK, "dead letters")
	told := []string{"source of one: ok", "source of two: destination one records in table events, which is public.events",
		"source of three: ok", "source of four: destination three records in table moved, which is public.moved"}
	d.outbox("config", "validate", "--connect").want(exitError, told...)
	d.outbox("doctor").want(exitOK, "FAULT: "+told[1], "FAULT: "+told[3])
}
