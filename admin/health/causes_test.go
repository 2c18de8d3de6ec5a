package health

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
	d.T.Helper()
	cfg := d.Config().Copy()
	cfg.RuntimeParams["application_name"] = application
	if role != "" {
		cfg.User = role
	}
	conn, err := pgx.ConnectConfig(d.T.Context(), cfg)
	if err != nil {
		d.T.Fatal(err)
	}
	d.T.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// open begins a transaction on a session of another program.
func (d *database) open(sql string) *pgx.Conn {
	d.T.Helper()
	conn := d.session("psql", "")
	if err := conn.PgConn().Exec(d.T.Context(), "BEGIN; "+sql).Close(); err != nil {
		d.T.Fatal(err)
	}
	return conn
}

// offsets makes the table events, of which a relay has read row 7 and all before by such a strategy. By transaction, it
// is read per topic and partition, and another partition is further.
func (d *database) offsets(strategy string) {
	d.T.Helper()
	of, name := mapping.Offsets{Table: "events_offsets"}, "*"
	if strategy == mapping.XMin {
		of.Topic, of.Partition, of.Transaction, name = "topic", "part", "xid", "t"
	}
	columns, err := json.Marshal(mapping.Mapping{Table: "public.events", ID: "id", Topic: "t", CreatedAt: "at",
		Offsets: of})
	if err != nil {
		d.T.Fatal(err)
	}
	d.session("outbox relay r", "")
	d.MustExec(mapping.OffsetsDDL(mapping.TableName{Name: "events_offsets"}))
	d.MustExec(`CREATE TABLE events (id bigint PRIMARY KEY, at timestamptz, xid xid8 DEFAULT pg_current_xact_id(),
		topic varchar(9) DEFAULT 't', part smallint DEFAULT 1);
		INSERT INTO events_offsets (topic, partition, last_processed_id, last_processed_transaction_id)
		VALUES ('', 0, 0, '0'), ('` + name + `', 1, 7, '9'), ('t', 2, 0, '99999999'), ('u', 1, 0, '99999999')`)
	d.MustExec(`INSERT INTO outbox.tables (destination, shard_group, owner, shard_groups, session, strategy, mapping, state, state_since, lag_objective)
		VALUES ('events', 0, 'r', 1, 'outbox relay r', $2, $1, 'flowing', now(), '30 s')`, string(columns), strategy)
}

func (d *database) relayRole() string { return "relay of " + d.Config().Database }

// roleOfRelay makes a role with the rights of a relay, and returns its name as SQL has it.
func (d *database) roleOfRelay() string {
	d.T.Helper()
	name := pgx.Identifier{d.relayRole()}.Sanitize()
	d.MustExec(`CREATE ROLE ` + name + ` LOGIN`)
	d.T.Cleanup(func() {
		if _, err := d.Exec(context.Background(), `DROP OWNED BY `+name+`; DROP ROLE `+name); err != nil {
			d.T.Error(err)
		}
	})
	d.MustExec(schema.Grants("", d.relayRole(), ""))
	return name
}

// silentRelay is relay-1 of that role, which could renew neither its lease nor its heartbeat, and has no session.
func (d *database) silentRelay() {
	d.T.Helper()
	d.Cursor("kafka", "-1 minute")
	d.relays("relay-1")
	d.MustExec(`UPDATE outbox.relays SET role = $1, heartbeat_at = now() - interval '1 minute'`, d.relayRole())
}

