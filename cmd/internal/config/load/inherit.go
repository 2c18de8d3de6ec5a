package load

import (
	"reflect"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

// inheritance gives each database, and each source of databases, what the top level says and it doesn't.
func (l *loader) inheritance(c *config.Config) {
	general := reflect.ValueOf(c).Elem()
	for i := range c.Databases {
		l.inheritAll(reflect.ValueOf(&c.Databases[i]).Elem(), general, fields.Element("databases", i), "")
	}
	for i := range c.Discover {
		l.inheritAll(reflect.ValueOf(&c.Discover[i]).Elem(), general, fields.Element("discover", i), "")
	}
}

// inheritAll gives own, at the path at, what general, at the path from, says of the work with a database.
func (l *loader) inheritAll(own, general reflect.Value, at, from string) {
	for _, name := range []string{"retention", "dormant", "dormant_poll", "notify", "quota", "destinations"} {
		f, _ := fields.ByKey(own.Type(), name)
		g, _ := fields.ByKey(general.Type(), name)
		l.inherit(own.FieldByIndex(f.Index), general.FieldByIndex(g.Index), fields.Join(at, name), fields.Join(from, name))
	}
}

// inherit copies from general, at the path from, every setting that no layer gave to own, at the path at, with its
// origin.
func (l *loader) inherit(own, general reflect.Value, at, from string) {
	_, given := l.Origins[at]
	switch t := own.Type(); {
	case l.Rejected[at]:
	case scalar.Is(t):
		if !given {
			own.Set(general)
			l.inherited(at, from)
		}
	case t.Kind() == reflect.Pointer:
		switch {
		case general.IsNil():
		case own.IsNil():
			own.Set(clone(general))
			l.inherited(at, from)
		default:
			l.inherit(own.Elem(), general.Elem(), at, from)
		}
	case t.Kind() == reflect.Slice:
		if !given && own.Len() == 0 {
			own.Set(clone(general))
			l.inherited(at, from)
			return
		}
		if list, named := own.Interface().([]config.Destination); named {
			for i, d := range list {
				same := func(g config.Destination) bool { return g.Name == d.Name && d.Name != "" }
				if n := slices.IndexFunc(general.Interface().([]config.Destination), same); n >= 0 {
					l.inherit(own.Index(i), general.Index(n), fields.Element(at, i), fields.Element(from, n))
				}
			}
		}
	default:
		chosen := t == reflect.TypeFor[brokers.Broker]() && !own.IsZero()
		for _, f := range reflect.VisibleFields(t) {
			v := own.FieldByIndex(f.Index)
			if chosen && v.IsZero() {
				continue // a broker of its own, in place of the other
			}
			if twin, found := strings.CutSuffix(fields.Key(f), "_file"); found {
				_, has := fields.ByKey(t, twin)
				if _, known := l.Origins[fields.Join(at, twin)]; has && known &&
					l.Origins[fields.Join(at, twin)].String() != l.Origins[fields.Join(from, twin)].String() {
					continue // a secret of its own, in place of the file
				}
			}
			l.inherit(v, general.FieldByIndex(f.Index), fields.Join(at, fields.Key(f)), fields.Join(from, fields.Key(f)))
		}
	}
}

// inherited notes that a setting, and what is in it, is another's.
func (l *loader) inherited(at, from string) {
	inside := func(path string) bool {
		rest, found := strings.CutPrefix(path, from)
		return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	for path, o := range l.Origins {
		if inside(path) {
			l.Origins[at+path[len(from):]] = o
		}
	}
	for path := range l.Rejected {
		if inside(path) {
			l.Rejected[at+path[len(from):]] = true
		}
	}
}

// clone copies a value with all that it points to, so that a change of one doesn't reach the other.
func clone(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	switch {
	case scalar.Is(v.Type()):
	case v.Kind() == reflect.Pointer && !v.IsNil():
		c.Set(reflect.New(v.Type().Elem()))
		c.Elem().Set(clone(v.Elem()))
	case v.Kind() == reflect.Slice && !v.IsNil():
		c.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			c.Index(i).Set(clone(v.Index(i)))
		}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			c.Field(i).Set(clone(v.Field(i)))
		}
	}
	return c
}
