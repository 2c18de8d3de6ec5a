package existing

import (
	"slices"
	"testing"

	"github.com/pgoutbox/outbox"
)

func TestOfAHeaderThatIsGivenTwiceTheLastCounts(t *testing.T) {
	t.Parallel()
	all, err := parseHeaders([]byte(`{"a": "x\ny", "b": "c", "a": "x"}`))
	if want := []outbox.Header{{Name: "a", Value: "x"}, {Name: "b", Value: "c"}}; err != nil || !slices.Equal(all, want) {
		t.Errorf("%q, %v", all, err)
	}
	if all, err = parseHeaders([]byte(`{"a": "x", "a": "x\ny"}`)); err == nil {
		t.Errorf("%q", all)
	}
	// A text column takes any text, and json takes one half of a surrogate pair.
	for _, text := range []string{`[1]`, `"a"`, `{"a": tru}`, `{"a": "b"`, `x`, `{"a": "\ud834"}`} {
		if all, err = parseHeaders([]byte(text)); err == nil {
			t.Errorf("%s: %q", text, all)
		}
	}
}
