package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
)

func attach(t *testing.T, conn *pgx.Conn, a Attachment) (remove string) {
	t.Helper()
	trigger, err := a.Plan(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, conn, trigger.Make)
	exec(t, conn, trigger.Make) // it may be run again
	remove, err = a.Removal(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	return remove
}

// messages lists what was written, in the order of ids.
func messages(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT concat_ws(' ', topic, key, event_type, convert_from(payload, 'UTF8')) FROM outbox.messages ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestAnAttachedTableWritesAMessageForEachChangeThatIsCommitted(t *testing.T) {
	onEachMajor(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		install(t, conn)
		exec(t, conn, `CREATE SCHEMA "the shop"; CREATE TABLE "the shop"."Orders" (id int PRIMARY KEY, "to" text, secret text DEFAULT 'x')`)
		remove := attach(t, conn, Attachment{Table: `"the shop"."Orders"`, Topic: "orders", Columns: []string{"id", "to"}})
		// The application's role needs no right on the outbox.
		var app string
		if err := conn.QueryRow(t.Context(), `SELECT current_database() || ' app'`).Scan(&app); err != nil {
			t.Fatal(err)
		}
		createRole(t, conn, app)
		exec(t, conn, `GRANT USAGE ON SCHEMA "the shop" TO `+pgx.Identifier{app}.Sanitize()+`; GRANT ALL ON "the shop"."Orders" TO `+pgx.Identifier{app}.Sanitize())
		service := connectAs(t, url, app)
		exec(t, service, `INSERT INTO "the shop"."Orders" VALUES (1, 'anna'), (2, 'bob')`)
		exec(t, service, `BEGIN; UPDATE "the shop"."Orders" SET "to" = 'nobody'; ROLLBACK`)
		exec(t, service, `UPDATE "the shop"."Orders" SET "to" = 'carl' WHERE id = 2; DELETE FROM "the shop"."Orders" WHERE id = 1`)
		want := []string{
			`orders 1 Orders.insert {"id":1,"to":"anna"}`, `orders 2 Orders.insert {"id":2,"to":"bob"}`,
			`orders 2 Orders.update {"id":2,"to":"carl"}`, `orders 1 Orders.delete {"id":1,"to":"anna"}`,
		}
		if got := messages(t, conn); !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
		exec(t, conn, remove)
		exec(t, conn, remove)
		exec(t, service, `DELETE FROM "the shop"."Orders"`)
		if got := messages(t, conn); len(got) != len(want) {
			t.Errorf("after it was removed: %q", got)
		}
	})
}

func TestWhatAnAttachedTableDoesOutOfTheOrdinary(t *testing.T) {
	onEachMajor(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		install(t, conn)
		exec(t, conn, `CREATE TABLE orders (day date, state text, at timestamptz, b bytea, PRIMARY KEY (day, state)) PARTITION BY LIST (state);
			CREATE TABLE orders_new PARTITION OF orders FOR VALUES IN ('new'); CREATE TABLE orders_done PARTITION OF orders FOR VALUES IN ('done')`)
		a := Attachment{Table: "orders", Key: []string{"day"}, Invalid: "refuse"}
		attach(t, conn, a)
		exec(t, conn, `SET datestyle = 'SQL, DMY'; SET timezone = 'Asia/Kathmandu'; SET bytea_output = escape`)
		exec(t, conn, `INSERT INTO orders VALUES ('2026-02-01', 'new', '2026-02-01 00:00:00Z', 'x')`)
		exec(t, conn, `UPDATE orders SET state = 'done'`)
		exec(t, conn, `SET session_replication_role = replica; UPDATE orders SET b = 'y'; RESET session_replication_role`)
		payload := func(state string) string {
			return fmt.Sprintf(` {"day":"2026-02-01","state":"%s","at":"2026-02-01T00:00:00+00:00","b":"\\x78"}`, state)
		}
		want := []string{"orders 2026-02-01 orders.insert" + payload("new"),
			"orders 2026-02-01 orders.delete" + payload("new"), "orders 2026-02-01 orders.insert" + payload("done")}
		if got := messages(t, conn); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		exec(t, conn, `ALTER TABLE orders RENAME COLUMN day TO on_day`)
		_, err := conn.Exec(t.Context(), `DELETE FROM orders`)
		if err == nil || !strings.Contains(err.Error(), `outbox attach: column "day" not found`) {
			t.Errorf("got %v", err)
		}
		a.Key = []string{"on_day"}
		attach(t, conn, a)
		exec(t, conn, `DELETE FROM orders`)
		if n := len(messages(t, conn)); n != len(want)+1 {
			t.Errorf("%d messages", n)
		}
	})
}

