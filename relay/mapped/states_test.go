package mapped

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// seen waits until what status says of the one destination is so.
func (db database) seen(what string, so func(r *health.Report, d *health.Destination) bool) {
	db.T.Helper()
	conn := db.Connect()
	var r *health.Report
	await.UntilElse(db.T, func() bool {
		var err error
		if r, err = health.Status(db.T.Context(), conn); err != nil {
			db.T.Fatal(err)
		}
		return len(r.Destinations) == 1 && r.Destinations[0].Name == "shop" && so(r, &r.Destinations[0])
	}, func() string { return fmt.Sprintf("%s: %v, %+v", what, r.Verdict, r.Destinations) })
}

func TestStatusTellsTheTruthAboutATableThatExists(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	all := strategies()
	byStatus := changed(func(m *mapping.Mapping) { m.Failure.DeadTable, m.Failure.FailedValue = "", "failed" })
	for _, name := range []string{"skiplocked", "advisory", "lease", "lease by status"} {
		all[name+", failed rows by status"] = byStatus[name]
	}
	all["replication"] = nil
	for name, open := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			if open == nil {
				var log logNames
				db, log = newLogDatabase(t)
				open = func(conn *pgx.ConnConfig, cfg Config) (relay.Source, error) {
					return openLogOf(conn, logged(), cfg, log)
				}
			}
			db.install(t)
			db.T = t
			source := opened(t)(open(db.Config(),
				Config{Name: "one", Destination: "shop", LagObjective: time.Hour, PollIdle: 5 * time.Millisecond}))
			state := func(state health.State, text string) {
				t.Helper()
				db.seen(fmt.Sprint(state, " ", text), func(r *health.Report, d *health.Destination) bool {
					return r.Verdict.State == state && strings.Contains(r.Verdict.Cause, text) && d.LagObjective == time.Hour
				})
			}
			marks := !slices.Contains([]string{"xmin", "serial", "replication"}, name)
			broker := relaytest.NewMemory()
			broker.Fail("bad", 2, outbox.Permanent(errors.New("too large")))
			soon := relay.Backoff{Initial: 10 * time.Millisecond, Max: 10 * time.Millisecond}
			ctx, stop := testdb.Run(t, source, broker, relay.Config{Outage: soon})
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'bad', '1')`)
			db.seen("one dead letter", func(_ *health.Report, d *health.Destination) bool {
				return d.Dead.Messages.N == 1 && d.Table.Name == "events" && (len(d.Table.Untold) == 0) == marks
			})
			state(health.StateDead, "1 new dead letter; last error: too large")
			conn, anna := db.Connect(), admin.Action{Actor: "anna"}
			acknowledge := func() {
				t.Helper()
				if out, err := jobs.AcknowledgeRows(t.Context(), conn, "shop", 1, anna); err != nil || out.Rows != 1 {
					t.Fatalf("%+v, %v", out, err)
				}
			}
			acknowledge()
			state(health.StateIdle, "")
			list, err := jobs.DeadRows(t.Context(), conn, jobs.RowSelection{Destination: "shop"}, 0)
			if err != nil || len(list) != 1 || list[0].Error != "too large" || len(list[0].MessageID) != 36 || list[0].Attempts != 1 {
				t.Fatalf("%+v, %v", list, err)
			}
			// It fails once more, which is new, and is delivered then.
			requeue := func(ids ...string) {
				t.Helper()
				s := jobs.RowSelection{Destination: "shop", IDs: ids, Max: 1}
				if out, err := jobs.RequeueRows(t.Context(), conn, s, anna); err != nil || out.Rows != 1 {
					t.Fatalf("%+v, %v", out, err)
				}
			}
			requeue(list[0].ID)
			state(health.StateDead, "1 new dead letter; last error: too large")
			acknowledge()
			requeue()
			db.seen("none is dead", func(_ *health.Report, d *health.Destination) bool { return d.Dead.Messages.N == 0 })
			// The requeued row may be one that xmin doesn't read before other transactions of the server have ended.
			must(t, broker.Wait(ctx, func() bool { return len(broker.Messages()) > 0 }))
			state(health.StateIdle, "")
			if m := broker.Messages(); len(m) != 1 || m[0].Key != "bad" || m[0].ID.String() != list[0].MessageID {
				t.Fatalf("delivered %+v", m)
			}
			if n := db.Value(`SELECT count(*) FROM outbox.audit WHERE verb IN ('requeue_rows', 'acknowledge_rows')`); n != "4" {
				t.Errorf("%s entries in the audit", n)
			}
			broker.Kill()
			db.Exec(`INSERT INTO events (topic, key, payload, created_at)
				VALUES ('t', 'a', '1', now() - interval '1 minute'), ('t', 'b', '1', now())`)
			state(health.StateStalled, "does not answer")
			if marks {
				db.seen("two pending", func(r *health.Report, d *health.Destination) bool {
					return d.Pending.N+d.Held.Messages.N == 2 && r.At.Sub(d.Oldest).Round(time.Minute) == time.Minute
				})
			}
			broker.Restart()
			state(health.StateIdle, "")
			stop()
			state(health.StateNoRelay, "one ended")
		})
	}
}

func TestWhatFailsInATableThatExistsIsFailing(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	db := newDatabase(t)
	db.install(t)
	source := opened(t)(strategies()["advisory"](db.Config(), Config{Name: "one", Destination: "shop", PollIdle: 5 * time.Millisecond}))
	broker := relaytest.NewMemory()
	broker.Fail("bad", 1000, errors.New("come back later"))
	often := relay.Backoff{Initial: 10 * time.Millisecond, Max: 10 * time.Millisecond}
	_, stop := testdb.Run(t, source, broker, relay.Config{MaxAttempts: 1000, Backoff: often})
	db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'bad', '1')`)
	db.seen("failing", func(r *health.Report, d *health.Destination) bool {
		return r.Verdict.State == health.StateFailing && d.Held.LastError == "come back later"
	})
	stop()
	// What can't be counted is named, and spoils nothing else.
	db.Exec(`ALTER TABLE events RENAME COLUMN created_at TO made_at`)
	db.seen("what is untold", func(_ *health.Report, d *health.Destination) bool {
		return len(d.Table.Untold) == 1 && strings.Contains(d.Table.Untold[0], "created_at") && len(d.Groups) == 1
	})
}

