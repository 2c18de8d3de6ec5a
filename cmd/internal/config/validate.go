package config

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxName    = 63
	minLease   = 100 * time.Millisecond
	nameRule   = "use 1 to 63 of a-z, 0-9, - and _, with a letter or digit first"
	maxPattern = 255
)

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// check adds a fault at the setting unless the condition holds, or the setting
// or what it is part of is at fault already.
func (l *loader) check(ok bool, path, format string, args ...any) {
	if ok {
		return
	}
	for p := path; p != ""; p = parent(p) {
		if l.rejected[p] {
			return
		}
	}
	l.fault(l.originOf(path), path, format, args...)
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
	l.check(namePattern.MatchString(c.Name), "name", "%q is no name; %s", c.Name, nameRule)
	l.database(c.Database)
	if c.HTTP.Listen != "" {
		l.address("http.listen", c.HTTP.Listen, "127.0.0.1:9187")
	}
	l.notify(c.Notify, "notify")
	l.check(len(c.Destinations) > 0, "destinations", "none is given; at least one is needed, for example {name: all, broker: {stdout: {}}}")
	names, files := make(map[string]string), make(map[string]string)
	for i := range c.Destinations {
		d, path := &c.Destinations[i], element("destinations", i)
		l.destination(d, path)
		l.notify(d.Notify, path+".notify")
		if first, twice := names[d.Name]; twice && d.Name != "" {
			l.check(false, path+".name", "%q is the name of %s as well; names are unique", d.Name, first)
		}
		names[d.Name] = path
		if d.Broker.File != nil && d.Broker.File.Path != "" {
			file := filepath.Clean(d.Broker.File.Path)
			if first, twice := files[file]; twice {
				l.check(false, path+".broker.file.path", "%s writes to %q as well; each needs a file of its own", first, file)
			}
			files[file] = path
		}
	}
	l.sources(c)
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
}

func limit(tag reflect.StructTag, name string) (int64, bool) {
	n, err := strconv.ParseInt(tag.Get(name), 10, 64)
	return n, err == nil
}

func (l *loader) database(d Database) {
	l.check(!d.URL.Empty() || l.rejected["database.url_file"], "database.url",
		"not given; set it, or database.url_file, or the environment variable OUTBOX_DATABASE_URL")
	if !d.URL.Empty() {
		complaint := connectionString(d.URL.Text())
		l.check(complaint == "", "database.url", "%s", complaint)
	}
}

// connectionString checks the form of what PostgreSQL takes. The complaint
// never repeats any of it.
func connectionString(s string) string {
	scheme, rest, isURL := strings.Cut(s, "://")
	if !isURL {
		if !dsnStart.MatchString(s) {
			return "neither a URL such as postgres://user@host:5432/database nor keywords such as host=... dbname=..."
		}
		return ""
	}
	if scheme != "postgres" && scheme != "postgresql" {
		return "the URL doesn't begin with postgres:// or postgresql://"
	}
	// There may be several hosts, which url.Parse doesn't know.
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	user, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, hosts = authority[:i+1], authority[i+1:]
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if _, err := url.Parse(scheme + "://" + user + host + tail); err != nil {
			return "not a valid URL; special characters in a user name or password must be percent-encoded, such as %40 for @ and %2F for /"
		}
	}
	return ""
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
	l.check(d.Delivery.MaxInFlight >= 2*d.Delivery.Batch, path+".delivery.max_in_flight",
		"%d is less than twice delivery.batch (%d)", d.Delivery.MaxInFlight, d.Delivery.Batch)
	l.check(d.Delivery.Backoff.Max >= d.Delivery.Backoff.Initial, path+".delivery.backoff.max",
		"%s is shorter than backoff.initial (%s)", duration(d.Delivery.Backoff.Max), duration(d.Delivery.Backoff.Initial))
	l.check(d.Poll.Idle >= d.Poll.Busy, path+".poll.idle", "%s is shorter than poll.busy (%s)", duration(d.Poll.Idle), duration(d.Poll.Busy))
	l.check(d.Lease >= minLease, path+".lease", "%v is too short; the least is %v", d.Lease, minLease)

	l.source(d, path)
	l.replication(d, path)
	l.broker(&d.Broker, path+".broker")
	l.exactlyOnce(d, path)
	l.routing(d, path)
}

