package health

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/internal/admintest"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

// setAlone is setup with a server of its own, whose settings the test may change.
func setAlone(t *testing.T, config ...servers.PostgresConfig) *database {
	t.Helper()
	d := &database{admintest.Open(t, servers.OwnPostgres(t, config...).URL("postgres"))}
	if _, err := schema.Up(t.Context(), d.Conn, schema.UpConfig{}); err != nil {
		t.Fatal(err)
	}
	return d
}

// configure changes a setting of the server, "" to the default, and waits until it holds.
func (d *database) configure(name, value string) {
	d.T.Helper()
	d.MustExec("ALTER SYSTEM SET " + name + " = '" + value + "'")
	d.MustExec("SELECT pg_reload_conf()")
	await.Until(d.T, name+" holds", func() bool {
		var now string
		err := d.Another().QueryRow(d.T.Context(), "SELECT current_setting($1)", name).Scan(&now)
		return err == nil && now == value
	})
}

// says compares the verdict, which has to be due to the rule.
func (d *database) says(rule string, state State, cause, advice string) {
	d.T.Helper()
	var r *Report
	defer func() {
		if d.T.Failed() {
			d.T.Logf("the verdict is %q", r.Verdict)
		}
	}()
	await.Until(d.T, string(state)+": "+cause, func() bool {
		r = d.status()
		return r.Verdict.State == state && strings.Contains(r.Verdict.Cause, cause) && strings.Contains(r.Verdict.Advice, advice)
	})
	if cause := r.Verdict.Cause; rule != "" {
		if r.judge(allRules.without(rule)); r.Verdict.Cause == cause {
			d.T.Errorf("without the rule that %s it is still %q", rule, r.Verdict)
		}
	}
}

// A relay whose slot waits for a standby receives nothing, and only the server's log would say why.
func TestAStandbyThatIsAwayIsNamedByTheVerdict(t *testing.T) {
	t.Parallel()
	d := setAlone(t, servers.PostgresConfig{Major: "18"}) // slots wait for standbys since 17
	d.Cursor("kafka", "10 minutes")
	d.MustExec("SELECT pg_create_logical_replication_slot('ours', 'pgoutput', false, false, true)")
	d.MustExec(`INSERT INTO outbox.slots (destination, slot, publication, position) VALUES ('kafka', 'ours', 'outbox', '0/1')`)
	d.says("", StateIdle, "", "")
	const rule = "a standby is away that the log waits for"
	d.configure("synchronized_standby_slots", "one, two")
	d.says(rule, StateAtRisk, "one (there is no such slot), two (there is no such slot)", "take its slot out of synchronized_standby_slots")
	d.Write(1)
	d.says(rule, StateBroken, "by slot ours: synchronized_standby_slots has it wait for one (there is no such slot), two (",
		"start that standby")
	// A standby that is restarted is back in a moment.
	d.MustExec("SELECT pg_create_physical_replication_slot('one'), pg_create_physical_replication_slot('two')")
	d.says(rule, StateAtRisk, "one (no standby streams from it), two (no", "")
	d.MustExec("UPDATE outbox.cursors SET lag_objective = '1 millisecond'")
	d.says(rule, StateBroken, "by slot ours: synchronized_standby_slots has it wait for one (no standby streams from it), two (",
		"start that standby")
	d.MustExec("UPDATE outbox.cursors SET lag_objective = '1 hour'")
	// A slot that isn't copied to standbys waits for none.
	d.MustExec("SELECT pg_drop_replication_slot('ours')")
	d.MustExec("SELECT pg_create_logical_replication_slot('ours', 'pgoutput')")
	d.says("", StateFlowing, "", "")
}

