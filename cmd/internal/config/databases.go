package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// DefaultDatabase is the name of a database that is the only one.
const DefaultDatabase = "default"

// Entry is one of several databases, with what the top level has for a single one. What it doesn't say, the top level
// says.
type Entry struct {
	Name         string        `json:"name" jsonschema:"Name of the database in metrics, logs, commands and the API. Required, but in a file of its own."`
	Database     Database      `json:"database" jsonschema:"The PostgreSQL database that holds the outbox."`
	Retention    Retention     `json:"retention" jsonschema:"Removal of messages that every destination has had."`
	Notify       *Notify       `json:"notify" jsonschema:"Who is told of messages that will not be tried again."`
	Destinations []Destination `json:"destinations" jsonschema:"Where messages go. One with the name of a destination at the top level has its settings, but for those that it gives."`
}

// One is the effective configuration of one database.
type One struct {
	Name string
	Config
}

// All returns what is configured for each database.
func (c Config) All() []One {
	if !c.Several() {
		return []One{{DefaultDatabase, c}}
	}
	var all []One
	for _, e := range c.Databases {
		one := c
		one.Databases = nil
		one.Database, one.Retention, one.Notify, one.Destinations = e.Database, e.Retention, e.Notify, e.Destinations
		all = append(all, One{e.Name, one})
	}
	return all
}

// Several reports whether the configuration has a list of databases, be it of one.
func (c *Config) Several() bool { return len(c.Databases) > 0 || c.DatabasesDir != "" }

// folder reads the databases that are files of their own. Where the variables of the environment count them, they come
// last.
func (l *loader) folder(c *Config, file string) {
	if c.DatabasesDir == "" {
		return
	}
	dir := c.DatabasesDir
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(filepath.Dir(file), dir)
	}
	entries, err := os.ReadDir(dir) // by name
	if err != nil {
		l.fault(l.originOf("databases_dir"), "databases_dir", "can't read the folder %q: %v", dir, cause(err))
		return
	}
	list := reflect.ValueOf(&c.Databases).Elem()
	for _, f := range entries {
		extension := filepath.Ext(f.Name())
		if f.IsDir() || strings.HasPrefix(f.Name(), ".") || extension != ".yaml" && extension != ".yml" {
			continue // a file that an editor keeps, or a README
		}
		i := list.Len()
		list.Set(reflect.Append(list, newDefault(reflect.TypeFor[Entry]())))
		at, path := element("databases", i), filepath.Join(dir, f.Name())
		l.origins[at] = Origin{Layer: FromFile, Name: path}
		l.file(path, list.Index(i), at)
		if e := &c.Databases[i]; e.Name == "" {
			e.Name = strings.TrimSuffix(f.Name(), extension)
			l.origins[at+".name"] = l.origins[at]
		}
	}
	if len(c.Databases) > 0 {
		c.DatabasesDir = "" // they are in the list
	}
	l.check(len(c.Databases) > 0, "databases_dir", "the folder %q has no file *.yaml, and no other database is given", dir)
}

// inheritance gives each database what the top level says and it doesn't.
func (l *loader) inheritance(c *Config) {
	general := reflect.ValueOf(c).Elem()
	for i := range c.Databases {
		own := reflect.ValueOf(&c.Databases[i]).Elem()
		for _, name := range []string{"retention", "notify", "destinations"} {
			f, _ := fieldByKey(own.Type(), name)
			g, _ := fieldByKey(general.Type(), name)
			l.inherit(own.FieldByIndex(f.Index), general.FieldByIndex(g.Index), join(element("databases", i), name), name)
		}
	}
}

// inherit copies from general, at the path from, every setting that no layer gave to own, at the path at, with its
// origin.
func (l *loader) inherit(own, general reflect.Value, at, from string) {
	_, given := l.origins[at]
	switch t := own.Type(); {
	case l.rejected[at]:
	case isScalar(t):
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
		if list, named := own.Interface().([]Destination); named {
			for i, d := range list {
				same := func(g Destination) bool { return g.Name == d.Name && d.Name != "" }
				if n := slices.IndexFunc(general.Interface().([]Destination), same); n >= 0 {
					l.inherit(own.Index(i), general.Index(n), element(at, i), element(from, n))
				}
			}
		}
	default:
		chosen := t == reflect.TypeFor[Broker]() && !own.IsZero()
		for _, f := range reflect.VisibleFields(t) {
			v := own.FieldByIndex(f.Index)
			if chosen && v.IsZero() {
				continue // a broker of its own, in place of the other
			}
			if twin, found := strings.CutSuffix(key(f), "_file"); found {
				_, has := fieldByKey(t, twin)
				if _, known := l.origins[join(at, twin)]; has && known &&
					l.origins[join(at, twin)].String() != l.origins[join(from, twin)].String() {
					continue // a secret of its own, in place of the file
				}
			}
			l.inherit(v, general.FieldByIndex(f.Index), join(at, key(f)), join(from, key(f)))
		}
	}
}

// inherited notes that a setting, and what is in it, is another's.
func (l *loader) inherited(at, from string) {
	inside := func(path string) bool {
		rest, found := strings.CutPrefix(path, from)
		return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
	}
	for path, o := range l.origins {
		if inside(path) {
			l.origins[at+path[len(from):]] = o
		}
	}
	for path := range l.rejected {
		if inside(path) {
			l.rejected[at+path[len(from):]] = true
		}
	}
}

// clone copies a value with all that it points to, so that a change of one doesn't reach the other.
func clone(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	switch {
	case isScalar(v.Type()):
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

// databases checks all of them.
func (c *Config) checkDatabases(r *report, files map[string]string, unopened bool) {
	for _, name := range []string{"url", "viewer_url"} {
		path := "database." + name
		r.check(r.origins[path].Layer == FromDefault || name == "url" && c.Database.URL.Empty() || name == "viewer_url" &&
			c.Database.ViewerURL.Empty(), path,
			"a single database is given beside several; name it in databases as well, or take it away")
	}
	names, urls := make(map[string]string), make(map[string]string)
	for i := range c.Databases {
		e, path := &c.Databases[i], element("databases", i)
		r.check(e.Name != "", path+".name", "not given; it is the database's in metrics, logs and commands")
		r.check(e.Name == "" || namePattern.MatchString(e.Name), path+".name", "%q is no name; %s", e.Name, nameRule)
		if first, twice := names[e.Name]; twice && e.Name != "" {
			r.check(false, path+".name", "%q is the name of %s as well; names are unique", e.Name, first)
		}
		names[e.Name] = path
		e.Database.check(r, path+".database")
		if first, twice := urls[e.Database.URL.Text()]; twice && !e.Database.URL.Empty() {
			r.check(false, path+".database.url", "the URL of %s as well; a database is given once, with all of its destinations", first)
		}
		urls[e.Database.URL.Text()] = path
		checkWork(r, e.Notify, e.Destinations, path, files, unopened)
	}
}