func (l *loader) broker(b *Broker, path string) {
	var chosen []string
	v := reflect.ValueOf(b).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		if !v.FieldByIndex(f.Index).IsNil() {
			chosen = append(chosen, key(f))
		}
	}
	possible := strings.Join(keys(v.Type()), ", ")
	l.check(len(chosen) > 0, path, "none is given; name one of %s", possible)
	l.check(len(chosen) < 2, path, "%s are given; keep one, or make a destination of each", strings.Join(chosen, " and "))
	if b.Kafka != nil {
		l.kafka(b.Kafka, path+".kafka")
	}
	if b.NATS != nil {
		l.nats(b.NATS, path+".nats")
	}
	if b.SQS != nil {
		l.sqs(b.SQS, path+".sqs")
	}
	if b.SNS != nil {
		l.sns(b.SNS, path+".sns")
	}
	if b.PubSub != nil {
		l.pubsub(b.PubSub, path+".pubsub")
	}
	if b.File != nil {
		l.check(b.File.Path != "", path+".file.path", "not given; name the file")
	}
	if b.Webhook != nil {
		l.webhook(b.Webhook, path+".http")
	}
	if b.Redis != nil {
		l.redis(b.Redis, path+".redis")
	}
	if b.RabbitMQ != nil {
		l.rabbitmq(b.RabbitMQ, path+".rabbitmq")
	}
	if b.GRPC != nil {
		l.grpc(b.GRPC, path+".grpc")
	}
}

func (l *loader) kafka(k *Kafka, path string) {
	l.check(len(k.Brokers) > 0, path+".brokers", "none is given; name one broker or more, for example [\"127.0.0.1:9092\"]")
	for i, broker := range k.Brokers {
		l.address(element(path+".brokers", i), broker, "127.0.0.1:9092")
	}
	l.template(path+".topic", k.Topic, "topic", "event_type", "aggregate_type")
	l.tls(k.TLS, path+".tls")
	l.sasl(k.SASL, k.TLS.Enabled, path+".sasl")
	l.advise(k.ExactlyOnce || k.TransactionalID == "", path+".transactional_id", "has no effect, since exactly_once is false")
	l.advise(k.ExactlyOnce || k.CursorTopic == "", path+".cursor_topic", "has no effect, since exactly_once is false")
	standard := DefaultKafka()
	l.advise(k.CreateTopics || k.Partitions == standard.Partitions, path+".partitions", "has no effect, since create_topics is false")
	l.advise(k.CreateTopics || k.ReplicationFactor == standard.ReplicationFactor, path+".replication_factor", "has no effect, since create_topics is false")
}

// maxExactlyOnce bounds what an exactly-once destination has in flight: each transaction names what isn't settled,
// in a record of at most 1 MB.
const maxExactlyOnce = 24_000

func (l *loader) exactlyOnce(d *Destination, path string) {
	if k := d.Broker.Kafka; k == nil || !k.ExactlyOnce {
		return
	}
	l.check(d.Source == nil, path+".broker.kafka.exactly_once", "not possible with a source of its own: no strategy for such a table notes everything that was delivered, offsets neither, which stay before a message that waits; leave one of the two out")
	l.check(d.Delivery.MaxInFlight <= maxExactlyOnce, path+".delivery.max_in_flight",
		"%d is too large with exactly_once; the most is %d", d.Delivery.MaxInFlight, maxExactlyOnce)
}