func TestAStandbyThatIsAwayForAMomentIsNoOutage(t *testing.T) {
	t.Parallel()
	r := &Report{At: time.Now()}
	for away, want := range map[time.Duration]State{time.Second: StateAtRisk, 11 * time.Second: StateBroken} {
		d := &Destination{Pending: admin.Count{N: 1}, Slot: &Slot{Position: "0/1", Standbys: "one", StandbysSince: r.At.Add(-away)}}
		if f, ok := heldByStandby(r, d); !ok || f.State != want {
			t.Errorf("away for %v: %v %v, want %s", away, ok, f.State, want)
		}
	}
}

// A commit that is confirmed between two looks hangs no longer, for however long its statement ran.
func TestACommitThatWaitsForAMomentIsNoOutage(t *testing.T) {
	t.Parallel()
	d := setAlone(t)
	d.Cursor("kafka", "10 minutes")
	d.configure("synchronous_standby_names", "one")
	writer, other := d.Another(), d.Another()
	ended := make(chan error, 1)
	go func() {
		_, err := writer.Exec(context.WithoutCancel(t.Context()), "SELECT outbox.publish('t', 'x'::bytea), pg_sleep(2)")
		ended <- err
	}()
	seen := func(sql string) func() bool {
		return func() bool {
			var found bool
			err := other.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "+sql+")").
				Scan(&found)
			return err == nil && found
		}
	}
	await.Until(t, "a commit waits", seen("wait_event = 'SyncRep' AND query_start < clock_timestamp() - interval '2 seconds'"))
	reports := make(chan *Report)
	go func() {
		r, err := Status(t.Context(), d.Conn)
		if err != nil {
			t.Error(err)
		}
		reports <- r
	}()
	await.Until(t, "the look has found it", seen("wait_event = 'PgSleep' AND query LIKE '%pg_sleep_for%'"))
	for _, sql := range []string{"ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"} {
		if _, err := other.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if r := <-reports; r != nil && r.Unreplicated.Sessions > 0 {
		t.Errorf("the verdict is %q", r.Verdict)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestCommitsThatWaitForAStandbyAreNamedByTheVerdict(t *testing.T) {
	t.Parallel()
	d := setAlone(t)
	d.Cursor("kafka", "10 minutes")
	d.configure("synchronous_standby_names", "one")
	writer := d.Another()
	ended := make(chan error, 1)
	go func() {
		_, err := writer.Exec(context.WithoutCancel(t.Context()), "SELECT outbox.publish('t', 'x'::bytea)")
		ended <- err
	}()
	d.says("commits wait for a standby", StateBroken,
		"1 commit waits for a synchronous standby that does not answer (synchronous_standby_names = 'one')",
		"take it out of synchronous_standby_names")
	d.MustExec("SET synchronous_commit = local")
	d.configure("synchronous_standby_names", "")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	d.says("", StateFlowing, "", "")
}

// With a slot of a table of its own, what was not read is lost.
func TestALostSlotOfATableIsToldWithWhatIsLost(t *testing.T) {
	t.Parallel()
	d := setAlone(t)
	d.Table("")
	d.MustExec("SELECT pg_create_logical_replication_slot('shops', 'pgoutput')")
	d.MustExec(`UPDATE outbox.tables SET strategy = 'replication', slot = 'shops', mapping = mapping - 'Done'`)
	d.says("", StateIdle, "", "")
	d.configure("max_slot_wal_keep_size", "1MB")
	for d.status().destination("shop").Slot.Status != "lost" {
		d.MustExec("CREATE TABLE more AS SELECT repeat('x', 1000) FROM generate_series(1, 20000); DROP TABLE more")
		d.MustExec("SELECT pg_switch_wal()")
		d.MustExec("CHECKPOINT")
	}
	d.says("the replication slot is gone", StateBroken, "replication slot shops is lost", "by a strategy that reads the table")
	e, err := Examine(t.Context(), d.Conn)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(e.Symptoms, func(s Symptom) bool {
		return s.About == "slot" && s.Weight == WeightFault && strings.Contains(s.Repair, "pg_drop_replication_slot('shops')") &&
			strings.Contains(s.Repair, "migrate sources")
	}) {
		t.Errorf("the doctor finds %+v", e.Symptoms)
	}
}
