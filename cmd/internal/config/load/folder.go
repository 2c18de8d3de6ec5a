package load

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
)

// folder reads the databases that are files of their own. Where the variables of the environment count them, they come
// last.
func (l *loader) folder(c *config.Config, file string) {
	if c.DatabasesDir == "" {
		return
	}
	dir := beside(file, c.DatabasesDir)
	entries, err := os.ReadDir(dir) // by name
	if err != nil {
		l.Fault(l.OriginOf("databases_dir"), "databases_dir", "can't read the folder %q: %v", dir, findings.Cause(err))
		return
	}
	list := reflect.ValueOf(&c.Databases).Elem()
	for _, f := range entries {
		extension := filepath.Ext(f.Name())
		if f.IsDir() || strings.HasPrefix(f.Name(), ".") || extension != ".yaml" && extension != ".yml" {
			continue // a file that an editor keeps, or a README
		}
		i := list.Len()
		list.Set(reflect.Append(list, fields.New(reflect.TypeFor[config.Entry]())))
		at, path := fields.Element("databases", i), filepath.Join(dir, f.Name())
		l.Origins[at] = findings.Origin{Layer: findings.FromFile, Name: path}
		l.file(path, list.Index(i), at)
		if e := &c.Databases[i]; e.Name == "" {
			e.Name = strings.TrimSuffix(f.Name(), extension)
			l.Origins[at+".name"] = l.Origins[at]
		}
	}
	if len(c.Databases) > 0 {
		c.DatabasesDir = "" // they are in the list
	}
	l.Check(len(c.Databases) > 0, "databases_dir", "the folder %q has no file *.yaml, and no other database is given", dir)
}

// beside is a path as a file means it.
func beside(file, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(file), path)
}
