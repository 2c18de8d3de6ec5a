package health

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// verdictCase arranges a database. rule names the one rule that the verdict is due to; without it the state isn't
// found.
type verdictCase struct {
	name        string
	rule        string
	arrange     func(d *database)
	state       State
	cause, next string
}

var verdictCases = []verdictCase{
	{"nothing has ever run", "", func(d *database) {}, StateNoRelay, "no relay: no relay has ever worked on this database", "outbox relay"},
	{"messages wait for the first relay", "", func(d *database) { d.Write(3) }, StateNoRelay,
		"no relay has ever worked on this database, and 3 messages wait in outbox.messages", "outbox relay"},
	{"a message waits beside a stored inbox", "", func(d *database) { d.Cursor("inbox:payments", "1 minute"); d.Write(1) }, StateNoRelay,
		", and 1 message waits in outbox.messages", "outbox relay"},
	{"all is delivered", "", func(d *database) { d.Cursor("kafka", "1 minute") }, StateIdle, "", ""},
	{"messages come", "", func(d *database) { d.Cursor("kafka", "1 minute"); d.Write(3) }, StateFlowing, "", ""},
	{"the relay died", "no relay has the lease", func(d *database) { d.Cursor("kafka", "-1 minute") },
		StateNoRelay, "no relay for 1m: kafka: no live relay: relay-1 vanished 1m", "outbox relay"},
	{"the owner is seconds late", "no relay has the lease", func(d *database) {
		d.Cursor("kafka", "-3 seconds")
		d.relays("relay-1")
		d.MustExec(`UPDATE outbox.relays SET heartbeat_at = now() - interval '4 seconds'`)
	}, StateNoRelay, "relay-1 vanished ", "if relay-1 still runs, it does not reach the database: see its log; " +
		"otherwise start it again: outbox relay"},
	{"the lease ended while the look began", "no relay has the lease", func(d *database) {
		d.Cursor("kafka", "-1 minute")
		d.MustExec(`UPDATE outbox.cursors SET lease_until = clock_timestamp() + interval '4 seconds', lease = '1 microsecond'`)
	}, StateNoRelay, "relay-1 vanished 0s ago", "outbox relay"},
	{"the owner runs, but can't take the lease again", "no relay has the lease", func(d *database) {
		d.Cursor("kafka", "-3 seconds")
		d.relays("relay-1")
	}, StateNoRelay, "s ago; relay-1 run without", "the log of relay-1 says why, or add the " +
		"destination to the " +
		"configuration of a relay that runs"},
	{"another destination's relay lives", "no relay has the lease", func(d *database) {
		d.Cursor("kafka", "-59 minutes")
		d.relays("relay-1", "relay-2")
		d.MustExec(`UPDATE outbox.relays SET heartbeat_at = now() - interval '60 minutes' WHERE name = 'relay-1'`)
	}, StateNoRelay, "; relay-2 run without", "otherwise start it again, or add the destination to the configuration of a " +
		"relay that runs: outbox relay"},
	{"nobody has delivered for hours", "no relay has the lease", func(d *database) {
		d.Cursor("kafka", "-61 minutes")
		d.relays("relay-2")
	}, StateNoRelay, "relay-2 run without", "give up what it has not delivered: outbox destinations drop kafka"},
	{"the broker is down", "the broker does not answer", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`UPDATE outbox.cursors SET state = 'stalled', state_since = now() - interval '5 minutes', last_error = 'connection refused'`)
	}, StateStalled, "stalled for 5m: kafka: the broker does not answer: connection refused", "check the broker"},
	{"a relay remembers all that it may", "too much is set aside", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`UPDATE outbox.cursors SET state = 'full', state_since = now() - interval '5 minutes', last_error = '7 keys have messages'`)
	}, StateStalled, "stalled for 5m: kafka: 7 keys have messages", "outbox holds"},
	{"a topic is missing", "a topic takes nothing", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Held("kafka", "k", 7, "2000-01-01")
		d.MustExec(`UPDATE outbox.cursors SET state = 'failing', last_error = 'topic "t" doesn''t exist; create it'`)
	}, StateFailing, `kafka: topic "t" doesn't exist; create it`, "delivered by itself"},
	{"the database refuses", "the relay can't work with the database", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`UPDATE outbox.cursors SET state = 'broken', last_error = 'permission denied'`)
	}, StateBroken, "kafka: permission denied", "check the database"},
	{"a right was taken away", "the relay can't work with the database", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`UPDATE outbox.cursors SET state = 'broken', last_error = 'permission denied for table messages (SQLSTATE 42501)'`)
	}, StateBroken, "permission denied", "the relay's role: outbox migrate grants --apply --relay ROLE"},
	{"a relay has another broker", "the relay has another broker", func(d *database) {
		d.Cursor("kafka", "-1 seconds")
		d.MustExec(`UPDATE outbox.cursors SET state = 'broken', state_since = now() - interval '5 minutes', last_error = 'another one'`)
		d.Refused("kafka")
	}, StateBroken, "broken for 5m: kafka: relay relay-2 has another broker than this destination and sends nothing to it: " +
		"it has cluster b, and the destination is delivered to cluster a = host a:1, as relay relay-1 recorded",
		"only if the destination is to move to that broker: outbox destinations move kafka"},
	{"a relay has had another broker", "no relay has the lease", func(d *database) {
		d.Cursor("kafka", "-1 minute")
		d.Refused("kafka")
		d.MustExec(`UPDATE outbox.brokers SET refused_at = now() - interval '1 minute'`)
	}, StateNoRelay, "relay-1 vanished 1m", "outbox relay"},
	{"a relay beside the one that delivers has another broker", "a relay beside has another broker", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Refused("kafka")
	}, StateAtRisk, "relay relay-2 has another broker", "outbox destinations move kafka"},
	{"the disk is full", "the relay can't work with the database", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`UPDATE outbox.cursors SET state = 'broken', last_error = 'could not extend file (SQLSTATE 53100)'`)
	}, StateBroken, "could not extend", "make room"},
	{"somebody dropped the slot", "the replication slot is gone", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`INSERT INTO outbox.slots (destination, slot, publication, position) VALUES ('kafka', 'outbox_kafka', 'outbox', '0/1')`)
	}, StateAtRisk, "kafka: its replication slot outbox_kafka is not there any more", "makes another one"},
	{"messages fail again and again", "messages are refused again and again", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Write(1)
		d.Held("kafka", "k", 7, "2100-01-01")
		d.MustExec(`UPDATE outbox.holds SET held_at = now() - interval '31 seconds'`)
	}, StateFailing, "s: kafka: 1 held in 1 lane, tried again; last error: refused: too large", "cure the cause"},
	{"the relay gave up", "the relay gave up", func(d *database) {
		d.Cursor("kafka", "-1 minute")
		d.MustExec(`UPDATE outbox.cursors SET state = 'stopped', last_error = 'message refused', last_error_at = now() - interval '1 hour'`)
	}, StateStopped, "stopped for 1h: kafka: the relay gave up: message refused", "outbox relay"},
	{"a lane is blocked", "lanes wait for an operator", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Held("kafka", "k", 7, "infinity")
	}, StateBlocked, "1 lane is held until an operator acts; last error: refused: too large",
		"outbox dead requeue --blocked --destination kafka"},
	{"messages died", "there are new dead letters", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Dead("kafka", "a", 1, 2, 3)
		d.MustExec(`UPDATE outbox.dead_letters SET dead_at = now() - id * interval '1 hour', error = 'no ' || id`)
		d.MustExec(`UPDATE outbox.dead_letters SET acknowledged_at = now() WHERE id = 3`)
	}, StateDead, "dead for 2h: kafka: 2 new dead letters; last error: no 1", "outbox dead requeue --destination kafka"},
	{"the dead are known", "", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Dead("kafka", "a", 1)
		d.MustExec(`UPDATE outbox.dead_letters SET acknowledged_at = now()`)
	}, StateIdle, "", ""},
	{"a consumer's worker is away", "no relay has the lease", func(d *database) {
		d.Cursor("inbox:it's", "-1 minute")
		d.Dead("inbox:it's", "a", 1)
	}, StateNoRelay, "inbox:it's: no live relay, also dead", "the service that runs its worker"},
	{"somebody has paused a topic", "an operator has paused it", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`INSERT INTO outbox.controls (destination, topic, actor, reason, at) VALUES ('kafka', 'or ders', 'anna', 'migration', now() - interval '5 minutes')`)
	}, StatePaused, `paused for 5m: kafka: topic "or ders" paused by anna until it is ended (migration)`, "outbox resume kafka --topic 'or ders'"},
	{"what is paused is no lag", "an operator has paused it", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour'); INSERT INTO outbox.controls (destination, actor) VALUES ('kafka', 'anna')`)
	}, StatePaused, "kafka: paused by anna until it is ended", "outbox resume kafka"},
	{"a pause that has no end is late", "a pause keeps messages for longer than they may wait", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour');
			INSERT INTO outbox.controls (destination, actor, at) VALUES ('kafka', 'anna', now() - interval '1 minute')`)
	}, StatePaused, "kafka: paused by anna until it is ended, also lagging", "outbox resume kafka"},
	{"a pause with an end is accepted until then", "", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour');
			INSERT INTO outbox.controls (destination, actor, at, until) VALUES ('kafka', 'anna', now() - interval '1 day', now() + interval '1 hour')`)
	}, StatePaused, "kafka: paused by anna until ", "outbox resume kafka"},
	{"it is throttled", "messages wait for longer than they may", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour');
			INSERT INTO outbox.controls (destination, actor, rate, reason) VALUES ('kafka', 'anna', 1, 'the receiver is weak')`)
	}, StateLagging, "kafka: throttled to 1/s by anna until it is ended (the receiver is weak): 1 pending",
		"outbox throttle kafka --rate 0"},
	{"its configuration is slow", "messages wait for longer than they may", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour'); UPDATE outbox.cursors SET settings = '{"rate": 2}'`)
	}, StateLagging, "configuration allows 2/s (delivery.rate)", "raise delivery.rate"},
	{"what it doesn't select is not pending", "", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Selects("kafka", "u")
		d.MustExec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour')`)
	}, StateIdle, "", ""},
	{"what it selects is", "messages wait for longer than they may", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Selects("kafka", "t")
		d.MustExec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('u', now() - interval '2 hours'), ('t', now() - interval '1 hour')`)
	}, StateLagging, "1 pending and 0 held, the oldest for 1h", ""},
	{"nobody selects a message", "", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Selects("kafka", "orders")
		d.Unselected("ordres")
	}, StateAtRisk, `2 messages are of topic "ordres", which no destination selects`, "or drop it by a rule"},
	{"another relay selects it", "", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Cursor("nats", "1 minute")
		d.Selects("kafka", "orders")
		d.Selects("nats", "inv*")
		d.Unselected("invoices")
	}, StateIdle, "", ""},
	{"a relay that takes all may select it", "", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Cursor("own", "1 minute")
		d.Selects("kafka", "orders")
		d.Unselected("invoices")
	}, StateIdle, "", ""},
	{"the relay that noted it knows that its own filter leaves it out", "", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`UPDATE outbox.cursors SET settings = '{"selects": {"any": [{"header": "region"}]}}'`)
		d.Unselected("invoices")
		d.MustExec(`UPDATE outbox.unselected SET relay = 'relay-1'`)
	}, StateAtRisk, "which no destination selects", "or drop it by a rule"},
	{"an inbox takes nothing of the outbox", "", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Cursor("inbox:own", "1 minute")
		d.Selects("kafka", "orders")
		d.Unselected("invoices")
	}, StateAtRisk, "which no destination selects", "or drop it by a rule"},
	{"rows of a table wait", "", func(d *database) { d.Table(""); d.Rows("now()", "NULL", 3) }, StateFlowing, "3 pending", ""},
	{"rows of a table wait for long", "messages wait for longer than they may", func(d *database) {
		d.Table("")
		d.Rows("now() - interval '1 hour'", "NULL", 3)
	}, StateLagging, "shop: 3 pending and 0 held, the oldest for 1h", ""},
	{"the relay of a table alone knows what it blocks", "lanes wait for an operator", func(d *database) {
		d.Table(`{"held": 3, "lanes": 1, "blocked": 1, "last_error": "a \"no\""}`)
		d.Rows("now()", "NULL", 3)
	}, StateBlocked, "shop: 1 lane is held until an operator acts; last error: a \"no\"", "start the relay again"},
	{"the relay of a table alone knows what fails", "messages are refused again and again", func(d *database) {
		d.Table(`{"held": 3, "lanes": 1, "failing_since": "2020-01-01T00:00:00Z", "last_error": "no"}`)
		d.Rows("now()", "NULL", 3)
	}, StateFailing, "shop: 3 held in 1 lane, tried again; last error: no", ""},
	{"no row of a table ever waits", "rows were delivered that no relay has handled", func(d *database) {
		d.Table("")
		d.Rows("now() - interval '1 hour'", "now()", 3)
	}, StateAtRisk, "shop: 3 of the newest rows of table shop, the oldest from 1h ago, do not wait", "outbox doctor --table shop"},
	{"all rows of a table are delivered", "", func(d *database) {
		d.Table(`{"handled_at": "` + time.Now().UTC().Format(time.RFC3339) + `"}`)
		d.Rows("now() - interval '1 hour'", "now()", 3)
	}, StateIdle, "", ""},
	{"rows of a table are older than its relay", "", func(d *database) {
		d.Table("")
		d.Rows("now() - interval '3 hours'", "now()", 3)
	}, StateIdle, "", ""},
	{"a table can't be read", "a table can't be counted", func(d *database) {
		d.Table("")
		d.MustExec(`ALTER TABLE shop RENAME done_at TO sent_at`)
	}, StateUnknown, "shop: it isn't known what waits in table shop", "repair"},
	{"a topic that is paused is no lag", "an operator has paused it", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Held("kafka", "k", 7, "2100-01-01")
		d.Held("kafka", "k", 8, "")
		d.MustExec(`UPDATE outbox.holds SET created_at = now() - interval '1 hour', error = NULL; INSERT INTO outbox.controls (destination, topic, actor) VALUES ('kafka', 't', 'anna')`)
	}, StatePaused, `kafka: topic "t" paused by anna until it is ended`, "outbox resume kafka --topic t"},
	{"a pause is over", "", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`INSERT INTO outbox.controls (destination, actor, until) VALUES ('kafka', 'anna', now())`)
	}, StateIdle, "", ""},
	{"a lane waits for a retry", "", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Held("kafka", "k", 7, "2100-01-01")
	}, StateIdle, "1 held in 1 lane", ""},
	{"it is far behind", "messages wait for longer than they may", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour')`)
	}, StateLagging, "lagging for 59m30s: kafka: 1 pending and 0 held, the oldest for 1h; it may be 30s", "outbox_publish_seconds"},
	{"it may be far behind", "", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour'); UPDATE outbox.cursors SET lag_objective = '61 minutes'`)
	}, StateFlowing, "1 pending", ""},
	{"it may be as far behind as it likes", "", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour'); UPDATE outbox.cursors SET lag_objective = '0'`)
	}, StateFlowing, "1 pending", ""},
	{"a blocked lane is no lag", "lanes wait for an operator", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Held("kafka", "k", 7, "infinity")
		d.MustExec(`UPDATE outbox.holds SET created_at = now() - interval '1 hour', held_at = now() - interval '1 hour'`)
	}, StateBlocked, "blocked for 1h: kafka: 1 lane", ""},
	{"what does not flow is late", "no relay has the lease", func(d *database) {
		d.Cursor("kafka", "-1 minute")
		d.MustExec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour')`)
	}, StateNoRelay, "relay-1 vanished 1m ago", ""},
	{"the relay was stopped", "no relay has the lease", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.MustExec(`UPDATE outbox.cursors SET lease_until = '-infinity'`)
	}, StateNoRelay, "relay-1 ended", "outbox relay"},
	{"the clock was set back while the relay died", "no relay has the lease", func(d *database) {
		d.Cursor("kafka", "3 hours")
	}, StateNoRelay, "vanished, and then the clock was set back", "outbox relay"},
	{"a segment is detached", "the tables are not those of the migrations", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Write(1)
		d.MustExec(`ALTER TABLE outbox.messages DETACH PARTITION outbox.messages_3`)
	}, StateBroken, "ATTACH PARTITION outbox.messages_3 FOR VALUES IN (3)", "outbox relay"},
	{"a dump was restored", "the cursor is from another cluster", func(d *database) {
		d.Cursor("kafka", "-1 minute")
		d.MustExec(`UPDATE outbox.cursors SET system_identifier = 1`)
	}, StateBroken, "from another cluster", "outbox rebase --destination kafka"},
	{"the cursor is ahead of the cluster", "the cursor is from another cluster", func(d *database) {
		d.Cursor("kafka", "-1 minute")
		d.MustExec(`UPDATE outbox.cursors SET prev = '1000000:1000000:'`)
	}, StateBroken, "from another cluster", "outbox rebase --destination kafka"},
	{"what was set aside has outlived its cursor", "there is no cursor", func(d *database) {
		d.Cursor("kafka", "1 minute")
		d.Held("gone", "k", 7, "2100-01-01")
	}, StateNoRelay, "gone: it has no cursor", "outbox destinations ls"},
	{"one of two destinations is bad", "no relay has the lease", func(d *database) {
		d.Cursor("a", "1 minute")
		d.Cursor("b", "-1 minute")
		d.Cursor("c", "1 minute")
	}, StateNoRelay, "b: no live relay", ""},
}