// Transactions that change one row wait for each other, and their messages are in the order of the changes.
func TestChangesOfARowAreInOrder(t *testing.T) {
	t.Parallel()
	url := servers.TestDatabase(t)
	conn := connect(t, url)
	install(t, conn)
	exec(t, conn, `CREATE TABLE counters (a int, b int, n int NOT NULL DEFAULT 0, topic text DEFAULT 'even', PRIMARY KEY (a, b)); INSERT INTO counters VALUES (1, 23), (12, 3)`)
	attach(t, conn, Attachment{Table: "counters", TopicColumn: "topic", Columns: []string{"n"}, On: []string{"update"}})
	const writers, changes = 4, 50
	ended := make(chan error, writers)
	for range writers {
		writer := connect(t, url)
		go func() {
			var err error
			for i := range changes {
				key := []string{"a = 1", "a = 12"}[i%2]
				if _, failed := writer.Exec(t.Context(), `UPDATE counters SET n = n + 1 WHERE `+key); failed != nil {
					err = failed
				}
			}
			ended <- err
		}()
	}
	for range writers {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]int{}
	for _, m := range messages(t, conn) {
		key, rest, _ := strings.Cut(m, "] ")
		var n int
		if _, err := fmt.Sscanf(rest, `counters.update {"n":%d}`, &n); err != nil {
			t.Fatalf("%q: %v", m, err)
		}
		if n != seen[key]+1 {
			t.Fatalf("of %s %d comes after %d", key, n, seen[key])
		}
		seen[key] = n
	}
	if len(seen) != 2 || seen["even [1, 23"] != writers*changes/2 {
		t.Errorf("the last of each key: %v", seen)
	}
}

