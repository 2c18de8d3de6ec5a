package value_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/value"
)

type record struct {
	Kind  string `enum:"json,text"`
	Batch int    `min:"1" max:"10"`
	Small int8
	Pause time.Duration `min:"5s"`
	On    bool
	Since time.Time
}

func TestATextBecomesTheValueOfAFieldThatItsTagsBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ field, text, want string }{
		{"Kind", "json", ""},
		{"Kind", "jsno", `"jsno" is not one of json, text; did you mean "json"?`},
		{"Kind", "", `"" is not one of json, text`},
		{"Batch", "10", ""},
		{"Batch", "0", "0 is too small; the least is 1"},
		{"Batch", "11", "11 is too large; the most is 10"},
		{"Batch", "ten", `"ten" is not a whole number`},
		{"Small", "128", `"128" is not a whole number`},
		{"Pause", "5s", ""},
		{"Pause", "4s", "4s is too small; the least is 5s"},
		{"Pause", "5", `"5" has no unit; write 5s or 5ms`},
		{"Pause", "soon", `"soon" is not a duration such as 5s, 100ms or 1m30s`},
		{"On", "true", ""},
		{"On", "yes", `"yes" is neither true nor false`},
		{"Since", "2026-05-01T12:00:00Z", ""},
	} {
		var r record
		f, _ := reflect.TypeFor[record]().FieldByName(c.field)
		v := reflect.ValueOf(&r).Elem().FieldByIndex(f.Index)
		err := value.Set(v, c.text)
		if err == nil {
			err = value.BoundsOf(f.Tag).Check(v)
		}
		if got := text(err); got != c.want {
			t.Errorf("%s from %q: %s, want %s", c.field, c.text, got, c.want)
		}
		if c.want == "" && v.IsZero() {
			t.Errorf("%s from %q: nothing was set", c.field, c.text)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
