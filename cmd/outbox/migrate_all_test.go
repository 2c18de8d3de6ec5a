package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/schema"
)

// olds is a database whose schema is that of the program of the version before.
func olds(t *testing.T) *database {
	t.Helper()
	d := emptyDatabase(t)
	text, err := schema.SQL(0, schema.Latest()-1)
	if err != nil {
		t.Fatal(err)
	}
	d.exec(text)
	return d
}

// One command brings all databases to the program's version: those that fail stop none of the others, and a second run
// does what is left.
func TestAllDatabasesAreMigratedAndWhatFailsIsLeftForTheNextRun(t *testing.T) {
	t.Parallel()
	before, current, empty := olds(t), setup(t), emptyDatabase(t)
	latest := schema.Latest()
	folder := several(t, "away", "postgres://nobody@127.0.0.1:1/x", "before", before.url, "current", current.url, "empty", empty.url)

	command(t, folder, nil, "migrate", "status", "--all").want(exitError,
		fmt.Sprintf("4 databases, and version %d is this program's", latest),
		fmt.Sprintf("1 with version %d, 1 with version %d, 1 without the schema, 1 that could not be read", latest, latest-1),
		"1 migration is pending", "the schema is missing", "no PostgreSQL listens").never("\ncurrent ")
	command(t, folder, nil, "migrate", "up", "--all", "--dry-run").want(exitError, "before: would apply ", "empty: would apply 0001_outbox",
		"2 would be brought to version", "1 failed").never("current: ", ": 2 brought to")
	command(t, folder, nil, "migrate", "up", "--all").want(exitError, "away: failed: no PostgreSQL listens", "before: applied ",
		"empty: applied 0001_outbox", fmt.Sprintf("4 databases: 2 brought to version %d, 1 had it already, 1 failed\n", latest),
		"1 of 4 databases: not migrated: away: run it again").never("current: ")
	var sum struct {
		Applied, Current, Failed int
		Databases                []struct{ Name, Result, Cause string }
	}
	r := command(t, folder, nil, "migrate", "up", "--all", "-o", "json", "--parallel", "1").want(exitError)
	if err := json.Unmarshal([]byte(r.stdout), &sum); err != nil || sum.Applied != 0 || sum.Current != 3 || sum.Failed != 1 ||
		sum.Databases[0].Result != "failed" || sum.Databases[0].Cause == "" || sum.Databases[1].Result != "current" {
		t.Errorf("%v %+v", err, sum)
	}
	without := several(t, "before", before.url, "empty", empty.url)
	command(t, without, nil, "migrate", "up", "--all").want(exitOK, "2 databases: 2 had it already")
	command(t, without, nil, "migrate", "status", "--all", "--exit-code").want(exitOK, fmt.Sprintf(": 2 with version %d\n", latest))
	command(t, without, nil, "migrate", "up", "--all", "--database", "empty").want(exitUsage, "--all excludes")
	command(t, without, nil, "migrate", "up", "--all", "--parallel", "0").want(exitUsage, "--parallel")
	command(t, without, nil, "migrate", "up", "--all", "--user", "stranger").want(exitError, `"stranger"`, "2 failed")
	command(t, without, nil, "migrate", "up", "--all", "--user", before.Config().User).want(exitOK, "2 had it already")
}

// While databases are migrated one after the other, one relay works on those of its own version and of the next; one of
// the version before is broken with the command that helps, and is delivered from as soon as it is migrated.
func TestAProgramWorksWhereVersionsOfSchemasAreMixed(t *testing.T) {
	t.Parallel()
	before, current, next := olds(t), setup(t), setup(t)
	next.exec(`INSERT INTO outbox.migrations (version, name, checksum) SELECT max(version) + 1, 'next', 'x' FROM outbox.migrations`)
	folder := several(t, "before", before.url, "current", current.url, "next", next.url)
	address := freeAddress(t)
	p := current.starts(nil, nil, "relay", "--config", folder+"/outbox.yaml", "--set", "http.listen="+address)
	current.publish("orders", 1)
	next.publish("orders", 1)
	delivered := func(n int) func() bool {
		return func() bool { return strings.Count(p.stdout.String(), "\n") >= n }
	}
	until(t, "both flow", delivered(20))
	status, page := get(t, "http://"+address+"/databases/before/healthz/destinations")
	if status != http.StatusServiceUnavailable || !strings.Contains(page, `"broken"`) ||
		!strings.Contains(page, "outbox migrate up --database before") {
		t.Errorf("%d %s", status, page)
	}
	if status, page := get(t, "http://"+address+"/readyz"); status != http.StatusOK {
		t.Errorf("%d %s", status, page)
	}
	command(t, folder, nil, "migrate", "up", "--all").want(exitOK, "before: applied ", "1 brought to version", "2 had it already")
	before.publish("orders", 1)
	until(t, "the migrated one flows without a restart", delivered(30))
	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
