package admin

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

var (
	_ DB = (*pgx.Conn)(nil)
	_ DB = (*pgxpool.Pool)(nil)
)

func TestMain(m *testing.M) { servers.Main(m) }

// database is a fresh one with the schema installed.
type database struct {
	t   *testing.T
	url string
	*pgx.Conn
}

func setup(t *testing.T, config ...servers.PostgresConfig) *database {
	t.Helper()
	d := &database{t: t, url: servers.TestDatabase(t, config...)}
	d.Conn = d.another()
	if _, err := schema.Up(t.Context(), d.Conn, schema.UpConfig{}); err != nil {
		t.Fatal(err)
	}
	return d
}

// another is one more connection.
func (d *database) another() *pgx.Conn {
	d.t.Helper()
	conn, err := pgx.Connect(d.t.Context(), d.url)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (d *database) exec(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.Exec(d.t.Context(), sql, args...); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
}

func (d *database) int(sql string, args ...any) (n int64) {
	d.t.Helper()
	if err := d.QueryRow(d.t.Context(), sql, args...).Scan(&n); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// cursor adds one whose lease has the given time left, such as "1 minute" or "-1 minute".
func (d *database) cursor(destination, lease string) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier, owner, epoch, lease_until, lease)
		SELECT $1, 0, 1, system_identifier, 'relay-1', 3, clock_timestamp() + $2::text::interval, '1 hour' FROM pg_control_system()`, destination, lease)
}

func (d *database) write(n int) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.messages (topic, key, payload) SELECT 'orders', 'k' || i, 'x' FROM generate_series(1, $1) i`, n)
}

// dead adds dead letters of one lane, with the given positions.
func (d *database) dead(destination, lane string, positions ...int64) {
	d.t.Helper()
	for _, p := range positions {
		d.exec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, payload, headers, created_at, attempts, reason, error)
			VALUES ($1, $2, $3, $4, 'orders', $2, 1, 'secret', '{"a":"b"}', now(), 10, 'exhausted', 'broker said no')`,
			destination, lane, p, fmt.Sprintf("00000000-0000-7000-8000-%012d", p))
	}
}

// held adds a hold; retryAt is a time, "infinity" or "" for one behind its head.
func (d *database) held(destination, lane string, position int64, retryAt string) {
	d.t.Helper()
	d.exec(`INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, payload, created_at, attempts, retry_at, error)
		VALUES ($1, $2, $3, $4, 'orders', $2, 1, 'secret', now(), 2, nullif($5, '')::timestamptz, 'refused: too large')`,
		destination, lane, position, fmt.Sprintf("00000000-0000-7000-8000-%012d", position), retryAt)
}

func (d *database) status() *Report {
	d.t.Helper()
	r, err := Status(d.t.Context(), d.Conn)
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

var anna = Action{Actor: "anna@example", Reason: "the broker is mended"}

// viewer makes the connection one of a role that has a viewer's rights only.
func (d *database) viewer() {
	d.t.Helper()
	role := "viewer of " + d.Config().Database
	d.as(role, schema.Grants("", "", role))
}

// as makes the connection one of a new role with the given rights.
func (d *database) as(name, grants string) {
	d.t.Helper()
	role := pgx.Identifier{name}.Sanitize()
	d.exec(`CREATE ROLE ` + role)
	d.t.Cleanup(func() {
		_, err := d.Exec(context.Background(), `RESET ROLE; DROP OWNED BY `+role+`; DROP ROLE `+role)
		if err != nil {
			d.t.Error(err)
		}
	})
	d.exec(grants)
	d.exec(`SET ROLE ` + role)
}
