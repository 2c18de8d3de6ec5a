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

// check adds a fault at the setting unless the condition holds, or the setting
// or what it is part of is at fault already.
func (l *loader) check(ok bool, path, format string, args ...any) {
	if !ok && !l.faulty(path) {
		l.fault(l.originOf(path), path, format, args...)
	}
}

// faulty reports whether a setting, or what it is part of, is at fault.
func (l *loader) faulty(path string) bool {
	for p := path; p != ""; p = parent(p) {
		if l.rejected[p] {
			return true
		}
	}
	return false
}

// advise warns about the setting unless the condition holds.
func (l *loader) advise(ok bool, path, format string, args ...any) {
	if !ok {
		l.warn("%s", Fault{Origin: l.originOf(path), Path: path, Message: fmt.Sprintf(format, args...)})
	}
}

// originOf returns the place of a setting, or of the closest section around it
// that has one.
func (l *loader) originOf(path string) Origin {
	for p := path; p != ""; p = parent(p) {
		if o, found := l.origins[p]; found {
			return o
		}
	}
	return Origin{}
}

func parent(path string) string {
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}

func (l *loader) validate(c *Config) {
	walk(l.config, "", l.constraints)
	walk(l.config, "", func(s setting) {
		if a, ok := s.value.Addr().Interface().(interface{ advise(*loader, string) }); ok {
			a.advise(l, s.path)
		}
	})
	l.check(namePattern.MatchString(c.Name), "name", "%q is no name; %s", c.Name, nameRule)
	l.http(c.HTTP, c.Databases)
	l.telemetry(c.Telemetry)
	files := make(map[string]string)
	if c.Several() {
		l.databases(c, files)
		return
	}
	l.database(c.Database, "database")
	l.work(c.Notify, c.Destinations, "", files)
}

// work checks what is done with one database, by the settings below a path. files are those that destinations write to.
func (l *loader) work(n *Notify, destinations []Destination, at string, files map[string]string) {
	l.notify(n, join(at, "notify"))
	at = join(at, "destinations")
	l.check(len(destinations) > 0, at, "none is given; at least one is needed, for example {name: all, broker: {stdout: {}}}")
	names, slots := make(map[string]string), make(map[string]string)
	for i := range destinations {
		d, path := &destinations[i], element(at, i)
		l.destination(d, path)
		l.notify(d.Notify, path+".notify")
		if first, twice := names[d.Name]; twice && d.Name != "" {
			l.check(false, path+".name", "%q is the name of %s as well; names are unique", d.Name, first)
		}
		names[d.Name] = path
		if r := d.Replication; r != nil && r.Slot != "" {
			first, twice := slots[r.Slot]
			l.check(!twice, path+".replication.slot", "%q is the slot of %s as well, and a slot serves one destination", r.Slot, first)
			slots[r.Slot] = path
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
			l.check(false, path+".broker."+field, "%s writes to %q as well; each needs a %s of its own", first, file, kind)
		}
		files[file] = path
	}
	l.sources(destinations, at)
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

func (l *loader) database(d Database, path string) {
	l.check(!d.URL.Empty() || l.rejected[path+".url_file"], path+".url",
		"not given; set it, or %s.url_file, or the environment variable %s", path, variableOf(path+".url"))
	for name, given := range map[string]URL{".url": d.URL, ".viewer_url": d.ViewerURL} {
		if !given.Empty() {
			complaint := connect.Complaint(given.Text())
			l.check(complaint == "", path+name, "%s", complaint)
		}
	}
}

func (l *loader) destination(d *Destination, path string) {
	l.check(d.Name != "", path+".name", "not given; it names the destination's cursor")
	l.check(d.Name == "" || namePattern.MatchString(d.Name), path+".name", "%q is no name; %s", d.Name, nameRule)
	for i, topic := range d.Topics {
		pattern := strings.TrimPrefix(topic, "!")
		l.check(pattern != "" && len(pattern) <= maxPattern && !strings.ContainsAny(pattern, " \t\r\n!?[]{}\\"), element(path+".topics", i),
			"%q is not a pattern of topics such as orders.* or !orders.internal", topic)
	}

	if _, given := l.origins[path+".delivery.max_in_flight"]; !given {
		d.Delivery.MaxInFlight = max(d.Delivery.MaxInFlight, 2*d.Delivery.Batch)
	}
	l.patience(d, path)
	if _, given := l.origins[path+".delivery.outage.max"]; !given {
		d.Delivery.Outage.Max = max(d.Delivery.Outage.Max, d.Delivery.Outage.Initial)
	}

	l.source(d, path)
	l.replication(d, path)
	l.exactlyOnce(d, path)
	l.routing(d, path)
	l.adapters(d, path)
}

// maxExactlyOnce bounds what an exactly-once destination has in flight: each transaction names what isn't settled,
// in a record of at most 1 MB.
const maxExactlyOnce = 24_000

func (l *loader) exactlyOnce(d *Destination, path string) {
	if k := d.Broker.Kafka; k == nil || !k.ExactlyOnce {
		return
	}
	l.check(d.Source == nil, path+".broker.kafka.exactly_once",
		"not possible with a source of its own: no strategy for such a table notes everything that was delivered, "+
			"offsets neither, which stay before a message that waits; leave one of the two out")
	l.check(d.Delivery.MaxInFlight <= maxExactlyOnce, path+".delivery.max_in_flight",
		"%d is too large with exactly_once; the most is %d", d.Delivery.MaxInFlight, maxExactlyOnce)
}

func (l *loader) address(path, address, example string) {
	host, port, err := net.SplitHostPort(address)
	_, portErr := strconv.ParseUint(port, 10, 16)
	l.check(err == nil && portErr == nil && !strings.ContainsAny(host, "/@ "), path, "%q is not an address such as %s", address, example)
}
