package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

// several writes a configuration of databases by name and URL, and returns its folder.
func several(t *testing.T, databases ...string) string {
	t.Helper()
	folder := t.TempDir()
	yaml := "destinations: [{name: kafka, broker: {stdout: {}}}]\ndatabases:\n"
	for i := 0; i < len(databases); i += 2 {
		yaml += fmt.Sprintf("  - name: %s\n    database: {url: %q}\n", databases[i], databases[i+1])
	}
	if err := os.WriteFile(filepath.Join(folder, "outbox.yaml"), []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

// silent is the URL of a database that accepts connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // the system accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return "postgres://nobody@" + l.Addr().String() + "/silent?sslmode=disable&connect_timeout=2"
}

// leased gives the database a relay that works on the destination.
func (d *database) leased(destination string) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier, owner, lease, lease_until)
		SELECT $1, 0, 1, system_identifier, 'relay-1', '1 hour', now() + interval '1 hour' FROM pg_control_system()`, destination)
}

func TestAllDatabasesAreShownAndOneThatHangsIsBroken(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	const ok, critical = 0, 2
	orders, billing := setup(t), setup(t)
	orders.leased("kafka")
	billing.leased("kafka")
	both := several(t, "orders", orders.url, "billing", billing.url)
	three := several(t, "hangs", silent(t), "orders", orders.url, "billing", billing.url)

	command(t, both, nil, "status", "--exit-code").want(exitOK, "all 2 databases are well: 2 idle\n", "\norders: IDLE",
		"\nbilling: IDLE").never("need")
	command(t, both, []string{"DATABASE_URL=" + billing.url}, "status").want(exitOK, "all 2 databases are well: 2 idle\n")
	command(t, both, []string{"OUTBOX_DATABASE_URL=" + billing.url}, "status").want(exitOK, "IDLE").never("2 databases")
	command(t, both, nil, "check").want(ok, "OUTBOX OK - 2 databases: 2 OK | 'orders/kafka_oldest'=0s;;;0",
		"'billing/kafka_oldest'=0s;;;0")
	command(t, three, nil, "status").want(exitError, "1 of 3 databases needs you: hangs (broken): 1 broken, 2 idle\n", "\nhangs: BROKEN: ",
		"\norders: IDLE", "\nbilling: IDLE", "1 of 3 databases could not be asked: hangs")
	command(t, three, nil, "check").want(critical, "OUTBOX CRITICAL - hangs: ", "3 databases: 1 CRITICAL, 2 OK | 'orders/kafka_oldest'")

	// One alone has the same state.
	for _, url := range []string{silent(t), "postgres://nobody@127.0.0.1:1/x"} {
		env := []string{"OUTBOX_DATABASE_URL=" + url}
		command(t, both, env, "status").want(exitError, "BROKEN: ", "\nnext: check the database\n")
		command(t, both, env, "status", "-o", "json").want(exitError, `"state": "broken"`)
		command(t, both, env, "check").want(critical, "OUTBOX CRITICAL - ")
	}

	billing.exec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, payload, created_at,
		attempts, reason, error) VALUES ('kafka', 'k', 1, '00000000-0000-7000-8000-000000000001', 'orders', 'k', 0, '', now(), 10, 'refused', 'no')`)
	command(t, three, nil, "status", "--exit-code").want(exitError,
		"2 of 3 databases need you: hangs (broken), billing (dead): 1 broken, 1 dead, 1 idle\n", "\nbilling: DEAD",
		"\norders: IDLE", " --database billing\n")
	r := command(t, three, nil, "status", "-o", "json").want(exitError, " --database billing\"")
	var reports []struct {
		Name    string
		Verdict struct{ State, Cause string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &reports); err != nil || len(reports) != 3 || reports[0].Name != "hangs" ||
		reports[0].Verdict.State != "broken" || reports[0].Verdict.Cause == "" || reports[1].Verdict.State != "idle" ||
		reports[2].Verdict.State != "dead" {
		t.Errorf("%v %+v", err, reports)
	}
	command(t, three, nil, "check").want(critical, "OUTBOX CRITICAL - hangs: ",
		"3 databases: 1 CRITICAL, 1 WARNING, 1 OK |")
	command(t, three, nil, "check", "--destination", "none").want(critical, "OUTBOX CRITICAL")
	command(t, three, nil, "check", "-o", "json").want(critical, `"result": "CRITICAL"`, `"result": "WARNING"`, `"name": "hangs"`, `"name": "orders"`)
	r = command(t, three, nil, "check", "-o", "prometheus").want(critical, "# hangs: ",
		`outbox_destination_state{database="orders",destination="kafka",state="idle"} 1`,
		`outbox_destination_state{database="billing",destination="kafka",state="dead"} 1`)
	seen := map[string]bool{} // the format allows one head for each metric
	for lines := bufio.NewScanner(strings.NewReader(r.stdout)); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, "# TYPE") && seen[line] {
			t.Errorf("%s is there twice", line)
		} else {
			seen[line] = true
		}
	}

	r = command(t, three, nil, "doctor").want(exitError, "hangs: the database could not be asked", "\norders: database ",
		"\nbilling: database ", " --database billing\n", "1 of 3 databases could not be asked: hangs").never(" --database orders")
	if n := strings.Count(r.stdout, "destination kafka\n"); n != 3 {
		t.Errorf("%d brokers in\n%s", n, r.stdout)
	}
	command(t, three, nil, "doctor", "--database", "orders").want(exitOK, "database ").never("billing", "hangs")
	command(t, three, nil, "doctor", "-o", "json", "--exit-code").want(exitError, `"name": "hangs"`, `"name": "orders"`, "faults")

	// What acts on one has to be told which.
	command(t, three, nil, "dead", "ls").want(exitUsage, "name one with --database: hangs, orders, billing")
	command(t, three, nil, "status", "--database", "orders", "--exit-code").want(exitOK, "IDLE").never("billing")
	command(t, three, nil, "status", "--database", "billing").want(exitOK, "DEAD", " --database billing\n")
	command(t, three, nil, "status", "--database", "hangs").want(exitError)
}