func TestWhatCantBeAttachedIsRefused(t *testing.T) {
	t.Parallel()
	url := servers.TestDatabase(t)
	conn := connect(t, url)
	install(t, conn)
	exec(t, conn, `CREATE TABLE keyless (id int); CREATE VIEW v AS SELECT 1; CREATE TABLE t (id int PRIMARY KEY);
		CREATE TEMP TABLE tt (id int PRIMARY KEY);
		CREATE MATERIALIZED VIEW m AS SELECT 1; CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE f (id int) SERVER s;
		CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE part PARTITION OF parts FOR VALUES IN (1)`)
	attach(t, conn, Attachment{Table: "parts"})
	refused := map[string]Attachment{
		"no primary key":             {Table: "keyless"},
		`there is no column "x"`:     {Table: "t", Columns: []string{"x"}},
		`and not "truncate"`:         {Table: "t", On: []string{"truncate"}},
		"not both":                   {Table: "t", Topic: "a", TopicColumn: "id"},
		"it is a view":               {Table: "v"},
		"one of the outbox":          {Table: "outbox.cursors"},
		"it is a materialized view":  {Table: "m"},
		"in another database":        {Table: "f"},
		"a temporary table":          {Table: "tt"},
		"table is attached":          {Table: "part"},
		"has white space":            {Table: "t", Topic: "a b"},
		"longer than 249 bytes":      {Table: "t", Topic: strings.Repeat("t", 250)},
		"the limit is 32":            {Table: "t", Key: slices.Repeat([]string{"id"}, 33)},
		`and not to "drop"`:          {Table: "t", Invalid: "drop"},
		"attach missing: there is n": {Table: "missing"},
	}
	var major int
	if err := conn.QueryRow(t.Context(), majorSQL).Scan(&major); err != nil {
		t.Fatal(err)
	}
	if major >= 18 {
		exec(t, conn, `CREATE TABLE g (id int PRIMARY KEY, v int GENERATED ALWAYS AS (id * 2) VIRTUAL)`)
		refused[`columns ["v"] are generated`] = Attachment{Table: "g"}
		refused[`column "v" is generated`] = Attachment{Table: "g", Key: []string{"v"}, Columns: []string{"id"}}
	}
	for want, a := range refused {
		if _, err := a.Plan(t.Context(), conn); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", a, err, want)
		}
	}
	exec(t, conn, `CREATE FUNCTION t_outbox() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	if _, err := (Attachment{Table: "t"}).Plan(t.Context(), conn); err == nil ||
		!strings.Contains(err.Error(), "public.t_outbox already") {
		t.Errorf("a function of somebody else's: %v", err)
	}
	exec(t, conn, `CREATE TABLE own (id int PRIMARY KEY); CREATE TRIGGER "!outbox_attach" AFTER INSERT ON own FOR EACH ROW EXECUTE FUNCTION t_outbox()`)
	_, err := Attachment{Table: "own"}.Plan(t.Context(), conn)
	_, removal := Attachment{Table: "own"}.Removal(t.Context(), conn)
	for _, err := range []error{err, removal} {
		if err == nil || !strings.Contains(err.Error(), "rename that trigger") {
			t.Errorf("a trigger of somebody else's: %v", err)
		}
	}
	writer, _, _ := roles(t, servers.TestDatabase(t))
	exec(t, connect(t, writer.Config().ConnString()), `CREATE TABLE t (id int PRIMARY KEY)`)
	if _, err := (Attachment{Table: "t"}).Plan(t.Context(), writer); !errors.Is(err, ErrForbidden) ||
		!strings.Contains(err.Error(), "run this as postgres") {
		t.Errorf("a table of somebody else's: %v", err)
	}
}

// What was attached once can be taken away, whatever has become of the table and of the role's rights.
func TestATriggerIsRemovedFromATableThatCouldNotBeAttached(t *testing.T) {
	t.Parallel()
	url := servers.TestDatabase(t)
	conn := connect(t, url)
	install(t, conn)
	exec(t, conn, `CREATE TABLE t (id int PRIMARY KEY)`)
	attach(t, conn, Attachment{Table: "t"})
	exec(t, conn, `ALTER TABLE t DROP CONSTRAINT t_pkey; DROP FUNCTION outbox.publish(text, bytea, text, jsonb, text, text, text, text, timestamptz, uuid)`)
	if _, err := (Attachment{Table: "t"}).Plan(t.Context(), conn); err == nil {
		t.Fatal("the table can be attached")
	}
	remove, err := Attachment{Table: "t"}.Removal(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, conn, remove)
	exec(t, conn, remove)
	exec(t, conn, `DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY)`)
	exec(t, conn, `INSERT INTO t VALUES (1)`)
}

// Triggers of a row fire in the order of their names. One that changes the row again comes after ours.
func TestMessagesAreInTheOrderOfChangesThatTriggersMake(t *testing.T) {
	onEachMajor(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		install(t, conn)
		exec(t, conn, `CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
			IF NEW.total IS DISTINCT FROM NEW.qty * 10 THEN EXECUTE format(''UPDATE %s SET total = qty * 10 WHERE id = $1'', TG_RELID::regclass) USING NEW.id; END IF; RETURN NULL; END';
			CREATE TABLE one (id int, qty int, total int, PRIMARY KEY (id)); CREATE TABLE parts (LIKE one INCLUDING ALL) PARTITION BY LIST (id);
			CREATE TABLE part PARTITION OF parts FOR VALUES IN (1);
			CREATE TRIGGER "00 again" AFTER INSERT OR UPDATE ON one FOR EACH ROW EXECUTE FUNCTION again();
			CREATE CONSTRAINT TRIGGER "#" AFTER INSERT OR UPDATE ON part DEFERRABLE FOR EACH ROW EXECUTE FUNCTION again()`)
		for _, table := range []string{"one", "parts"} {
			attach(t, conn, Attachment{Table: table})
			exec(t, conn, `INSERT INTO `+table+` VALUES (1, 1)`)
			exec(t, conn, `UPDATE `+table+` SET qty = 2`)
			var want []string
			for _, m := range []string{`insert {"id":1,"qty":1,"total":null}`, `update {"id":1,"qty":1,"total":10}`,
				`update {"id":1,"qty":2,"total":10}`, `update {"id":1,"qty":2,"total":20}`} {
				want = append(want, table+" 1 "+table+"."+m)
			}
			if got := messages(t, conn); !slices.Equal(got, want) {
				t.Errorf("got %q", got)
			}
			exec(t, conn, `TRUNCATE outbox.messages`)
		}
		trigger, err := Attachment{Table: "one"}.Plan(t.Context(), conn)
		if err != nil || !strings.Contains(strings.Join(trigger.Notes, ""), `triggers "00 again" run after`) {
			t.Errorf("%q, %v", trigger.Notes, err)
		}
		exec(t, conn, `ALTER TRIGGER "#" ON part RENAME TO " again"`)
		if got, err := EarlierTriggers(t.Context(), conn); err != nil || !slices.Equal(got, [][3]string{{"part", `" again"`, `"!outbox_attach"`}}) {
			t.Errorf("overtaken: %q, %v", got, err)
		}
		if _, err := (Attachment{Table: "parts"}).Plan(t.Context(), conn); err == nil || !strings.Contains(err.Error(), `triggers " again" run before`) {
			t.Errorf("a trigger whose name sorts before: %v", err)
		}
	})
}

func TestATriggerOfTheFormerNameIsReplacedAndRemoved(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	install(t, conn)
	exec(t, conn, `CREATE TABLE t (id int PRIMARY KEY)`)
	former := func() {
		attach(t, conn, Attachment{Table: "t"})
		exec(t, conn, `ALTER TRIGGER "!outbox_attach" ON t RENAME TO outbox_attach`)
	}
	triggers := func() (n int) {
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_trigger`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	without := triggers()
	former()
	remove, err := Attachment{Table: "t"}.Removal(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, conn, remove)
	if n := triggers(); n != without {
		t.Errorf("%d triggers are left", n-without)
	}
	former()
	attach(t, conn, Attachment{Table: "t"})
	exec(t, conn, `INSERT INTO t VALUES (1)`)
	if got := messages(t, conn); len(got) != 1 {
		t.Errorf("got %q", got)
	}
}

