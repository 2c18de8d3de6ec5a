package config

import (
	"path/filepath"

	"github.com/pgoutbox/outbox/cmd/internal/connect"
)

// check reports what is wrong with values that have the right form. Brokers are opened, and closed, unless unopened.
func (c *Config) check(r *report, unopened bool) {
	r.check(namePattern.MatchString(c.Name), "name", "%q is no name; %s", c.Name, nameRule)
	c.HTTP.check(r, c.Databases)
	c.Telemetry.check(r)
	files := make(map[string]string)
	if c.Several() {
		c.checkDatabases(r, files, unopened)
		return
	}
	c.Database.check(r, "database")
	checkWork(r, c.Notify, c.Destinations, "", files, unopened)
}

// checkDatabases checks all of them.
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

// checkWork checks what is done with one database, by the settings below a path. files are those that destinations write to.
func checkWork(r *report, n *Notify, destinations []Destination, at string, files map[string]string, unopened bool) {
	n.check(r, join(at, "notify"))
	at = join(at, "destinations")
	r.check(len(destinations) > 0, at, "none is given; at least one is needed, for example {name: all, broker: {stdout: {}}}")
	names, slots := make(map[string]string), make(map[string]string)
	for i := range destinations {
		d, path := &destinations[i], element(at, i)
		d.check(r, path, unopened)
		d.Notify.check(r, path+".notify")
		if first, twice := names[d.Name]; twice && d.Name != "" {
			r.check(false, path+".name", "%q is the name of %s as well; names are unique", d.Name, first)
		}
		names[d.Name] = path
		if d.Replication != nil && d.Replication.Slot != "" {
			slot := d.Replication.Slot
			first, twice := slots[slot]
			r.check(!twice, path+".replication.slot", "%q is the slot of %s as well, and a slot serves one destination", slot, first)
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
			r.check(false, path+".broker."+field, "%s writes to %q as well; each needs a %s of its own", first, file, kind)
		}
		files[file] = path
	}
	checkRecords(r, destinations, at)
}

func (d Database) check(r *report, path string) {
	r.check(!d.URL.Empty() || r.faulty(path+".url_file"), path+".url",
		"not given; set it, or %s.url_file, or the environment variable %s", path, variableOf(path+".url"))
	for name, given := range map[string]URL{".url": d.URL, ".viewer_url": d.ViewerURL} {
		if !given.Empty() {
			complaint := connect.Complaint(given.Text())
			r.check(complaint == "", path+name, "%s", complaint)
		}
	}
}
