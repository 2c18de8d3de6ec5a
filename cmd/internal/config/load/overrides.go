package load

import (
	"cmp"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

var brackets = regexp.MustCompile(`\[(\d+)\]`)

// overrides applies values that are addressed by path.
func (l *loader) overrides(values map[string]string) {
	paths := slices.SortedFunc(maps.Keys(values), comparePaths)
	for _, path := range paths {
		l.override(path, values[path])
	}
}

// comparePaths puts element 2 before element 10, so that elements can be added.
func comparePaths(a, b string) int {
	return slices.CompareFunc(segments(a), segments(b), func(a, b string) int {
		m, errA := strconv.Atoi(a)
		n, errB := strconv.Atoi(b)
		if errA == nil && errB == nil {
			return cmp.Compare(m, n)
		}
		return cmp.Compare(a, b)
	})
}

func segments(path string) []string {
	return strings.Split(brackets.ReplaceAllString(path, ".$1"), ".")
}

func (l *loader) override(given, text string) {
	v, path := l.config, ""
	at := findings.Origin{Layer: findings.FromFlag, Name: given}
	for _, name := range segments(given) {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				p := reflect.New(v.Type().Elem())
				p.Elem().Set(fields.New(v.Type().Elem()))
				v.Set(p)
				l.Origins[path] = at
			}
			v = v.Elem()
		}
		switch {
		case v.Kind() == reflect.Struct:
			field, found := fields.ByKey(v.Type(), name)
			if !found {
				l.Fault(at, given, "%s", unknown(v.Type(), name))
				return
			}
			v, path = v.FieldByIndex(field.Index), fields.Join(path, name)
		case v.Kind() == reflect.Slice:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i > v.Len() {
				l.Fault(at, given, "%q is not an index of %s, which has %d; the next is %d", name, path, v.Len(), v.Len())
				return
			}
			path = fields.Element(path, i)
			if i == v.Len() {
				v.Set(reflect.Append(v, fields.New(v.Type().Elem())))
				l.Origins[path] = at
			}
			v = v.Index(i)
		default:
			l.Fault(at, given, "%s is a single value and has no %q", path, name)
			return
		}
	}
	switch {
	case scalar.Is(v.Type()):
		l.set(v, text, path, at)
	case v.Kind() == reflect.Slice && scalar.Is(v.Type().Elem()):
		l.list(v, text, path, at)
	default:
		l.yaml(text, v, path, at)
	}
}
