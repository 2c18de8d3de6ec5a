package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// StandbyConfig configures a standby. The zero value is an asynchronous one.
type StandbyConfig struct {
	// Name is the application_name by which the primary knows it, for synchronous_standby_names. Default: standby_PORT.
	Name string

	// Settings are added to postgresql.conf, as sync_replication_slots=on for failover slots (17 and later).
	Settings map[string]string
}

// Standby makes a hot standby of a running cluster that this process started, and returns when it streams and answers
// queries. Its data lies in the same Storage. It gets its WAL through a physical replication slot, see Slot, with
// hot_standby_feedback. The caller must Close it.
func (p *Postgres) Standby(ctx context.Context, config StandbyConfig) (*Postgres, error) {
	if p.given != "" {
		return nil, fmt.Errorf("can't make a standby of %s: it was given by %s, and its data folder isn't at hand; "+
			"unset that, or have the test use a server of its own", p.name, p.given)
	}
	s := &Postgres{version: p.version, bin: p.bin, primary: p}
	name := func() string { return cmp.Or(config.Name, "standby_"+strconv.Itoa(s.Port())) }
	err := s.launch(ctx, nil, s.kindOf("standby of "+p.name, p.storage, func() error { return s.follow(ctx, name(), config.Settings) }))
	if err == nil {
		// One that answers may still be catching up.
		if err = s.streams(ctx, name()); err != nil {
			err = fmt.Errorf("start %s: %w", s.name, errors.Join(err, s.Close()))
		}
	}
	return orNone(s, err)
}

// Slot returns the name of the physical slot on the primary that a standby streams from; "" for a primary.
func (p *Postgres) Slot() string { return p.slot }

// Promote makes a standby a primary, and returns when it takes writes. The old primary isn't stopped.
func (p *Postgres) Promote(ctx context.Context) error {
	if p.primary == nil {
		return fmt.Errorf("promote %s: it isn't a standby", p.name)
	}
	var promoted bool
	if err := p.query(ctx, "postgres", "SELECT pg_promote(true, 60)", &promoted); err != nil {
		return fmt.Errorf("promote %s: %w", p.name, err)
	}
	if !promoted {
		return fmt.Errorf("promote %s: not done after 60 s; its log ends with:\n%s", p.name, p.Log())
	}
	return nil
}

// follow makes the data of a standby, unless it is there, and writes primary_conninfo.
func (p *Postgres) follow(ctx context.Context, name string, settings map[string]string) error {
	if p.slot == "" {
		slot := "standby_" + strconv.Itoa(p.Port())
		if err := p.primary.query(ctx, "postgres", "SELECT pg_create_physical_replication_slot($1, true)", nil, slot); err != nil {
			return fmt.Errorf("create its slot: %w", err)
		}
		p.slot = slot // from now on it keeps WAL, and Close drops it
		if err := p.copyPrimary(ctx); err != nil {
			return fmt.Errorf("copy the primary: %w", err)
		}
	}
	return p.appendSettings(map[string]string{
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres application_name=%s",
			p.primary.Port(), name),
		"primary_slot_name":    p.slot,
		"hot_standby":          "on",
		"hot_standby_feedback": "on",
	}, settings)
}

// streams returns nil once the primary sees the standby streaming.
func (p *Postgres) streams(ctx context.Context, name string) error {
	deadline := time.Now().Add(startTimeout)
	for {
		var streaming bool
		err := p.primary.query(ctx, "postgres",
			"SELECT EXISTS (SELECT FROM pg_stat_replication WHERE application_name = $1 AND state = 'streaming')", &streaming, name)
		if err != nil || streaming {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("it doesn't stream; its log ends with:\n%s", p.Log())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// copyPrimary takes a base backup of the running primary: of its folder, between the calls that make such a copy valid.
// The WAL isn't copied, it comes through the slot.
func (p *Postgres) copyPrimary(ctx context.Context) error {
	begin, end := "SELECT pg_backup_start('standby', true)", "SELECT labelfile FROM pg_backup_stop(false)"
	if p.primary.Major() < 15 {
		begin, end = "SELECT pg_start_backup('standby', true, false)", "SELECT labelfile FROM pg_stop_backup(false, false)"
	}
	var label string
	err := p.primary.withConn(ctx, "postgres", func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, begin); err != nil {
			return err
		}
		if err := copyTree(p.primary.DataDir(), p.DataDir(), p.uid, leaveOut); err != nil {
			return err
		}
		return conn.QueryRow(ctx, end).Scan(&label) // on the same connection
	})
	if err != nil {
		return err
	}
	for name, content := range map[string]string{"backup_label": label, "standby.signal": ""} {
		path := filepath.Join(p.DataDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
		if err := give(path, p.uid); err != nil {
			return err
		}
	}
	return nil
}

// leaveOut reports whether a base backup leaves the file out.
func leaveOut(rel string, dir bool) bool {
	rel = filepath.ToSlash(rel)
	switch rel {
	case "postmaster.pid", "postmaster.opts", "standby.signal", "backup_label", "pg_replslot", "pg_dynshmem":
		return true
	}
	return !dir && strings.HasPrefix(rel, "pg_wal/")
}

// dropSlot drops a standby's slot, which would keep the primary's WAL forever.
func (p *Postgres) dropSlot() {
	if p.slot == "" || !p.primary.Running() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	// The primary may be frozen or promoted-over: then the slot no longer matters.
	_ = p.primary.query(ctx, "postgres", "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "+
		"WHERE slot_name = $1", nil, p.slot)
}
