package config

import (
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/connect"
)

const (
	maxName    = 63
	nameRule   = "use 1 to 63 of a-z, 0-9, - and _, with a letter or digit first"
	maxPattern = 255
)

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

func (l *loader) validate(c *Config) {
	walk(l.config, "", l.constraints)
	walk(l.config, "", func(s setting) {
		if a, ok := s.value.Addr().Interface().(interface{ Advise(*report, string) }); ok {
			a.Advise(l.report, s.path)
		}
	})
	c.check(l.report, l.unopened)
}

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

// constraints checks what the tags of a field demand.
func (l *loader) constraints(s setting) {
	tag := s.field.Tag
	if enum, found := tag.Lookup("enum"); found {
		allowed, given := strings.Split(enum, ","), s.value.String()
		hint := ""
		if near, found := nearest(given, allowed); found {
			hint = fmt.Sprintf("; did you mean %q?", near)
		}
		l.check(slices.Contains(allowed, given), s.path, "%q is not one of %s%s", given, strings.Join(allowed, ", "), hint)
	}
	if _, bounded := tag.Lookup("min"); s.value.Type() == durationType && !bounded {
		l.check(s.value.Int() > 0, s.path, "%s is not a positive duration", duration(time.Duration(s.value.Int())))
	}
	if least, found := limit(tag, "min"); found {
		l.check(s.value.Int() >= least, s.path, "%v is too small; the least is %d", s.value.Interface(), least)
	}
	if most, found := limit(tag, "max"); found {
		l.check(s.value.Int() <= most, s.path, "%v is too large; the most is %d", s.value.Interface(), most)
	}
	l.meant(s)
	l.login(s)
}

// login reports a broker's address whose user or password has to be encoded, or that has them where none can be. It
// repeats nothing of it.
func (l *loader) login(s setting) {
	if !isText(s.value.Type()) || !strings.Contains(s.path, ".broker.") {
		return
	}
	text := textOf(s.value)
	switch {
	case s.value.Type() == urlType || strings.HasSuffix(s.path, "url") || strings.HasSuffix(s.path, "endpoint"):
		for _, one := range urlNext.Split(text, -1) {
			if !strings.Contains(one, "://") {
				one = "next://" + one // the scheme was split off
			}
			complaint := connect.Unencoded(one)
			l.check(complaint == "", s.path, "%s", complaint)
		}
	case hostPort.MatchString(s.path) && strings.ContainsAny(text, "@"):
		l.check(false, s.path, "a user and a password can't stand in it; write host:port, and the others as settings beside it")
	}
}

var hostPort = regexp.MustCompile(`\.(brokers|addresses)\[\d+\]$`)

// meant reports a zero that a broker's adapter would take for its default.
func (l *loader) meant(s setting) {
	if s.parent.IsValid() && isScalar(s.value.Type()) && s.value.Kind() != reflect.Bool && s.value.IsZero() &&
		strings.Contains(s.path, ".broker.") {
		byDefault := newDefault(s.parent.Type()).FieldByIndex(s.field.Index)
		l.check(byDefault.IsZero(), s.path, "%s would mean the default, %s: leave it out, or give another",
			scalar(s.value), scalar(byDefault))
	}
}

func limit(tag reflect.StructTag, name string) (int64, bool) {
	n, err := strconv.ParseInt(tag.Get(name), 10, 64)
	return n, err == nil
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

func (d *Destination) check(r *report, path string, unopened bool) {
	r.check(d.Name != "", path+".name", "not given; it names the destination's cursor")
	r.check(d.Name == "" || namePattern.MatchString(d.Name), path+".name", "%q is no name; %s", d.Name, nameRule)
	for i, topic := range d.Topics {
		pattern := strings.TrimPrefix(topic, "!")
		r.check(pattern != "" && len(pattern) <= maxPattern && !strings.ContainsAny(pattern, " \t\r\n!?[]{}\\"), element(path+".topics", i),
			"%q is not a pattern of topics such as orders.* or !orders.internal", topic)
	}

	if !r.given(path + ".delivery.max_in_flight") {
		d.Delivery.MaxInFlight = max(d.Delivery.MaxInFlight, 2*d.Delivery.Batch)
	}
	d.patience(r, path)
	if !r.given(path + ".delivery.outage.max") {
		d.Delivery.Outage.Max = max(d.Delivery.Outage.Max, d.Delivery.Outage.Initial)
	}

	d.checkSource(r, path)
	d.checkReplication(r, path)
	d.checkExactlyOnce(r, path)
	d.checkRouting(r, path)
	d.checkPackages(r, path, unopened)
}

// maxExactlyOnce bounds what an exactly-once destination has in flight: each transaction names what isn't settled,
// in a record of at most 1 MB.
const maxExactlyOnce = 24_000

func (d *Destination) checkExactlyOnce(r *report, path string) {
	if k := d.Broker.Kafka; k == nil || !k.ExactlyOnce {
		return
	}
	r.check(d.Source == nil, path+".broker.kafka.exactly_once",
		"not possible with a source of its own: no strategy for such a table notes everything that was delivered, "+
			"offsets neither, which stay before a message that waits; leave one of the two out")
	r.check(d.Delivery.MaxInFlight <= maxExactlyOnce, path+".delivery.max_in_flight",
		"%d is too large with exactly_once; the most is %d", d.Delivery.MaxInFlight, maxExactlyOnce)
}

func checkAddress(r *report, path, address, example string) {
	host, port, err := net.SplitHostPort(address)
	_, portErr := strconv.ParseUint(port, 10, 16)
	r.check(err == nil && portErr == nil && !strings.ContainsAny(host, "/@ "), path, "%q is not an address such as %s", address, example)
}