func TestBlockedRowsOfATableThatExistsAreTriedAgainWhenAnOperatorSaysSo(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"lease", "skiplocked"} { // the second has no column that would show it
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.install(t)
			db.T = t
			source := opened(t)(strategies()[name](db.Config(), Config{Name: "one", Destination: "shop", PollIdle: 5 * time.Millisecond}))
			broker := relaytest.NewMemory()
			broker.Fail("bad", 1, outbox.Permanent(errors.New("too large")))
			_, stop := testdb.Run(t, source, broker, relay.Config{OnExhausted: relay.Block})
			defer stop()
			db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'bad', '1'), ('t', 'bad', '2'), ('t', 'good', '1')`)
			conn := db.Connect()
			requeue := func() (jobs.RowOutcome, error) {
				blocked := jobs.RowSelection{Destination: "shop", Blocked: true}
				return jobs.RequeueRows(t.Context(), conn, blocked, admin.Action{Actor: "anna"})
			}
			if name == "skiplocked" {
				db.seen("a relay", func(*health.Report, *health.Destination) bool { return true })
				if _, err := requeue(); !errors.Is(err, admin.ErrNotFound) || !strings.Contains(err.Error(), "the relay alone knows") {
					t.Errorf("got %v", err)
				}
				return
			}
			db.seen("blocked", func(r *health.Report, d *health.Destination) bool {
				return r.Verdict.State == health.StateBlocked && d.Held.Blocked == 1 &&
					r.Verdict.Next == "outbox tables requeue --blocked --destination shop"
			})
			list, err := jobs.DeadRows(t.Context(), conn, jobs.RowSelection{Destination: "shop", Blocked: true}, 0)
			if err != nil || len(list) != 1 || list[0].Error != "too large" { // the one behind it is free when it is
				t.Fatalf("%+v, %v", list, err)
			}
			if out, err := requeue(); err != nil || out.Rows != 1 {
				t.Fatalf("%+v, %v", out, err)
			}
			db.seen("all is delivered", func(r *health.Report, _ *health.Destination) bool {
				return r.Verdict.State.OK() && len(broker.Messages()) == 3
			})
		})
	}
}

// A slot of a table of its own is watched like those of the outbox: what the server keeps for it, and that it is gone.
func TestStatusKnowsTheSlotOfATable(t *testing.T) {
	t.Parallel()
	db, log := newLogDatabase(t)
	db.install(t)
	source := opened(t)(openLogOf(db.Config(), logged(), Config{Name: "one", Destination: "shop", PollIdle: 5 * time.Millisecond}, log))
	_, stop := testdb.Run(t, source, relaytest.NewMemory(), relay.Config{})
	db.seen("the slot", func(_ *health.Report, d *health.Destination) bool {
		return d.Slot != nil && d.Slot.Name == log.Slot && d.Slot.Status == "reserved" && d.Slot.Position != ""
	})
	stop()
	db.DropSlots()
	db.Exec(`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, log.Slot)
	db.seen("the loss", func(r *health.Report, d *health.Destination) bool {
		return slices.ContainsFunc(d.Verdict.Causes(), func(f health.Finding) bool {
			return f.State == health.StateBroken && strings.Contains(f.Cause, log.Slot+" is not there") &&
				f.Next == "outbox migrate sources --apply" && !strings.Contains(f.Advice, "makes another")
		})
	})
}
