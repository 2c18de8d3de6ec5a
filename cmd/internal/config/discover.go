package config

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/mapping"
)

// Discovery finds databases while the relay runs. It has one of Cluster, Query and Folder. What it doesn't say of them,
// the top level says.
type Discovery struct {
	Name      string           `json:"name" jsonschema:"Name of this source in metrics and logs. Required."`
	Cluster   *Cluster         `json:"cluster" jsonschema:"All databases of a PostgreSQL cluster that have the outbox schema."`
	Query     *DatabaseQuery   `json:"query" jsonschema:"The rows of a query, such as of a table of tenants."`
	Folder    *DatabasesFolder `json:"folder" jsonschema:"The files of a folder, such as a ConfigMap or Secret that is mounted."`
	Match     []string         `json:"match" jsonschema:"Patterns with * and ? of the names that are taken. Empty: all."`
	Except    []string         `json:"except" jsonschema:"Patterns of the names that are left out."`
	Prefix    string           `json:"prefix" jsonschema:"What the names of these databases begin with in metrics, logs, commands and the API, such as eu-."`
	Every     time.Duration    `json:"every" jsonschema:"Pause between two looks."`
	MaxVanish string           `json:"max_vanish" jsonschema:"Databases that may be missing in one look, compared with those before: a share such as 10%, rounded up, or a number. If more are, all are kept, and the relay says so."`

	Retention    Retention     `json:"retention" jsonschema:"Removal of messages that every destination has had."`
	Dormant      time.Duration `json:"dormant" min:"0" jsonschema:"After this time without a message the relay has no connection to a database, and gives its leases back. 0: never."`
	DormantPoll  time.Duration `json:"dormant_poll" jsonschema:"Pause between two looks at a dormant database. A message that is committed meanwhile waits for as long at most."`
	Notify       *Notify       `json:"notify" jsonschema:"Who is told of messages that will not be tried again."`
	Quota        Quota         `json:"quota" jsonschema:"What may be sent of one database a second, to all of its destinations together."`
	Destinations []Destination `json:"destinations" jsonschema:"Where messages go. One with the name of a destination at the top level has its settings, but for those that it gives."`
}

// Cluster is a PostgreSQL server whose databases are looked at.
type Cluster struct {
	URL     scalar.URL `json:"url" jsonschema:"Connection URL or keyword/value string of any database of the cluster, such as postgres. The addresses of the others differ in the database's name alone. Required."`
	URLFile string     `json:"url_file" jsonschema:"File that holds the URL, instead of url."`

	ViewerURL     scalar.URL `json:"viewer_url" jsonschema:"As viewer_url of a database, for all of them. Empty: url."`
	ViewerURLFile string     `json:"viewer_url_file" jsonschema:"File that holds the URL, instead of viewer_url."`

	Recheck     time.Duration `json:"recheck" jsonschema:"After how long a database is asked again whether it has the schema. A new database is asked at once."`
	Connections int           `json:"connections" min:"1" max:"64" jsonschema:"Databases that are asked for their schema at once."`
}

// DatabaseQuery is a query whose rows are databases.
type DatabaseQuery struct {
	URL     scalar.URL `json:"url" jsonschema:"Connection URL or keyword/value string of the database that is asked. Required."`
	URLFile string     `json:"url_file" jsonschema:"File that holds the URL, instead of url."`

	SQL string `json:"sql" jsonschema:"The query. Its column name is the database's name; the others are for database_url. Required."`

	DatabaseURL     scalar.URL `json:"database_url" jsonschema:"URL of each database, with columns in braces: postgres://relay:{password}@{host}/{name}. Values are encoded as their place in it asks."`
	DatabaseURLFile string     `json:"database_url_file" jsonschema:"File that holds it, instead of database_url."`
}

// DatabasesFolder is a folder with a file for each database.
type DatabasesFolder struct {
	Path string `json:"path" jsonschema:"The folder. A file NAME.yaml is as in databases_dir; NAME.url, or NAME without an extension, has the URL alone. Relative to this file. Required."`
}

// SetDefaults gives what every source has.
func (d *Discovery) SetDefaults() {
	d.Every, d.MaxVanish = 15*time.Second, "10%"
}

// SetDefaults keeps the number of short connections small.
func (c *Cluster) SetDefaults() { c.Recheck, c.Connections = 10*time.Minute, 4 }

// SetDefaults takes the whole URL from a column.
func (q *DatabaseQuery) SetDefaults() { q.DatabaseURL = scalar.NewURL("{url}") }

// Takes reports whether the patterns take a name.
func (d *Discovery) Takes(name string) bool {
	matches := func(patterns []string) bool {
		for _, p := range patterns {
			if ok, _ := path.Match(p, name); ok { // they were checked
				return true
			}
		}
		return false
	}
	return (len(d.Match) == 0 || matches(d.Match)) && !matches(d.Except)
}

