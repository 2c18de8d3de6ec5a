package main

import "testing"

func TestATableIsAttachedAndReleased(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.exec(`CREATE TABLE orders (id int PRIMARY KEY, total int)`)
	d.outbox("attach", "nothing").want(exitNotFound, "there is no such table")
	d.outbox("attach", "orders", "--key", "customer").want(exitError, `there is no column "customer"`)
	d.outbox("attach", "orders", "--dry-run").want(exitOK,
		"CREATE OR REPLACE TRIGGER \"!outbox_attach\" AFTER INSERT OR UPDATE OR DELETE ON public.orders")
	d.exec(`INSERT INTO orders VALUES (1, 5)`)
	d.outbox("attach", "orders", "--topic", "changes", "--on", "insert,delete").want(exitOK)
	d.outbox("attach", "orders", "--topic", "changes", "--on", "insert,delete").want(exitOK)
	d.exec(`INSERT INTO orders VALUES (2, 7); UPDATE orders SET total = 8`)
	d.relay(d.fileYAML(""))
	until(t, "the change is delivered", func() bool { return d.count() == 1 && len(d.delivered()["2"]) == 1 })
	d.outbox("attach", "orders", "--remove").want(exitOK)
	d.exec(`DELETE FROM orders`)
	if n := d.int(`SELECT count(*) FROM outbox.messages WHERE topic = 'changes'`); n != 1 {
		t.Errorf("%d messages after it was released", n)
	}
}

func TestAChangeOfWhichNoMessageCanBeMadeIsADeadLetter(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.exec(`CREATE TABLE orders (id text PRIMARY KEY, topic text, v int)`)
	d.outbox("attach", "orders", "--topic-column", "topic", "--invalid", "drop").want(exitError, `and not to "drop"`)
	d.outbox("attach", "orders", "--topic-column", "topic", "--dry-run").want(exitOK,
		"-- A change of which no valid message can be made succeeds")
	d.outbox("attach", "orders", "--topic-column", "topic", "--columns", "v").want(exitOK, "becomes a dead letter with the reason")
	d.exec(`INSERT INTO orders VALUES ('1', NULL, 1), (E'a\nb', 'changes', 2), (repeat('k', 1025), 'changes', 3), ('2', 'changes', 4)`)
	d.exec(`ALTER TABLE orders RENAME v TO w`)
	d.exec(`INSERT INTO orders VALUES ('3', 'changes', 5)`)
	d.relay(d.fileYAML(""))
	until(t, "all are delivered or dead", func() bool {
		return d.count() == 1 && len(d.delivered()["2"]) == 1 && d.int(`SELECT count(*) FROM outbox.dead_letters WHERE reason = 'invalid'`) == 4
	})
	for _, reason := range []string{"Topic is empty", "Key contains CR or LF", "Key has 1025 bytes", `column "v" not found%run outbox attach again`} {
		if n := d.int(`SELECT count(*) FROM outbox.dead_letters WHERE error LIKE '%' || $1 || '%'`, reason); n != 1 {
			t.Errorf("%d dead letters: %s", n, reason)
		}
	}
	d.outbox("attach", "orders", "--topic-column", "topic", "--invalid", "refuse").want(exitOK,
		"A change of which no valid message can be made fails")
	if _, err := d.Exec(t.Context(), `INSERT INTO orders VALUES ('4', NULL)`); err == nil {
		t.Error("a change without a topic was not refused")
	}
}