func (l *loader) nats(n *NATS, path string) {
	for i, server := range strings.Split(n.URL.Text(), ",") {
		complaint := natsServer(strings.TrimSpace(server))
		l.check(complaint == "", path+".url", "server %d: %s", i+1, complaint)
	}
	l.template(path+".subject", n.Subject, "topic", "key", "event_type", "aggregate_type", "aggregate_id")
	l.check(!strings.ContainsAny(n.Subject, " \t\r\n*>"), path+".subject", "%q has spaces or wildcards in it", n.Subject)
	l.check(!strings.ContainsAny(n.Stream, " \t\r\n.*>/\\"), path+".stream", "%q can't be the name of a stream; leave out spaces, dots, wildcards and slashes", n.Stream)
	l.check(n.Recall == 0 || n.Stream != "", path+".stream", "not given, but recall is")
	l.check(!n.CreateStream || n.Stream != "", path+".stream", "not given, but create_stream is true")
	if n.CreateStream {
		l.check(len(n.StreamSubjects) > 0 || !strings.HasPrefix(n.Subject, "{"), path+".stream_subjects",
			"not given, and they don't follow from the subject %q; name them, for example [\"orders.>\"]", n.Subject)
	}
	for i, s := range n.StreamSubjects {
		l.check(s != "" && !strings.ContainsAny(s, " \t\r\n{}"), element(path+".stream_subjects", i), "%q is not a subject such as orders.>", s)
	}
	l.advise(n.CreateStream || len(n.StreamSubjects) == 0, path+".stream_subjects", "has no effect, since create_stream is false")
	l.advise(n.CreateStream || n.Replicas == DefaultNATS().Replicas, path+".replicas", "has no effect, since create_stream is false")

	var methods []string
	for _, method := range []struct {
		name  string
		given bool
	}{{"credentials_file", n.CredentialsFile != ""}, {"token", !n.Token.Empty()}, {"user", n.User != ""}} {
		if method.given {
			methods = append(methods, method.name)
		}
	}
	l.check(len(methods) < 2, path, "%s are given; keep one way to authenticate", strings.Join(methods, " and "))
	l.check(n.Password.Empty() || n.User != "", path+".user", "not given, but a password is")
	l.readable(path+".credentials_file", n.CredentialsFile)
	l.tls(n.TLS, path+".tls")
}

// natsServer checks one URL. The complaint never repeats any of it.
func natsServer(s string) string {
	if s == "" {
		return "empty; expected a URL such as nats://127.0.0.1:4222"
	}
	if !strings.Contains(s, "://") {
		s = "nats://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" {
		return "not a valid URL such as nats://127.0.0.1:4222; special characters in a user name or password must be percent-encoded"
	}
	if !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
		return "the URL begins with none of nats://, tls://, ws:// and wss://"
	}
	return ""
}

func (l *loader) tls(t TLS, path string) {
	l.check(t.CertFile != "" || t.KeyFile == "", path+".cert_file", "not given, but key_file is")
	l.check(t.KeyFile != "" || t.CertFile == "", path+".key_file", "not given, but cert_file is")
	off := t
	off.Enabled = false
	if !t.Enabled {
		l.advise(off == TLS{}, path, "has no effect, since tls.enabled is false")
		return
	}
	l.advise(!t.InsecureSkipVerify, path+".insecure_skip_verify", "any server is trusted, whatever its certificate")
	l.readable(path+".ca_file", t.CAFile)
	l.readable(path+".cert_file", t.CertFile)
	l.readable(path+".key_file", t.KeyFile)
}

func (l *loader) readable(path, file string) {
	if file == "" {
		return
	}
	f, err := os.Open(file)
	if err == nil {
		_ = f.Close()
	}
	l.check(err == nil, path, "can't read %q: %v", file, cause(err))
}

func (l *loader) address(path, address, example string) {
	host, port, err := net.SplitHostPort(address)
	number, portErr := strconv.ParseUint(port, 10, 16)
	l.check(err == nil && portErr == nil && !strings.ContainsAny(host, "/@ "), path, "%q is not an address such as %s", address, example)
	if !strings.HasSuffix(path, ".listen") {
		l.check(host != "" && number > 0, path, "%q lacks a host or a port, as in %s", address, example)
	}
}

var templateField = regexp.MustCompile(`\{([^{}]*)\}`)

// template checks that the text has no braces but those of the fields.
func (l *loader) template(path, text string, fields ...string) {
	l.check(text != "", path, "empty; {topic} is the usual template")
	for _, m := range templateField.FindAllStringSubmatch(text, -1) {
		hint := "possible are {" + strings.Join(fields, "}, {") + "}"
		if near, found := nearest(m[1], fields); found {
			hint = "did you mean {" + near + "}?"
		}
		l.check(slices.Contains(fields, m[1]), path, "%q has no field {%s}; %s", text, m[1], hint)
	}
	l.check(!strings.ContainsAny(templateField.ReplaceAllString(text, ""), "{}"), path, "%q has a brace without its counterpart", text)
}
