package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/internal/servers"
)

// oddSettings change what SQL means, how values are written, or which plans there are.
var oddSettings = []string{
	"quote_all_identifiers = on", "standard_conforming_strings = off", "escape_string_warning = on", "backslash_quote = off",
	"transform_null_equals = on", "array_nulls = off", "xmlbinary = hex", "search_path = nowhere", "row_security = off",
	"bytea_output = escape", "datestyle = 'SQL, DMY'", "intervalstyle = sql_standard", "extra_float_digits = -15",
	"timezone = 'Asia/Kathmandu'", "default_transaction_isolation = serializable", "default_transaction_read_only = on",
	"default_transaction_deferrable = on", "synchronous_commit = off", "plan_cache_mode = force_custom_plan",
	"plpgsql.variable_conflict = use_column", "check_function_bodies = off", "enable_seqscan = off", "enable_indexscan = off",
	"enable_indexonlyscan = off", "enable_bitmapscan = off", "enable_nestloop = off", "enable_hashjoin = off",
	"enable_mergejoin = off", "enable_sort = off", "enable_hashagg = off", "enable_material = off", "jit_above_cost = 0",
}

func TestOddSettingsOfADatabaseChangeNothing(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := emptyDatabase(t)
	for _, setting := range oddSettings {
		d.exec(`ALTER DATABASE ` + d.Config().Database + ` SET ` + setting)
	}
	d.outbox("migrate", "up").want(exitOK)
	d.outbox("migrate", "status").want(exitOK)

	var mended atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "bad") && !mended.Load() {
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(d.folder, "outbox.yaml")
	yaml := fmt.Sprintf(`
name: relay-1
http: {listen: ""}
retention: {interval: 100ms}
destinations:
  - name: d
    delivery: {max_attempts: 1}
    broker: {http: {url: %q, allow_networks: [127.0.0.0/8]}}
`, server.URL)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	d.relay(yaml)
	until(t, "the relay works", func() bool { return d.int(`SELECT count(*) FROM outbox.cursors WHERE owner IS NOT NULL`) == 1 })

	delivered := func(n int) func() bool {
		return func() bool { return d.int(`SELECT sum(delivered) FROM outbox.cursors WHERE destination = 'd'`) == n }
	}
	// The application's sessions write. A function of the schema is read by each session anew, with its settings.
	config, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "off"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	transaction := func(do func(ctx context.Context, tx pgx.Tx) error) error {
		return pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
			func(tx pgx.Tx) error { return do(t.Context(), tx) })
	}
	run := func(sql string, args ...any) error {
		return transaction(func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		})
	}
	const publish = `SELECT outbox.publish($1::text, $2::bytea, key => $3, event_type => 'nrx', headers => '{"a": "r"}')`
	for _, m := range [][3]string{{"orders", `by\function`, `k\n'1"`}, {"orders", "bad", "k2"}} {
		if err := run(publish, m[0], []byte(m[1]), m[2]); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range [][2]string{{"a\tb", "k"}, {"a\u00a0b", "k"}, {"a\u3000", "k"}, {"a", "k\n"}} {
		if err := run(publish, m[0], []byte("x"), m[1]); err == nil || !strings.Contains(err.Error(), "outbox.publish: ") {
			t.Errorf("%q: %v", m, err)
		}
	}
	writer, err := outbox.NewWriter(outbox.WriterConfig{})
	if err != nil {
		t.Fatal(err)
	}
	message := outbox.Message{Topic: "orders", Key: `k\n'1"`, Payload: []byte(`by\writer`), Headers: []outbox.Header{{Name: "a", Value: `\`}}}
	if err := transaction(func(ctx context.Context, tx pgx.Tx) error {
		_, err := writer.Write(ctx, tx, message)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	until(t, "two are delivered", delivered(2))
	until(t, "one is dead", func() bool { return d.int(`SELECT count(*) FROM outbox.dead_letters`) == 1 })
	until(t, "status tells of it", func() bool {
		return strings.Contains(d.outbox("status", "--config", file).stdout, ": d: 1 new dead letter")
	})
	d.outbox("dead", "ls").want(exitOK, "k2")
	mended.Store(true)
	d.outbox("dead", "requeue", "--destination", "d", "--yes", "--now").want(exitOK)
	until(t, "it is delivered after all", delivered(3))
	d.outbox("replay", "--destination", "d", "--key", `k\n'1"`, "--yes", "--now").want(exitOK)
	until(t, "two come once more", delivered(5))

	box, err := inbox.New("billing", inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	message.ID = outbox.NewID()
	for _, want := range []inbox.Outcome{inbox.Applied, inbox.Duplicate} {
		result, err := box.Handle(t.Context(), pool, &message, func(context.Context, pgx.Tx, *outbox.Message) error { return nil })
		if err != nil || result.Outcome != want {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	message.ID = outbox.NewID()
	if _, err := box.Store(t.Context(), pool, &message); err != nil {
		t.Fatal(err)
	}
	d.outbox("inbox", "status").want(exitOK, "billing")

	// A segment that nobody needs is emptied, and one of the stored inbox that nobody has read is not.
	past := d.int(`SELECT (date_part('epoch', clock_timestamp())::bigint / 600 + 4) % 8`)
	d.exec(`INSERT INTO outbox.inbox_messages (topic, headers, segment) VALUES ('t', '{"inbox-consumer": "billing"}', $1)`, past)
	d.exec(`INSERT INTO outbox.messages (topic, key, payload, segment) VALUES ('orders', 'k', 'old', $1)`, past)
	until(t, "the last one is delivered", delivered(6))
	until(t, "its segment is emptied", func() bool { return d.int(fmt.Sprintf(`SELECT count(*) FROM outbox.messages_%d`, past)) == 0 })
	if n := d.int(`SELECT count(*) FROM outbox.inbox_messages`); n != 2 {
		t.Errorf("%d messages of the stored inbox are left", n)
	}
	d.outbox("retention").want(exitOK, "inbox:billing")
	d.outbox("pause", "d", "--yes").want(exitOK)
	d.outbox("resume", "d", "--yes").want(exitOK)
	d.exec(`DELETE FROM outbox.cursors WHERE destination <> 'd'`)
	d.outbox("status", "--config", file, "--exit-code").want(exitOK, "IDLE")
	d.outbox("doctor", "--config", file).want(exitOK).never("FAULT")
}