// liveCase is what a relay knows besides, of the destination kafka, which no other relay works on and of which all is
// delivered.
var liveCases = []struct {
	name  string
	rule  string
	state string // the relay's
	cause string
	age   time.Duration
	err   error

	want     State
	sentence string
}{
	{"a broker went away just now", "the broker does not answer", "stalled", "refused", time.Second, nil, StateStalled,
		"kafka: the broker does not answer: refused"},
	{"the database went away just now", "the relay can't work with the database", "broken", "reset", time.Second,
		errors.New("reset"), StateBroken, "kafka: reset"},
	{"a look failed", "", "flowing", "", 14 * time.Second, errors.New("timeout"), StateIdle, "idle"},
	{"no look succeeds", "no look at the database succeeds", "flowing", "", 20 * time.Second, errors.New("timeout"), StateUnknown,
		"kafka: the database has not been read for 20s: timeout"},
	{"the database hangs while the relay stands by", "no look at the database succeeds", "waiting", "", 20 * time.Second, nil, StateBroken,
		"kafka: the database has not been read for 20s"},
	{"another relay delivers", "", "waiting", "", time.Second, nil, StateIdle, "idle"},
	{"the relay gave up just now", "the relay gave up", "stopped", "too large", time.Second, nil, StateStopped,
		"kafka: the relay gave up: too large"},
}

