package fields_test

import (
	"reflect"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

type (
	kind   string
	window struct{ First, Last int }
	entry  struct {
		Name string
		Size int64
	}
	client struct {
		Address, Token string
		Kind           kind
		Bytes          int
		Window         window
		Tags           []string
		Entries        []entry
		Create         *entry
		Keys           []int64
	}
	section struct {
		Host    string `field:"Address"`
		Token   scalar.Secret
		Kind    string
		Bytes   scalar.Size
		Window  struct{ First, Last, After int }
		Tags    []string
		Entries []struct {
			Name string
			Size int
		}
		Create bool
		Keys   []string
		Other  string
	}
)

func TestAssignGivesALibraryWhatASectionSays(t *testing.T) {
	t.Parallel()
	s := section{Host: "a:1", Token: scalar.NewSecret("t"), Kind: "k", Bytes: 5, Tags: []string{"x"}, Create: true, Keys: []string{"1"}}
	s.Window.Last = 9
	s.Entries = append(s.Entries, struct {
		Name string
		Size int
	}{"e", 3})
	got := client{Address: "before", Bytes: 1, Window: window{First: 7, Last: 8}}
	fields.Assign(&got, s)
	want := client{Address: "a:1", Token: "t", Kind: "k", Bytes: 5, Window: window{First: 7, Last: 9}, Tags: []string{"x"},
		Entries: []entry{{"e", 3}}} // what has another type there is left
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestAdoptGivesASectionTheDefaultsOfALibrary(t *testing.T) {
	t.Parallel()
	var s section
	fields.Adopt(&s, client{Address: "a:1", Token: "t", Kind: "k", Bytes: 5, Window: window{Last: 9}, Tags: []string{"x"}})
	if s.Host != "a:1" || s.Kind != "k" || s.Bytes != 5 || s.Window.Last != 9 {
		t.Errorf("got %+v", s)
	}
	if !s.Token.Empty() || s.Tags != nil {
		t.Errorf("%+v: more than plain scalars", s)
	}
}
