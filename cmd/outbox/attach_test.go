package main

import "testing"

func TestATableIsAttachedAndReleased(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.exec(`CREATE TABLE orders (id int PRIMARY KEY, total int)`)
	d.outbox("attach", "nothing").want(exitNotFound, "there is no such table")
	d.outbox("attach", "orders", "--key", "customer").want(exitError, `there is no column "customer"`)
	d.outbox("attach", "orders", "--dry-run").want(exitOK,
		"CREATE OR REPLACE TRIGGER outbox_attach AFTER INSERT OR UPDATE OR DELETE ON public.orders")
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