func TestARelayKnowsOfItsOwnWorkBeforeTheDatabaseAndWithoutIt(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	r := d.status()
	for _, c := range liveCases {
		live := []Live{{Destination: "kafka", State: c.state, Cause: c.cause}}
		now := r.Amended(live, c.age, c.err)
		if v := now.Verdict; v.State != c.want || !strings.HasSuffix(v.Sentence(), c.sentence) {
			t.Errorf("%s: %q", c.name, v)
		}
		if r.Verdict.State != StateIdle || r.Destinations[0].Groups[0].State != "flowing" {
			t.Fatalf("%s: the report itself is changed: %+v", c.name, r)
		}
		if now.judge(allRules.without(c.rule)); c.rule != "" && now.Verdict.State == c.want {
			t.Errorf("%s: without the rule that %s it is still %q", c.name, c.rule, now.Verdict)
		}
	}
	for state, want := range map[string]State{"starting": StateBroken, "flowing": StateUnknown} {
		if v := (&Report{}).Amended([]Live{{Destination: "kafka", State: state}}, 0, nil).Verdict; v.State != want ||
			!strings.Contains(v.Cause, "has not been read yet") {
			t.Errorf("%s, before the first look: %q", state, v)
		}
	}
}

func TestTheVerdictNamesStateCauseAndNextStep(t *testing.T) {
	t.Parallel()
	for _, c := range slices.Concat(verdictCases, causeCases) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := setup(t)
			c.arrange(d)
			r := d.status()
			v := r.Verdict
			if v.State != c.state || !strings.Contains(v.Sentence(), c.cause) || !strings.Contains(v.Remedy(), c.next) {
				t.Errorf("got %q", v)
			}
			if len(v.Also) > 0 && !strings.Contains(c.cause, "also") {
				t.Errorf("it names more: %q", v)
			}
			if strings.Contains(v.Remedy(), "drop") && !strings.Contains(c.next, "drop") {
				t.Errorf("it proposes to drop: %q", v)
			}
			if v.State.OK() && v.Remedy() != "" {
				t.Errorf("%s asks for an action: %q", v.State, v.Remedy())
			}
			if c.rule == "" {
				return
			}
			if r.judge(allRules.without(c.rule)); strings.Contains(r.Verdict.Sentence(), v.Cause) &&
				len(r.Verdict.Also) == len(v.Also) {
				t.Errorf("without the rule that %s it is still %q", c.rule, r.Verdict)
			}
		})
	}
}

