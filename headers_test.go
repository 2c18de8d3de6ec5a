package outbox_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
)

// texts are the headers in the outbox, in the order of the ids.
func texts(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT coalesce(headers::text, 'NULL') FROM outbox.messages ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// The server copies what the writer sends: it neither orders nor prints it, also where it adds the number.
func TestHeadersAreStoredAsTheWriterWritesThem(t *testing.T) {
	t.Parallel()
	msgs := []outbox.Message{
		{Topic: "t", Key: "k", Headers: []outbox.Header{{Name: "longer", Value: `"\` + "\t"}, {Name: "b", Value: "ü{}<"}}},
		{Topic: "t", Key: "k"},
		{Topic: "t", Headers: []outbox.Header{{Name: "a", Value: ""}}},
	}
	const first = `{"longer":"\"\\\u0009","b":"ü{}<"}`
	plain := []string{first, "NULL", `{"a":""}`}
	numbered := []string{first[:len(first)-1] + `,"sequence":"1"}`, `{"sequence":"2"}`, `{"a":""}`}
	onMajors(t, func(t *testing.T, url string) {
		conn, w := connect(t, url), numbering(t)
		write := func(name string, want []string, write func() error) {
			t.Helper()
			if err := write(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := texts(t, conn); !slices.Equal(got, want) {
				t.Errorf("%s: %s\nwant %s", name, got, want)
			}
			if _, err := conn.Exec(t.Context(), "TRUNCATE outbox.messages, outbox.sequences"); err != nil {
				t.Fatal(err)
			}
		}
		for _, mode := range modes() {
			for name, way := range ways(mode) {
				write(fmt.Sprint(name, ", ", mode), plain, func() error { way(t, url, msgs); return nil })
			}
			db := openSQL(t, url, mode)
			for _, step := range []int{1, len(msgs)} {
				write(fmt.Sprint("numbered by ", step, ", ", mode), numbered, func() error {
					tx, err := db.BeginTx(t.Context(), nil)
					for part := range slices.Chunk(msgs, step) {
						if err == nil {
							_, err = w.WriteSQL(t.Context(), tx, part...)
						}
					}
					if err == nil {
						err = tx.Commit()
					}
					return err
				})
			}
		}
	})
}

// Programs that know the column as jsonb write what they wrote.
func TestHeadersGoInAsJSONB(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		for _, value := range []string{`'{"a": "b"}'`, `jsonb_build_object('a', 'b')`, `json_build_object('a', 'b')`, `'{"a": "b"}'::jsonb || '{"a": "b"}'`} {
			for _, sql := range []string{"INSERT INTO outbox.messages (topic, headers) VALUES ('t', " + value + ")",
				"INSERT INTO outbox.messages (topic, headers) SELECT 't', " + value} {
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Errorf("%s: %v", sql, err)
				}
			}
		}
		for _, sql := range []string{`SELECT outbox.publish('t', NULL::text, headers => '{"a": "b"}')`,
			`SELECT outbox.publish('t', NULL::text, headers => jsonb_build_object('a', 'b'))`} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
		const insert = `INSERT INTO outbox.messages (topic, headers) VALUES ('t', $1)`
		if _, err := conn.Exec(t.Context(), insert, `{"a": "b"}`); err != nil {
			t.Errorf("a text as a parameter: %v", err)
		}
		if _, err := conn.Exec(t.Context(), `INSERT INTO outbox.messages (topic, headers) VALUES ('t', $1::jsonb)`, map[string]string{"a": "b"}); err != nil {
			t.Errorf("jsonb as a parameter: %v", err)
		}
		if _, err := conn.Exec(t.Context(), insert, map[string]string{"a": "b"}); err != nil {
			t.Errorf("a value of the driver: %v", err)
		}
		var n int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM outbox.messages WHERE headers ->> 'a' = 'b' AND headers::jsonb @> '{"a": "b"}'`).Scan(&n); err != nil || n != 13 {
			t.Errorf("%d rows are found, %v", n, err)
		}
	})
}
