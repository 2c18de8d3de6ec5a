package registration

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
)

// Dormant records a relay that has no connection to the database, and looks at it now and then. Its row has
// backend_pid 0, so another relay of its name takes that at once, and names for how long the relay may be silent.
type Dormant struct {
	relay   *Registration
	started *time.Time
}

// Dormant returns what records that the relay is dormant. Close the registration before it is used.
func (r *Registration) Dormant() *Dormant { return &Dormant{relay: r, started: r.started()} }

// started returns when the relay began, nil if that isn't known.
func (r *Registration) started() *time.Time {
	ctx, cancel := context.WithTimeout(context.Background(), dial.AnswerWithin)
	defer cancel()
	var at time.Time
	err := r.line.Do(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT started_at FROM outbox.relays WHERE name = $1 AND instance = $2::text::uuid`,
			r.name, r.instance).Scan(&at)
	})
	if err != nil {
		return nil
	}
	return &at
}

const dormantSQL = `
INSERT INTO outbox.relays AS r (name, instance, backend_pid, backend_start, host, pid, version, started_at, clock_ahead,
	silence)
VALUES ($1, $2::text::uuid, 0, clock_timestamp(), $3, $4, $5, coalesce($6, clock_timestamp()), $7::timestamptz - clock_timestamp(),
	$8::bigint * interval '1 microsecond')
ON CONFLICT (name) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, clock_ahead = excluded.clock_ahead, silence = excluded.silence
WHERE r.instance = excluded.instance AND r.backend_pid = 0`

// Beat says that the relay is there, and may be silent for that time. It fails if another relay has the name.
func (d *Dormant) Beat(ctx context.Context, conn *pgx.Conn, silence time.Duration) error {
	r := d.relay
	tag, err := conn.Exec(ctx, dormantSQL, r.name, r.instance, r.host, os.Getpid(), r.cfg.Version, d.started, time.Now(),
		silence.Microseconds())
	switch {
	case err != nil:
		return fmt.Errorf("say that the relay is dormant: %w", err)
	case tag.RowsAffected() == 0:
		return fmt.Errorf("say that the relay is dormant: %w: its name %q was taken", ErrNamesake, r.name)
	}
	return nil
}

// Leave removes what Beat has recorded.
func (d *Dormant) Leave(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, `DELETE FROM outbox.relays WHERE name = $1 AND instance = $2::text::uuid AND backend_pid = 0`,
		d.relay.name, d.relay.instance)
	return err
}
