package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What several destinations need is printed once, and the statements work in the order in which they are printed.
func TestWhatSourcesLackIsPrintedOnce(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	const table = `CREATE TABLE %s (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, payload text, sent_at timestamptz); `
	yaml := "database: {url: '" + d.url + "'}\ndestinations:\n"
	for _, c := range [][3]string{{"a", "advisory", "orders"}, {"b", "advisory", "bills"},
		{"c", "replication", "carts"}, {"d", "replication", "users"}} {
		d.exec(fmt.Sprintf(table, c[2]))
		yaml += "  - name: " + c[0] + "\n    broker: {stdout: {}}\n"
		if c[1] == "replication" {
			yaml += "    replication: {slot: " + c[0] + "_" + d.Config().Database + ", publication: pub}\n"
		}
		yaml += "    source:\n      strategy: " + c[1] + "\n      table: " + c[2] +
			"\n      columns: {id: id, topic: '{topic}', payload: payload}\n"
		if c[1] == "advisory" {
			yaml += "      done: {how: timestamp, column: sent_at}\n      failure: {dead_table: dead}\n"
		}
	}
	file := filepath.Join(d.folder, "sources.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	printed := d.outbox("migrate", "sources", "--config", file).want(exitOK).stdout
	for _, part := range []string{"CREATE TABLE", "CREATE PUBLICATION", `ADD TABLE "public"."users"`} {
		if n := strings.Count(printed, part); n != 1 {
			t.Errorf("%s is printed %d times:\n%s", part, n, printed)
		}
	}
	t.Cleanup(func() {
		_, err := d.Exec(context.Background(), `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()`)
		if err != nil {
			t.Error(err)
		}
	})
	for _, sql := range strings.Split(strings.TrimSpace(printed), "\n") {
		d.exec(sql)
	}
	d.outbox("migrate", "sources", "--config", file).want(exitOK).never("CREATE")
}

func TestAnAddressThatSourcesCantUseIsNamedByItsDatabase(t *testing.T) {
	t.Parallel()
	folder := several(t, "orders", "postgres://nobody@127.0.0.1:1/x", "billing", "postgres://nobody@127.0.0.1:1/y")
	command(t, folder, nil, "migrate", "sources").never("database.url:").want(exitError, "database.url of orders")
}
