package find

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
