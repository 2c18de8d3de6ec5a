package load

import (
	"maps"
	"reflect"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

// Found is a database that a source of the configuration has.
type Found struct {
	Name           string // the text may have another one
	URL, ViewerURL string

	// Text, if it isn't nil, is what a file says, in place of the URLs: an entry of databases as YAML. Path is that
	// file's.
	Text []byte
	Path string
}

// Entry makes an entry of databases of what source i of the configuration has found, with what the source and the top
// level say. The error is of type [findings.Faults].
func (l *Loaded) Entry(i int, found Found) (config.Entry, error) {
	at, from := "databases."+found.Name, fields.Element("discover", i)
	one := &loader{Report: findings.NewReport(), environ: l.environ, unopened: l.unopened}
	e := &config.Entry{Name: found.Name}
	general := reflect.ValueOf(&l.Config.Discover[i]).Elem()
	if found.Text == nil {
		own := reflect.ValueOf(e).Elem()
		one.inheritAll(own, general, at, from)
		e.Database.URL, e.Database.ViewerURL = scalar.NewURL(found.URL), scalar.NewURL(found.ViewerURL)
		e.CheckAddress(one.Report, at)
	} else {
		origin := findings.Origin{Layer: findings.FromFile, Name: found.Path}
		maps.Copy(one.Origins, l.origins)
		one.Origins[at] = origin
		own := reflect.ValueOf(e).Elem()
		d := &decoder{loader: one, origin: origin}
		d.document(found.Text, own, at)
		if !one.unreadable {
			one.secretFiles(own, at)
			one.inheritAll(own, general, at, from)
			fields.Walk(own, at, one.constraints)
			e.Check(one.Report, at, make(map[string]string), l.unopened)
		}
	}
	if len(one.Faults) > 0 {
		one.Faults.Sort()
		return config.Entry{}, one.Faults
	}
	return *e, nil
}

// Beside is a path of the configuration, relative to its file.
func (l *Loaded) Beside(path string) string { return beside(l.file, path) }