// Names of functions have 63 bytes.
func TestTablesWithSimilarNamesAreAttached(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	install(t, conn)
	long, wide := strings.Repeat("x", 57), strings.Repeat("ж", 30)
	tables := []string{long + "1", long + "2", long, long[:56], long[:55], wide + "a", wide + "b", strings.Repeat("ж", 28), strings.Repeat("ж", 27) + `"'`, "moved"}
	for _, table := range tables {
		exec(t, conn, `CREATE TABLE `+QuoteIdentifier(table)+` (id int PRIMARY KEY)`)
		attach(t, conn, Attachment{Table: QuoteIdentifier(table), Topic: "t"})
	}
	exec(t, conn, `ALTER TABLE moved RENAME TO former; CREATE TABLE moved (id int PRIMARY KEY)`)
	attach(t, conn, Attachment{Table: "moved", Topic: "t"})
	for _, table := range append(tables, "former") {
		exec(t, conn, `TRUNCATE outbox.messages; INSERT INTO `+QuoteIdentifier(table)+` VALUES (1)`)
		event := strings.Replace(table, "former", "moved", 1)
		if got := messages(t, conn); !slices.Equal(got, []string{"t 1 " + event + `.insert {"id":1}`}) {
			t.Errorf("%s: got %q", table, got)
		}
	}
	for _, table := range append(tables, "former") {
		remove, err := Attachment{Table: QuoteIdentifier(table)}.Removal(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		exec(t, conn, remove+remove+`INSERT INTO `+QuoteIdentifier(table)+` VALUES (2)`)
	}
}

// Under the rules of Turkish, the small letter of I is ı.
func TestEventTypesDontDependOnTheLocale(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t, servers.PostgresConfig{Major: "18"}))
	config := conn.Config().Copy()
	config.Database += "_turkish"
	name := pgx.Identifier{config.Database}.Sanitize()
	exec(t, conn, `CREATE DATABASE `+name+` LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR' LOCALE 'C' ENCODING 'UTF8' TEMPLATE template0`)
	turkish, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = turkish.Close(context.Background())
		if _, err := conn.Exec(context.Background(), `DROP DATABASE `+name); err != nil {
			t.Error(err)
		}
	})
	install(t, turkish)
	exec(t, turkish, `CREATE TABLE t (id int PRIMARY KEY)`)
	attach(t, turkish, Attachment{Table: "t"})
	exec(t, turkish, `INSERT INTO t VALUES (1)`)
	if got := messages(t, turkish); !slices.Equal(got, []string{`t 1 t.insert {"id":1}`}) {
		t.Errorf("got %q", got)
	}
}

