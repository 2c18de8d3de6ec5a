package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInitWritesWhatOneCanBeginWith(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(d.folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.com/shop\n")
	write("compose.yaml", "services:\n  db: {image: 'postgres:18', environment: {POSTGRES_PASSWORD: s3cret}}\n")
	run := func(args ...string) result {
		return command(t, d.folder, []string{"DATABASE_URL=" + d.url}, args...)
	}
	run("init", "--dry-run").want(exitOK, "module      example.com/shop", "database    db", "--- outbox.yaml", "stdout: {}",
		"writer.Write", "outbox migrate up")
	if _, err := os.Stat(filepath.Join(d.folder, "outbox.yaml")); err == nil {
		t.Error("a dry run writes")
	}
	run("init").want(exitOK, "wrote outbox.sql", "wrote outbox.yaml").never("s3cret")
	run("init").want(exitError, "outbox.sql is there already", "--force")
	run("init", "--force", "-o", "json").want(exitOK, `"module": "example.com/shop"`).never("s3cret")
	run("config", "validate").want(exitOK, "outbox.yaml is valid: 1 destination")

	text, err := os.ReadFile(filepath.Join(d.folder, "outbox.sql"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.PgConn().Exec(t.Context(), string(text)).ReadAll(); err != nil {
		t.Fatalf("the migration: %v", err)
	}
	d.exec("SELECT outbox.publish('orders', '{\"id\": 1}', key => 'order-1')")
	relay := d.starts(nil, []string{"DATABASE_URL=" + d.url}, "relay", "--set", "http.listen=")
	until(t, "the event has come", func() bool { return strings.Contains(relay.stdout.String(), "order-1") })
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