var causeCases = []verdictCase{
	{"a row of the cursors is locked", "a transaction has locked what the relay needs", func(d *database) {
		d.Cursor("kafka", "-1 minute")
		d.open(`SELECT FROM outbox.cursors FOR UPDATE`)
		waits := d.session("outbox relay relay-1", "")
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = waits.Exec(ctx, `UPDATE outbox.cursors SET epoch = epoch + 1`) // it waits until the test ends
		}()
		d.T.Cleanup(func() { cancel(); <-ended })
		await.Until(d.T, "the relay waits", func() bool {
			return d.Int(`SELECT count(*) FROM pg_locks WHERE NOT granted AND waitstart < clock_timestamp() - interval '`+lockedFor+`'
				AND pid = $1`, waits.PgConn().PID()) > 0
		})
	}, StateBroken, "application psql, idle in transaction, open for", "SELECT pg_terminate_backend("},
	{"the relay's role lacks a right", "the relay's role lacks a right", func(d *database) {
		d.MustExec(`REVOKE UPDATE ON outbox.cursors FROM ` + d.roleOfRelay())
		d.session("outbox relay relay-1", d.relayRole())
		d.Cursor("kafka", "-1 minute") // it could not be renewed
		d.relays("relay-1")
	}, StateBroken, "of relay-1 lacks UPDATE on outbox.cursors", "outbox migrate grants --apply --relay 'relay of "},
	{"the relay's role may not use the schema", "the relay's role lacks a right", func(d *database) {
		name := d.roleOfRelay()
		d.MustExec(`REVOKE USAGE ON SCHEMA outbox FROM ` + name)
		d.silentRelay()
	}, StateBroken, "of relay-1 lacks USAGE on schema outbox", "outbox migrate grants --apply --relay 'relay of "},
	{"the relay's role may not log in", "no relay has the lease", func(d *database) {
		name := d.roleOfRelay()
		d.MustExec(`ALTER ROLE ` + name + ` NOLOGIN`)
		d.silentRelay()
	}, StateNoRelay, " of relay-1 may not log in", "let the role log in"},
	{"the relay's role may not connect", "no relay has the lease", func(d *database) {
		d.roleOfRelay()
		d.MustExec(`REVOKE CONNECT ON DATABASE ` + d.Config().Database + ` FROM PUBLIC`)
		d.silentRelay()
	}, StateNoRelay, " of relay-1 may not connect to this database", "let the role log in"},
	{"the relay's role was renamed", "no relay has the lease", func(d *database) {
		d.roleOfRelay()
		d.silentRelay()
		d.MustExec(`UPDATE outbox.relays SET role = role || ' as it was'`)
	}, StateNoRelay, " as it was of relay-1 does not exist any more", "give the relay another one"},
	{"a strategy waits for a transaction that wrote", "rows wait for a transaction", func(d *database) {
		d.offsets(mapping.Serial)
		d.open(`INSERT INTO events VALUES (1, now(), '1')`)
		d.MustExec(`INSERT INTO events VALUES (7, now(), '1'), (8, now() - interval '1 hour', '1'), (9, now(), '1')`)
	}, StateLagging, "events: 2 rows of table public.events wait, the oldest for 1h, for the transaction of process",
		"SELECT pg_terminate_backend("},
	{"a strategy waits for a transaction of anybody's", "rows wait for a transaction", func(d *database) {
		d.offsets(mapping.XMin)
		d.open(`CREATE TABLE elsewhere ()`)
		d.MustExec(`INSERT INTO events VALUES (1, now() - interval '1 hour')`)
	}, StateLagging, "events: 1 row of table public.events waits, the oldest for 1h, for the transaction of process",
		"SELECT pg_terminate_backend("},
	{"rows have begun to wait for a transaction", "", func(d *database) {
		d.offsets(mapping.XMin)
		d.open(`CREATE TABLE elsewhere ()`)
		d.MustExec(`INSERT INTO events VALUES (1, now()), (2, now())`)
	}, StateFlowing, "2 pending, 2 of them behind the transaction of process ", ""},
	{"rows have been written by number, and nobody keeps them back", "", func(d *database) {
		d.offsets(mapping.Serial)
		d.MustExec(`INSERT INTO events VALUES (7, now()), (8, now())`)
	}, StateFlowing, "flowing: events: 1 pending", ""},
	{"no row waits for a transaction", "", func(d *database) {
		d.offsets(mapping.Serial)
		d.MustExec(`UPDATE outbox.tables SET lag_objective = '1 microsecond'`)
		d.open(`INSERT INTO events VALUES (9, now(), '1')`)
		d.MustExec(`INSERT INTO events VALUES (7, now() - interval '1 hour', '1')`)
	}, StateIdle, "", ""},
	{"rows are locked by a transaction", "rows wait for a transaction", func(d *database) {
		d.Table("")
		d.Rows("now() - interval '1 hour'", "NULL", 3)
		d.open(`SELECT FROM shop WHERE id < 3 FOR UPDATE`)
	}, StateLagging, "shop: 2 rows of table shop wait, the oldest for 1h, for the transaction of process",
		"SELECT pg_terminate_backend("},
	{"rows were locked by a transaction", "messages wait for longer than they may", func(d *database) {
		d.Table("")
		d.Rows("now() - interval '1 hour'", "NULL", 3)
		d.MustExec(`SELECT FROM shop FOR UPDATE`)
	}, StateLagging, "shop: 3 pending and 0 held", ""},
	{"a clock is an hour off", "a clock is wrong", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.relays("relay-1", "relay-2")
		d.MustExec(`UPDATE outbox.relays SET clock_ahead = '-1 hour'`)
	}, StateAtRisk, "at risk: kafka: the clock of relay-1 on host h is 1h behind the database's", "timedatectl set-ntp true"},
	{"somebody dropped an index", "an index is missing", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`DROP INDEX outbox.messages_xid_id`)
	}, StateAtRisk, "an index of the outbox is missing", "CREATE INDEX messages_xid_id ON outbox.messages (xid, id, shard)"},
}