// PostgreSQL can't put back what lastval() was, so the note says what to use instead.
func TestTheNoteOnLastvalSaysWhatWorks(t *testing.T) {
	onEachMajor(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		install(t, conn)
		var app string
		if err := conn.QueryRow(t.Context(), `SELECT quote_ident(current_database() || ' app')`).Scan(&app); err != nil {
			t.Fatal(err)
		}
		createRole(t, conn, strings.Trim(app, `"`))
		exec(t, conn, `CREATE SCHEMA "the shop"; CREATE SEQUENCE "the shop"."of it's"; GRANT USAGE ON SCHEMA "the shop" TO `+app)
		for name, c := range map[string]struct{ columns, note, run string }{
			"serial":   {`"No" bigserial PRIMARY KEY, v int`, `RETURNING "No"`, `currval('"the shop"."T_No_seq"')`},
			"identity": {`id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int`, `RETURNING id`, `currval('"the shop"."T_id_seq"')`},
			"default":  {`id int DEFAULT 100 + nextval('"the shop"."of it''s"') PRIMARY KEY, v int`, `RETURNING id`, `currval('"the shop"."of it''s"')`},
			"none":     {`id uuid DEFAULT gen_random_uuid() PRIMARY KEY, v int`, `INSERT ... RETURNING.`, ``},
		} {
			exec(t, conn, `DROP TABLE IF EXISTS "the shop"."T"; CREATE TABLE "the shop"."T" (`+c.columns+`);
				GRANT ALL ON "the shop"."T" TO `+app+`; GRANT USAGE ON ALL SEQUENCES IN SCHEMA "the shop" TO `+app)
			trigger, err := Attachment{Table: `"the shop"."T"`}.Plan(t.Context(), conn)
			if err != nil {
				t.Fatal(err)
			}
			exec(t, conn, trigger.Make)
			if all := strings.Join(trigger.Notes, "\n"); !strings.Contains(all, "SELECT lastval() is refused") ||
				!strings.Contains(all, c.note) || !strings.Contains(all, c.run) {
				t.Errorf("%s: %s", name, all)
			}
			exec(t, conn, `SET ROLE `+app+`; INSERT INTO "the shop"."T" (v) VALUES (1)`)
			if _, err := conn.Exec(t.Context(), `SELECT lastval()`); err == nil || !strings.Contains(err.Error(), "permission denied for sequence messages_id_seq") {
				t.Errorf("%s: the note isn't true any more: %v", name, err)
			}
			if c.run != "" {
				exec(t, conn, `SELECT `+c.run)
			}
			exec(t, conn, `RESET ROLE`)
		}
	})
}

func TestATableThatWasAttachedBecomesAPartitionOfOneThatIs(t *testing.T) {
	onEachMajor(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		install(t, conn)
		exec(t, conn, `CREATE TABLE orders (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE orders_1 (id int PRIMARY KEY);
			CREATE TABLE orders_2 (id int PRIMARY KEY)`)
		remove := attach(t, conn, Attachment{Table: "orders_1", Topic: "orders"})
		attach(t, conn, Attachment{Table: "orders"})
		trigger, err := Attachment{Table: "orders"}.Plan(t.Context(), conn)
		if err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(trigger.Notes, "\n"); !strings.Contains(all, "Its partitions, later ones too, have its trigger") {
			t.Error(all)
		}
		const become = `ALTER TABLE orders ATTACH PARTITION orders_1 FOR VALUES FROM (0) TO (10)`
		if _, err := conn.Exec(t.Context(), become); err == nil || !strings.Contains(err.Error(), "already exists") {
			t.Errorf("the note isn't true any more: %v", err)
		}
		exec(t, conn, "BEGIN; "+remove+become+"; COMMIT; ALTER TABLE orders ATTACH PARTITION orders_2 FOR VALUES FROM (10) TO (20)")
		exec(t, conn, `INSERT INTO orders VALUES (1); INSERT INTO orders_2 VALUES (11)`)
		want := []string{`orders 1 orders.insert {"id":1}`, `orders 11 orders.insert {"id":11}`}
		if got := messages(t, conn); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		exec(t, conn, `ALTER TABLE orders DETACH PARTITION orders_2; INSERT INTO orders_2 VALUES (12)`)
		if got := messages(t, conn); !slices.Equal(got, want) {
			t.Errorf("a table that is no partition any more has a trigger: %q", got)
		}
	})
}
