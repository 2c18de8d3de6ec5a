package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTheDatabaseIsNamedByAFileToo(t *testing.T) {
	t.Parallel()
	d := emptyDatabase(t)
	file := filepath.Join(d.folder, "url")
	env := []string{"OUTBOX_DATABASE_URL_FILE=" + file, "DATABASE_URL=postgres://nowhere.invalid/no"}
	command(t, d.folder, env, "migrate", "up").want(exitConfig, "OUTBOX_DATABASE_URL_FILE", "no such file")
	if err := os.WriteFile(file, []byte(d.url+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, d.folder, env, "migrate", "up").want(exitOK) // and there is no configuration
	command(t, d.folder, env, "status").want(exitOK)
}

// A command that takes its time is not ended by what an administrator thought good for the services of the database.
func TestACommandLastsLongerThanTheTimeoutsOfItsDatabase(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.committed(1)
	for _, name := range []string{"statement_timeout", "transaction_timeout", "idle_session_timeout",
		"idle_in_transaction_session_timeout"} {
		d.exec("ALTER DATABASE " + d.Config().Database + " SET " + name + " = 200")
	}
	d.outbox("verify", "--settle", "0s", "--applied",
		`SELECT message_id, id FROM outbox.messages, pg_sleep(0.6)`).want(exitOK, "1 committed, 1 applied")
}