func TestARelayThatMayNotUseTheSchemaSaysSo(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.As(d.relayRole(), schema.Grants("", d.relayRole(), ""))
	d.MustExec(`RESET ROLE; REVOKE USAGE ON SCHEMA outbox FROM ` + pgx.Identifier{d.relayRole()}.Sanitize())
	d.MustExec(`SET ROLE ` + pgx.Identifier{d.relayRole()}.Sanitize())
	for _, application := range []string{"outbox monitor relay-1", "outbox api relay-1"} {
		d.MustExec(`SET application_name = '` + application + `'`)
		v := d.status().Verdict
		if want := "the role " + d.relayRole() + " of relay-1 lacks USAGE on schema outbox"; v.State != StateBroken || v.Cause != want {
			t.Errorf("%q, want %q", v, want)
		}
	}
}

func TestASlotThatKeepsMuchOfTheLogIsNamed(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	r := d.status()
	for status, want := range map[string]State{"reserved": StateIdle, "extended": StateAtRisk, "unreserved": StateAtRisk} {
		r.Destinations[0].Slot = &Slot{Name: "s", Mode: "replication", Position: "0/1", Status: status, Kept: 3 << 30}
		if r.judge(allRules); r.Verdict.State != want || want == StateAtRisk &&
			!strings.Contains(r.Verdict.Cause, "3 GiB of its log for slot s") {
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
	d.Cursor("kafka", "1 minute")
	holder := d.open(`LOCK TABLE outbox.cursors`)
	await.Until(t, "the lock is old enough to be told of", func() bool {
		return d.Int(`SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND xact_start < clock_timestamp() - interval '`+lockedFor+`'`, holder.PgConn().PID()) > 0
	})
	r := d.status()
	want := fmt.Sprintf("SELECT pg_terminate_backend(%d)", holder.PgConn().PID())
	now := r.Amended([]Live{{Destination: "kafka", State: "flowing"}}, time.Second, nil)
	on, _ := now.On([]string{"kafka"})
	for _, v := range []Verdict{r.Verdict, now.Verdict, on, now.Destinations[0].Verdict} {
		if v.State != StateBroken || !strings.Contains(v.Cause, "LOCK TABLE outbox.cursors") ||
			!strings.Contains(v.Advice, want) || v.Next != "" {
			t.Errorf("%q", v)
		}
	}
	d.MustExec(want)
	await.Until(t, "it is gone", func() bool { return d.status().Verdict.State == StateIdle })
}

// A relay whose lease ran out behind a lock tries again and again. Between two attempts it waits for nothing, and what
// has the lock is still the cause. A transaction that is younger than the lease's end is not.
func TestALeaseLostBehindALockIsNamedBetweenTwoAttempts(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "3 seconds")
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

// An error is known by whole words: parts of longer ones mean something else.
func TestTheAdviceOnABrokersErrorIsByWholeWords(t *testing.T) {
	t.Parallel()
	const disk, login, file, other = "room on the broker's disk", "the relay's login", "the user that the relay runs as", "check the broker"
	for text, want := range map[string]string{
		"redis: MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.": disk,
		"MISCONF Errors writing to the AOF file":             disk,
		"write /var/outbox: no space left on device":         disk,
		"kafka: the listener is misconfigured":               other,
		"the exchange has a misconfiguration":                other,
		"open /etc/outbox/client.key: permission denied":     file,
		"file: mkdir /srv/out: permission denied":            file,
		"dial tcp 10.0.0.1:9092: connect: permission denied": "let the relay connect",
		"nats: permission denied for subject orders":         login,
		"rpc error: code = PermissionDenied desc = no":       login,
		"UnauthorizedOperation: no":                          login,
		"SASL Authentication failed":                         login,
		"NOAUTH Authentication required.":                    login,
		"x509: certificate signed by unknown authority":      "authority of the broker's certificate",
		"remote error: tls: unknown ca":                      "authority of the broker's certificate",
		"unknown cause":                                      other,
		"unknown category":                                   other,
		"dial tcp: lookup nats: no such host":                "host name",
	} {
		if got := adviceOn(text); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
