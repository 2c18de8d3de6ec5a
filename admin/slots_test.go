package admin

import (
	"context"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

// setAlone is setup with a server of its own, whose settings the test may change.
func setAlone(t *testing.T) *database {
	t.Helper()
	d := &database{t: t, url: servers.OwnPostgres(t).URL("postgres")}
	d.Conn = d.another()
	if _, err := schema.Up(t.Context(), d.Conn, schema.UpConfig{}); err != nil {
		t.Fatal(err)
	}
	return d
}

// configure changes a setting of the server, "" to the default, and waits until it holds.
func (d *database) configure(name, value string) {
	d.t.Helper()
	d.exec("ALTER SYSTEM SET " + name + " = '" + value + "'")
	d.exec("SELECT pg_reload_conf()")
	await.Until(d.t, name+" holds", func() bool {
		var now string
		err := d.another().QueryRow(d.t.Context(), "SELECT current_setting($1)", name).Scan(&now)
		return err == nil && now == value
	})
}

// says compares the verdict, which has to be due to the rule.
func (d *database) says(rule string, state State, cause, advice string) {
	d.t.Helper()
	var r *Report
	defer func() {
		if d.t.Failed() {
			d.t.Logf("the verdict is %q", r.Verdict)
		}
	}()
	await.Until(d.t, string(state)+": "+cause, func() bool {
		r = d.status()
		return r.Verdict.State == state && strings.Contains(r.Verdict.Cause, cause) && strings.Contains(r.Verdict.Advice, advice)
	})
	if cause := r.Verdict.Cause; rule != "" {
		if r.judge(allRules.without(rule)); r.Verdict.Cause == cause {
			d.t.Errorf("without the rule that %s it is still %q", rule, r.Verdict)
		}
	}
}

// A relay whose slot waits for a standby receives nothing, and only the server's log would say why.
func TestAStandbyThatIsAwayIsNamedByTheVerdict(t *testing.T) {
	t.Parallel()
	d := setAlone(t)
	d.cursor("kafka", "10 minutes")
	d.exec("SELECT pg_create_logical_replication_slot('ours', 'pgoutput', false, false, true)")
	d.exec(`INSERT INTO outbox.slots (destination, slot, publication, position) VALUES ('kafka', 'ours', 'outbox', '0/1')`)
	d.says("", StateIdle, "", "")
	const rule = "a standby is away that the log waits for"
	d.configure("synchronized_standby_slots", "one, two")
	d.says(rule, StateAtRisk, "one (there is no such slot), two (there is no such slot)", "take its slot out of synchronized_standby_slots")
	d.exec("SELECT pg_create_physical_replication_slot('one')")
	d.write(1)
	d.says(rule, StateBroken, "by slot ours: synchronized_standby_slots has it wait for one (no standby streams from it), two (",
		"start that standby")
	// A slot that isn't copied to standbys waits for none.
	d.exec("SELECT pg_drop_replication_slot('ours')")
	d.exec("SELECT pg_create_logical_replication_slot('ours', 'pgoutput')")
	d.says("", StateFlowing, "", "")
}

func TestCommitsThatWaitForAStandbyAreNamedByTheVerdict(t *testing.T) {
	t.Parallel()
	d := setAlone(t)
	d.cursor("kafka", "10 minutes")
	d.configure("synchronous_standby_names", "one")
	writer := d.another()
	ended := make(chan error, 1)
	go func() {
		_, err := writer.Exec(context.WithoutCancel(t.Context()), "SELECT outbox.publish('t', 'x'::bytea)")
		ended <- err
	}()
	d.says("commits wait for a standby", StateBroken,
		"1 commit waits for a synchronous standby that does not answer (synchronous_standby_names = 'one')",
		"take it out of synchronous_standby_names")
	d.exec("SET synchronous_commit = local")
	d.configure("synchronous_standby_names", "")
	if err := <-ended; err != nil {
		t.Error(err)
	}
	d.says("", StateFlowing, "", "")
}
