package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

// session opens a connection with an application's name, as a role if one is named.
func (d *database) session(application, role string) *pgx.Conn {
	d.t.Helper()
	cfg := d.Config().Copy()
	cfg.RuntimeParams["application_name"] = application
	if role != "" {
		cfg.User = role
	}
	conn, err := pgx.ConnectConfig(d.t.Context(), cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// open begins a transaction on a session of another program.
func (d *database) open(sql string) *pgx.Conn {
	d.t.Helper()
	conn := d.session("psql", "")
	if err := conn.PgConn().Exec(d.t.Context(), "BEGIN; "+sql).Close(); err != nil {
		d.t.Fatal(err)
	}
	return conn
}

var causeCases = []verdictCase{
	{"a row of the cursors is locked", "a transaction has locked what the relay needs", func(d *database) {
		d.cursor("kafka", "-1 minute")
		d.open(`SELECT FROM outbox.cursors FOR UPDATE`)
		waits := d.session("outbox relay relay-1", "")
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = waits.Exec(ctx, `UPDATE outbox.cursors SET epoch = epoch + 1`) // it waits until the test ends
		}()
		d.t.Cleanup(func() { cancel(); <-ended })
		await.Until(d.t, "the relay waits", func() bool {
			return d.int(`SELECT count(*) FROM pg_locks WHERE NOT granted AND waitstart < clock_timestamp() - interval '`+lockedFor+`'
				AND pid = $1`, waits.PgConn().PID()) > 0
		})
	}, StateBroken, "application psql, idle in transaction, open for", "SELECT pg_terminate_backend("},
	{"the relay's role lacks a right", "the relay's role lacks a right", func(d *database) {
		role := "relay of " + d.Config().Database
		d.exec(`CREATE ROLE ` + pgx.Identifier{role}.Sanitize() + ` LOGIN`)
		d.t.Cleanup(func() {
			name := pgx.Identifier{role}.Sanitize()
			if _, err := d.Exec(context.Background(), `DROP OWNED BY `+name+`; DROP ROLE `+name); err != nil {
				d.t.Error(err)
			}
		})
		d.exec(schema.Grants("", role, ""))
		d.exec(`REVOKE UPDATE ON outbox.cursors FROM ` + pgx.Identifier{role}.Sanitize())
		d.session("outbox relay relay-1", role)
		d.cursor("kafka", "-1 minute") // it could not be renewed
		d.relays("relay-1")
	}, StateBroken, "of relay-1 lacks UPDATE on outbox.cursors", "outbox migrate grants --apply --relay 'relay of "},
	{"a strategy waits for a transaction", "a strategy waits for a transaction", func(d *database) {
		d.exec(`CREATE TABLE events (id bigint)`)
		columns, err := json.Marshal(mapping.Mapping{Table: "public.events"})
		if err != nil {
			d.t.Fatal(err)
		}
		d.session("outbox relay r", "")
		d.exec(`INSERT INTO outbox.tables (destination, shard_group, owner, shard_groups, session, strategy, mapping, state, state_since, lag_objective)
			VALUES ('kafka', 0, 'r', 1, 'outbox relay r', 'serial', $1, 'flowing', now(), '1 microsecond')`, string(columns))
		d.open(`INSERT INTO events VALUES (1)`)
	}, StateLagging, "waits, with strategy serial, for the transaction of process", "SELECT pg_terminate_backend("},
	{"a clock is an hour off", "a clock is wrong", func(d *database) {
		d.cursor("kafka", "1 minute")
		d.relays("relay-1", "relay-2")
		d.exec(`UPDATE outbox.relays SET clock_ahead = '-1 hour'`)
	}, StateAtRisk, "at risk: kafka: the clock of relay-1 on host h is 1h0m0s behind the database's", "timedatectl set-ntp true"},
	{"somebody dropped an index", "an index is missing", func(d *database) {
		d.cursor("kafka", "1 minute")
		d.exec(`DROP INDEX outbox.messages_xid_id`)
	}, StateAtRisk, "an index of the outbox is missing", "CREATE INDEX messages_xid_id ON outbox.messages (xid, id, shard)"},
}

func TestASlotThatKeepsMuchOfTheLogIsNamed(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "1 minute")
	r := d.status()
	for status, want := range map[string]State{"reserved": StateIdle, "extended": StateAtRisk, "unreserved": StateAtRisk} {
		r.Destinations[0].Slot = &Slot{Name: "s", Mode: "replication", Position: "0/1", Status: status, Kept: 3 << 30}
		if r.judge(allRules); r.Verdict.State != want || want == StateAtRisk &&
			!strings.Contains(r.Verdict.Cause, "3072 MiB of its log for slot s") {
			t.Errorf("%s: %q", status, r.Verdict)
		}
		if r.judge(allRules.without("the server keeps much of the log")); r.Verdict.State != StateIdle {
			t.Errorf("%s, without the rule: %q", status, r.Verdict)
		}
	}
}

// A look at locked tables ends, and says who has locked them. So does a relay that still believes that it delivers.
func TestTablesThatAreLockedAreAVerdict(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "1 minute")
	holder := d.open(`LOCK TABLE outbox.cursors`)
	await.Until(t, "the lock is old enough to be told of", func() bool {
		return d.int(`SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND xact_start < clock_timestamp() - interval '`+lockedFor+`'`, holder.PgConn().PID()) > 0
	})
	r := d.status()
	want := fmt.Sprintf("SELECT pg_terminate_backend(%d)", holder.PgConn().PID())
	now := r.Amended([]Live{{Destination: "kafka", State: "flowing"}}, time.Second, nil)
	on, _ := now.On([]string{"kafka"})
	for _, v := range []Verdict{r.Verdict, now.Verdict, on, now.Destinations[0].Verdict} {
		if v.State != StateBroken || !strings.Contains(v.Cause, "LOCK TABLE outbox.cursors") ||
			!strings.Contains(v.Advice, want) || v.Next != "outbox status" {
			t.Errorf("%q", v)
		}
	}
	d.exec(want)
	await.Until(t, "it is gone", func() bool { return d.status().Verdict.State == StateIdle })
}

// A relay whose lease ran out behind a lock tries again and again. Between two attempts it waits for nothing, and what
// has the lock is still the cause. A transaction that is younger than the lease's end is not.
func TestALeaseLostBehindALockIsNamedBetweenTwoAttempts(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.cursor("kafka", "3 seconds")
	d.open(`SELECT FROM outbox.cursors FOR UPDATE`)
	await.Until(t, "it is named", func() bool {
		v := d.status().Verdict
		return v.State == StateBroken && strings.Contains(v.Cause, "SELECT FROM outbox.cursors FOR UPDATE")
	})
	lost := d.status()
	for h := range lost.Holders {
		lost.Holders[h].Since = lost.Destinations[0].Groups[0].LeaseUntil.Add(time.Millisecond)
	}
	if lost.judge(allRules); lost.Verdict.State != StateNoRelay {
		t.Errorf("a transaction that began after the relay had gone: %q", lost.Verdict)
	}
}