func (r rules) without(name string) rules {
	return rules{
		slices.DeleteFunc(slices.Clone(r.group), func(g groupRule) bool { return g.name == name }),
		slices.DeleteFunc(slices.Clone(r.destination), func(d destinationRule) bool { return d.name == name }),
	}
}

func TestEachRuleOfTheVerdictHasACaseThatNeedsIt(t *testing.T) {
	t.Parallel()
	cases := slices.Concat(verdictCases, causeCases)
	var names []string
	for _, rule := range allRules.group {
		names = append(names, rule.name)
	}
	for _, rule := range allRules.destination {
		names = append(names, rule.name)
	}
	for _, name := range names {
		elsewhere := slices.Contains([]string{"no look at the database succeeds", "the server keeps much of the log",
			"commits wait for a standby", "a standby is away that the log waits for"}, name)
		if !elsewhere && !slices.ContainsFunc(cases, func(c verdictCase) bool { return c.rule == name }) {
			t.Errorf("no case needs the rule %q", name)
		}
	}
	for _, c := range cases {
		if c.rule != "" && !slices.Contains(names, c.rule) {
			t.Errorf("%s: there is no rule %q", c.name, c.rule)
		}
	}
}

func TestTheWorstStateHidesNoOther(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for _, name := range []string{"a", "b", "c"} {
		d.Cursor(name, "1 minute")
	}
	d.MustExec(`UPDATE outbox.cursors SET state = 'stalled', last_error = 'refused' WHERE destination = 'b'`)
	d.Held("b", "k", 1, "infinity")
	d.Held("c", "k", 2, "infinity")
	r := d.status()
	if got := r.Verdict.Sentence(); !strings.HasSuffix(got, ": b: the broker does not answer: refused, also blocked (c)") {
		t.Errorf("the verdict is %q", got)
	}
	if got := r.Destinations[1].Verdict.Words(); got != "stalled, blocked" {
		t.Errorf("the states of b are %q", got)
	}
}

