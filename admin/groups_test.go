package admin

import (
	"fmt"
	"slices"
	"testing"
)

// Receivers tell the cause in a member of JSON, or by a status; ids in them are no cause.
func TestDeadLettersOfTwoCausesAreTwoGroups(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("hooks", "1 minute")
	groups := [][]string{
		{`the receiver answers 422: {"error":"card expired","order":17}`, `the receiver answers 422: {"error":"card expired","order":18}`},
		{`the receiver answers 422: {"error": "address unknown","order":17}`},
		{`the receiver answers 422: {"message":"order 17 of acme is closed"}`, `the receiver answers 422: {"message":"order 18 of acme is closed"}`},
		{`the receiver answers 400: {"error":"card expired","order":17}`},
		{`topic "orders-eu" has no key "alice"`, `topic "orders-us" has no key "bob"`},
		{`value of 400 B is larger than 10`, `value of 12345 B is larger than 99`},
		{`http: h answered 422 Unprocessable Entity: {"code":17,"order":1}`, `http: h answered 422 Unprocessable Entity: {"code":17,"order":2}`},
		{`http: h answered 422 Unprocessable Entity: {"code":18,"order":1}`},
		{`said "{\"error\":\"no card\",\"order\":1}"`, `said "{\"error\":\"no card\",\"order\":2}"`},
		{`said "{\"error\":\"no name\",\"order\":1}"`},
		{`no token a1b2c3`, `no token f00ba4`},
		{`column 'x' is missing (SQLSTATE code 42703)`, `column 'y' is missing (SQLSTATE code 42703)`},
		{`column 'x' is missing (SQLSTATE code 42P01)`},
	}
	n := 0
	for _, errors := range groups {
		for _, text := range errors {
			n++
			d.MustExec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, shard, created_at, attempts, reason, error)
				VALUES ('hooks', 'k', $1, gen_random_uuid(), 't', 0, now(), 1, 'refused', $2)`, n, text)
		}
	}
	found, err := GroupDead(t.Context(), d.Conn, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, g := range found.Groups {
		got = append(got, fmt.Sprint(g.Messages))
	}
	for _, errors := range groups {
		want = append(want, fmt.Sprint(len(errors)))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%v messages in groups, want %v: %+v", got, want, found.Groups)
	}
}

func TestDeadLettersOfOneCauseAreAGroup(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.MustExec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, shard, created_at, attempts, reason, error)
		SELECT 'kafka', 'k', n, gen_random_uuid(), 't', 0, now(), 1, 'refused',
		       CASE WHEN n <= 7 THEN format('value of %s B in "%s" is larger than 10, see 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398%s', 100 * n, md5(n::text), n)
		            ELSE 'no schema ' || n END
		FROM generate_series(1, 10) n`)
	groups, err := GroupDead(t.Context(), d.Conn, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	if g := groups.Groups; len(g) != 2 || g[0].Messages != 7 || g[0].New != 7 || g[0].Again != 0 || g[1].Messages != 3 ||
		groups.Looked != 10 || groups.Partial {
		t.Fatalf("%+v", groups)
	}
	all := Selection{Fingerprint: groups.Groups[1].Fingerprint}
	if letters, err := DeadLetters(t.Context(), d.Conn, all, Page{}); err != nil || len(letters) != 3 ||
		letters[0].Fingerprint != all.Fingerprint || letters[0].Deaths != 1 {
		t.Errorf("%+v, %v", letters, err)
	}
	o, err := Requeue(t.Context(), d.Conn, all, 0, Action{Actor: "anna"})
	if err != nil || o.Done != 3 {
		t.Fatalf("%+v, %v", o, err)
	}
	if n := d.Int(`SELECT count(*) FROM outbox.holds WHERE deaths = 1 AND topic = 't' AND attempts = 0`); n != 3 {
		t.Errorf("%d messages know that they have died once", n)
	}
	if _, err := GroupDead(t.Context(), d.Conn, Selection{Blocked: true}); err == nil {
		t.Error("blocked messages were grouped")
	}
}

func TestHeldLanesAreListedByPages(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Held("kafka", "a", 1, "infinity")
	for i := range 5 {
		d.Held("kafka", fmt.Sprint("k", i), int64(10+i), "2100-01-01")
	}
	d.Held("nats", "a", 2, "2100-01-01")
	var names []string
	f := HoldFilter{Limit: 3}
	for {
		list, err := Holds(t.Context(), d.Conn, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range list {
			names = append(names, h.Destination+" "+h.Lane)
		}
		if len(list) < f.Limit {
			break
		}
		f.AfterDestination, f.AfterLane = list[len(list)-1].Destination, list[len(list)-1].Lane
	}
	if want := []string{"kafka a", "kafka k0", "kafka k1", "kafka k2", "kafka k3", "kafka k4", "nats a"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
	if list, err := Holds(t.Context(), d.Conn, HoldFilter{Blocked: true}); err != nil || len(list) != 1 ||
		!list[0].Blocked || !list[0].Due.IsZero() || list[0].Messages.N != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := Holds(t.Context(), d.Conn, HoldFilter{Destination: "nats", Key: "a"}); err != nil || len(list) != 1 ||
		list[0].Blocked || list[0].Due.Year() != 2100 {
		t.Errorf("%+v, %v", list, err)
	}
}