// MayVanish is how many of a number of databases may be missing in one look. A share is rounded up, so that one may be
// in a small fleet too.
func (d *Discovery) MayVanish(of int) int {
	n, share, _ := vanishing(d.MaxVanish) // it was checked
	if share {
		return int(math.Ceil(float64(of) * n / 100))
	}
	return int(n)
}

func vanishing(text string) (n float64, share bool, err error) {
	digits, share := strings.CutSuffix(strings.TrimSpace(text), "%")
	if share {
		n, err = strconv.ParseFloat(digits, 64)
	} else {
		var whole uint64
		whole, err = strconv.ParseUint(digits, 10, 31)
		n = float64(whole)
	}
	if err != nil || !(n >= 0) || share && n > 100 {
		return 0, share, fmt.Errorf("%q is neither a share from 0%% to 100%% nor a number", text)
	}
	return n, share, nil
}

// NameOf makes the name that a database has here of the one that its source gives: in small letters, with - for what
// names don't have. ok means that it is one.
func (d *Discovery) NameOf(found string) (name string, ok bool) {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '_' {
			return r
		}
		return '-'
	}, strings.ToLower(d.Prefix+found))
	return name, namePattern.MatchString(name)
}

// NameRule says what a name is.
const NameRule = nameRule

// With returns the configuration with databases that were discovered beside its own.
func (c Config) With(found []Entry) Config {
	c.Databases = append(c.Databases[:len(c.Databases):len(c.Databases)], found...)
	return c
}

// checkDiscovery checks where databases are looked for.
func (c *Config) checkDiscovery(r *findings.Report, unopened bool) {
	names := make(map[string]string)
	for i := range c.Discover {
		d, at := &c.Discover[i], fields.Element("discover", i)
		r.Check(d.Name != "", at+".name", "not given; it is the source's in metrics and logs")
		r.Check(d.Name == "" || namePattern.MatchString(d.Name), at+".name", "%q is no name; %s", d.Name, nameRule)
		if first, twice := names[d.Name]; twice && d.Name != "" {
			r.Check(false, at+".name", "%q is the name of %s as well; names are unique", d.Name, first)
		}
		names[d.Name] = at
		d.check(r, at, unopened)
	}
}

func (d *Discovery) check(r *findings.Report, at string, unopened bool) {
	kinds := 0
	for _, given := range []bool{d.Cluster != nil, d.Query != nil, d.Folder != nil} {
		if given {
			kinds++
		}
	}
	r.Check(kinds == 1, at, "want one of cluster, query and folder, found %d", kinds)
	for name, patterns := range map[string][]string{"match": d.Match, "except": d.Except} {
		for i, p := range patterns {
			_, err := path.Match(p, "")
			r.Check(err == nil && p != "", fields.Element(at+"."+name, i),
				"%q is no pattern; it has * for any text and ? for one character", p)
		}
	}
	_, ok := d.NameOf("x")
	r.Check(ok && strings.ToLower(d.Prefix) == d.Prefix, at+".prefix", "%q can't begin a name; %s", d.Prefix, nameRule)
	_, _, err := vanishing(d.MaxVanish)
	r.Check(err == nil, at+".max_vanish", "%v", err)
	switch {
	case d.Cluster != nil:
		checkURL(r, at+".cluster.url", d.Cluster.URL, true)
		checkURL(r, at+".cluster.viewer_url", d.Cluster.ViewerURL, false)
	case d.Query != nil:
		checkURL(r, at+".query.url", d.Query.URL, true)
		r.Check(strings.TrimSpace(d.Query.SQL) != "", at+".query.sql",
			"not given; for example SELECT name, url FROM tenants WHERE active")
		_, err := mapping.ParseTemplate(d.Query.DatabaseURL.Text())
		r.Check(err == nil && !d.Query.DatabaseURL.Empty(), at+".query.database_url",
			"not a template such as postgres://relay:{password}@{host}/{name}") // err may have a password
	case d.Folder != nil:
		r.Check(d.Folder.Path != "", at+".folder.path", "not given")
	}
	if len(d.Destinations) > 0 || d.Folder == nil {
		checkWork(r, d.Notify, d.Destinations, at, make(map[string]string), unopened)
	}
	for i, to := range d.Destinations {
		path := fields.Element(at+".destinations", i) + ".broker"
		r.Check(to.Broker.File == nil && to.Broker.Archive == nil, path,
			"a file or a directory is for one database, and there may be several: choose another broker, or name the "+
				"databases in databases")
		r.Check(to.Replication == nil || to.Replication.Slot == "", fields.Element(at+".destinations", i)+".replication.slot",
			"a slot is for one database, and there may be several: leave it out, and each has one with its name")
	}
}

func checkURL(r *findings.Report, at string, url scalar.URL, required bool) {
	if url.Empty() {
		r.Check(!required || r.Faulty(at+"_file"), at, "not given; set it, or %s_file, or the environment variable %s",
			at, fields.Variable(at))
		return
	}
	complaint := connect.Complaint(url.Text())
	r.Check(complaint == "", at, "%s", complaint)
}
