package find

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
)

func TestSelectionsSelect(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	d.Dead("kafka", "a", 1, 2)
	d.Dead("nats", "a", 2)
	d.Dead("nats", "b", 3)
	d.MustExec(`UPDATE outbox.dead_letters SET topic = 'carts', reason = 'refused' WHERE id = 3`)
	d.MustExec(`UPDATE outbox.dead_letters SET dead_at = '2020-01-01' WHERE id = 1`)
	second, _ := outbox.ParseID("00000000-0000-7000-8000-000000000002")
	for _, c := range []struct {
		s    Selection
		want string
	}{
		{Selection{}, "kafka 1, kafka 2, nats 2, nats 3"},
		{Selection{Destination: "nats"}, "nats 2, nats 3"},
		{Selection{MessageIDs: []outbox.ID{second}}, "kafka 2, nats 2"},
		{Selection{Positions: []int64{1, 3}}, "kafka 1, nats 3"},
		{Selection{Topic: "carts"}, "nats 3"},
		{Selection{Reason: "exhausted", Destination: "nats"}, "nats 2"},
		{Selection{Key: "b"}, "nats 3"},
		{Selection{Before: time.Now().AddDate(-1, 0, 0)}, "kafka 1"},
		{Selection{Blocked: true}, ""},
	} {
		list, err := DeadLetters(t.Context(), d.Conn, c.s, Page{})
		if err != nil {
			t.Fatalf("%+v: %v", c.s, err)
		}
		var got []string
		for _, l := range list {
			got = append(got, fmt.Sprint(l.Destination, " ", l.Position))
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%+v selects %q, want %s", c.s, got, c.want)
		}
	}
}

func TestPagesFollowEachOther(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Dead("kafka", "a", 1, 2, 3)
	d.Dead("nats", "a", 1, 2)
	var got []string
	page := Page{Limit: 2}
	for {
		list, err := DeadLetters(t.Context(), d.Conn, Selection{}, page)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			break
		}
		for _, l := range list {
			got = append(got, fmt.Sprint(l.Destination, l.Position))
			page.AfterDestination, page.AfterPosition, page.AfterMessageID = l.Destination, l.Position, l.MessageID
		}
	}
	if want := []string{"kafka1", "kafka2", "kafka3", "nats1", "nats2"}; !slices.Equal(got, want) {
		t.Errorf("pages are %q", got)
	}
}

func TestPayloadsAreReadOnlyWhenAskedFor(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Dead("kafka", "a", 1)
	for _, payload := range []bool{false, true} {
		list, err := DeadLetters(t.Context(), d.Conn, Selection{}, Page{Payload: payload})
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		if got := string(list[0].Payload); got != map[bool]string{true: "secret"}[payload] {
			t.Errorf("payload %v: %q", payload, got)
		}
		var headers map[string]string
		if err := json.Unmarshal(list[0].Headers, &headers); err != nil || headers["a"] != "b" {
			t.Errorf("headers are %s", list[0].Headers)
		}
	}
}
