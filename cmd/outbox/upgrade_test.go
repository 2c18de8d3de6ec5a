package main

import "testing"

// A schema is migrated before its programs are replaced, so the program of the version before goes on beside it, starts
// beside it, and its commands work. One further is refused.
func TestAProgramWorksBesideTheNextSchema(t *testing.T) {
	t.Parallel()
	d := setup(t)
	relay := d.relay(d.fileYAML(""), "--name", "before")
	d.publish("orders", 1)
	until(t, "the first are delivered", func() bool { return d.count() == 10 })
	next := `INSERT INTO outbox.migrations (version, name, checksum) SELECT max(version) + 1, 'next', 'x' FROM outbox.migrations`
	d.exec(next)
	d.exec(`ALTER TABLE outbox.messages ADD COLUMN added text; ALTER TABLE outbox.cursors ADD COLUMN added text NOT NULL DEFAULT '';
		ALTER TABLE outbox.holds ADD COLUMN added text; ALTER TABLE outbox.dead_letters ADD COLUMN added text; CREATE TABLE outbox.added (n int)`)
	d.publish("orders", 1)
	until(t, "the relay that runs goes on", func() bool { return d.count() == 20 })
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	relay = d.relay(d.fileYAML(""), "--name", "restarted")
	d.publish("orders", 1)
	until(t, "one that starts delivers", func() bool { return d.count() == 30 })
	d.outbox("status").want(exitOK, "file")
	d.outbox("migrate", "up").want(exitOK, "nothing to do")
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	d.exec(next)
	d.outbox("status").want(exitError, "use a newer program")
	d.outbox("migrate", "up").want(exitError, "use a newer program")
}
