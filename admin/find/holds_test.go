package find

import (
	"fmt"
	"slices"
	"testing"
)

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
