package find

import (
	"slices"
	"testing"
)

func TestChangesInPayloadsOfJSONAreNamedByTheirPlace(t *testing.T) {
	t.Parallel()
	d := DeadLetter{Topic: "t", Payload: []byte(`{"a": {"b": [1, 3]}, "d": null}`), Original: &Original{Topic: "t", Payload: []byte(`{"a": {"b": [1, 2], "c": "x"}}`)}}
	want := []Change{{"payload.a.b[1]", "2", "3"}, {"payload.a.c", "x", ""}, {"payload.d", "", "null"}}
	if got := d.Changes(); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
