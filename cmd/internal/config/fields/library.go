package fields

import (
	"reflect"
	"strconv"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

// PathOf returns the path of the setting for a field of the library's configuration. If its section has no such
// setting, it looks in the sections around it; rest is the part of the name that is in none.
func PathOf(t reflect.Type, path, field string) (at, rest string) {
	type level struct {
		reflect.Type
		path string
	}
	around := []level{{t, path}}
	for field != "" {
		i := len(around) - 1
		found, after := reflect.StructField{}, ""
		for ; i >= 0 && found.Type == nil; i-- {
			found, after = named(around[i].Type, field)
		}
		if found.Type == nil {
			break
		}
		around = around[:i+2]
		inner := level{found.Type, Join(around[i+1].path, Key(found))}
		if n, end, ok := index(after); ok && inner.Kind() == reflect.Slice {
			inner, after = level{inner.Elem(), Element(inner.path, n)}, end
		}
		if inner.Kind() == reflect.Pointer {
			inner.Type = inner.Elem()
		}
		around, field = append(around, inner), strings.TrimPrefix(after, ".")
		if inner.Kind() != reflect.Struct || scalar.Is(inner.Type) {
			return inner.path, ""
		}
	}
	return around[len(around)-1].path, field
}

// named returns the field of a section whose name is the beginning of name, and the rest of name. The longest match
// counts: PollIdle is Idle of the section Poll.
func named(t reflect.Type, name string) (found reflect.StructField, rest string) {
	longest := 0
	for f := range t.Fields() {
		own := nameOf(f)
		after, ok := strings.CutPrefix(name, own)
		fits := after == "" || after[0] == '.' || after[0] == '['
		if !fits && f.Type.Kind() == reflect.Struct {
			_, fits = f.Type.FieldByName(after)
		}
		if ok && fits && len(own) > longest {
			found, rest, longest = f, after, len(own)
		}
	}
	return found, rest
}

// index takes apart [3].Name.
func index(text string) (n int, rest string, ok bool) {
	inner, ok := strings.CutPrefix(text, "[")
	if !ok {
		return 0, text, false
	}
	number, rest, _ := strings.Cut(inner, "]")
	n, err := strconv.Atoi(number)
	return n, rest, err == nil
}
