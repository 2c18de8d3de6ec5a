package config

import (
	"path/filepath"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
)

// Check reports what is wrong with values that have the right form. Brokers are opened, and closed, unless unopened.
func (c *Config) Check(r *findings.Report, unopened bool) {
	r.Check(namePattern.MatchString(c.Name), "name", "%q is no name; %s", c.Name, nameRule)
	c.HTTP.check(r, c.Databases)
	c.Telemetry.check(r)
	c.Limits.check(r)
	c.Fleet.check(r)
	files := make(map[string]string)
	if c.Several() {
		c.checkDatabases(r, files, unopened)
		return
	}
	c.Database.check(r, "database")
	checkWork(r, c.Notify, c.Destinations, "", files, unopened)
}

// checkDatabases checks all databases, where there are several.
func (c *Config) checkDatabases(r *findings.Report, files map[string]string, unopened bool) {
	for _, name := range []string{"url", "viewer_url"} {
		path := "database." + name
		r.Check(r.Origins[path].Layer == findings.FromDefault || name == "url" && c.Database.URL.Empty() || name == "viewer_url" &&
			c.Database.ViewerURL.Empty(), path,
			"a single database is given beside several; name it in databases as well, or take it away")
	}
	names, urls := make(map[string]string), make(map[string]string)
	for i := range c.Databases {
		e, path := &c.Databases[i], fields.Element("databases", i)
		r.Check(e.Name != "", path+".name", "not given; it is the database's in metrics, logs and commands")
		if first, twice := names[e.Name]; twice && e.Name != "" {
			r.Check(false, path+".name", "%q is the name of %s as well; names are unique", e.Name, first)
		}
		names[e.Name] = path
		e.Check(r, path, files, unopened)
		if first, twice := urls[e.Database.URL.Text()]; twice && !e.Database.URL.Empty() {
			r.Check(false, path+".database.url", "the URL of %s as well; a database is given once, with all of its destinations", first)
		}
		urls[e.Database.URL.Text()] = path
	}
	c.checkDiscovery(r, unopened)
}

// Check reports what is wrong with a database and what is done with it. files are those that
// destinations write to.
func (e *Entry) Check(r *findings.Report, path string, files map[string]string, unopened bool) {
	r.Check(e.Name == "" || namePattern.MatchString(e.Name), path+".name", "%q is no name; %s", e.Name, nameRule)
	e.Database.check(r, path+".database")
	checkWork(r, e.Notify, e.Destinations, path, files, unopened)
}

// checkWork checks what is done with one database, by the settings below a path. files are those that destinations
// write to.
func checkWork(r *findings.Report, n *Notify, destinations []Destination, at string, files map[string]string, unopened bool) {
	n.check(r, fields.Join(at, "notify"))
	at = fields.Join(at, "destinations")
	r.Check(len(destinations) > 0, at, "none is given; at least one is needed, for example {name: all, broker: {stdout: {}}}")
	names, slots := make(map[string]string), make(map[string]string)
	for i := range destinations {
		d, path := &destinations[i], fields.Element(at, i)
		d.check(r, path, unopened)
		d.Notify.check(r, path+".notify")
		if first, twice := names[d.Name]; twice && d.Name != "" {
			r.Check(false, path+".name", "%q is the name of %s as well; names are unique", d.Name, first)
		}
		names[d.Name] = path
		if d.Replication != nil && d.Replication.Slot != "" {
			slot := d.Replication.Slot
			first, twice := slots[slot]
			r.Check(!twice, path+".replication.slot", "%q is the slot of %s as well, and a slot serves one destination", slot, first)
			slots[slot] = path
		}
		var file, field, kind string
		switch {
		case d.Broker.File != nil:
			file, field, kind = d.Broker.File.Path, "file.path", "file"
		case d.Broker.Archive != nil: // a replay takes all that is in a directory
			file, field, kind = d.Broker.Archive.Directory, "archive.directory", "directory"
		}
		if file == "" {
			continue
		}
		file = filepath.Clean(file)
		if first, twice := files[file]; twice {
			r.Check(false, path+".broker."+field, "%s writes to %q as well; each needs a %s of its own", first, file, kind)
		}
		files[file] = path
	}
	checkRecords(r, destinations, at)
}

// CheckAddress checks nothing but where the database is.
func (e *Entry) CheckAddress(r *findings.Report, path string) { e.Database.check(r, path+".database") }

func (d Database) check(r *findings.Report, path string) {
	r.Check(!d.URL.Empty() || r.Faulty(path+".url_file"), path+".url",
		"not given; set it, or %s.url_file, or the environment variable %s", path, fields.Variable(path+".url"))
	for name, given := range map[string]scalar.URL{".url": d.URL, ".viewer_url": d.ViewerURL} {
		if !given.Empty() {
			complaint := connect.Complaint(given.Text())
			r.Check(complaint == "", path+name, "%s", complaint)
		}
	}
}