func TestAPauseThatWasForgottenIsAsUrgentAsAnOutage(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.MustExec(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour');
		INSERT INTO outbox.controls (destination, actor, at) VALUES ('kafka', 'anna', now() - interval '59 minutes')`)
	if v := d.status().Verdict; !v.Delivers() || v.Result() != ResultWarning {
		t.Errorf("within an hour: %v, %q", v.Result(), v)
	}
	d.MustExec(`UPDATE outbox.controls SET at = now() - interval '61 minutes'`)
	r := d.status()
	if c := r.Check("", Limits{}); r.Verdict.State != StatePaused || r.Verdict.Delivers() || c.Result != ResultCritical {
		t.Errorf("after an hour: %v, %q", c.Result, r.Verdict)
	}
	d.MustExec(`UPDATE outbox.controls SET until = now() + interval '1 hour'`)
	if v := d.status().Verdict; !v.Delivers() {
		t.Errorf("with an end: %q", v)
	}
}

func TestTheOldestMessageIsPendingHeldOrBlocked(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	age := func(sql string) {
		t.Helper()
		d.MustExec(sql)
		r := d.status()
		if got := r.At.Sub(r.Destinations[0].Oldest).Round(time.Hour); got != time.Hour {
			t.Errorf("after %s the oldest has waited for %v", sql, got)
		}
	}
	const held = `INSERT INTO outbox.holds (destination, lane, id, message_id, topic, shard, created_at, retry_at, deliver_at, error)
		VALUES ('kafka', 'k', 1, gen_random_uuid(), 't', 1, now() - interval '1 hour', `
	age(held + `'infinity', NULL, 'no')`)
	age(`DELETE FROM outbox.holds; ` + held + `'2100-01-01', NULL, 'no')`)
	age(`UPDATE outbox.holds SET created_at = now() - interval '2 hours', deliver_at = now() - interval '1 hour'`)
	d.MustExec(`UPDATE outbox.holds SET error = NULL, deliver_at = retry_at`)
	if r := d.status(); !r.Destinations[0].Oldest.IsZero() {
		t.Errorf("a message for later is the oldest: %v", r.Destinations[0].Oldest)
	}
	age(`INSERT INTO outbox.messages (topic, created_at) VALUES ('t', now() - interval '1 hour')`)
}
