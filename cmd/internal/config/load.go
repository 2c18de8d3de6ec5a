package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Input says what to read.
type Input struct {
	// File is the path of the YAML file. Empty: none.
	File string
	// Environ holds NAME=value pairs, as os.Environ returns them. References in
	// the file are looked up there too.
	Environ []string
	// Overrides maps paths to values, such as "database.url" or
	// "destinations.0.delivery.batch". They stem from flags. A list of texts is
	// separated by commas or is a YAML list; a section is YAML, such as {}.
	Overrides map[string]string
	// DatabaseURL is the URL of the database over all layers, unless there are several.
	DatabaseURL string
	// Unopened leaves the brokers unopened, so that what only their adapters find isn't found: for commands that need
	// nothing but the database.
	Unopened bool
	// Hostname is what Name is derived from by default. Empty: os.Hostname.
	Hostname string
}

// Loaded is a valid configuration and where it comes from.
type Loaded struct {
	Config Config
	// Warnings are about what is allowed and probably not meant.
	Warnings []string

	origins map[string]Origin
}

// Load reads all layers and validates the result. The error is of type
// [Faults] and names everything that is wrong at once.
func Load(in Input) (*Loaded, error) {
	l := &loader{
		report:   newReport(),
		config:   newDefault(reflect.TypeFor[Config]()),
		environ:  make(map[string]string),
		unopened: in.Unopened,
	}
	for _, pair := range in.Environ {
		if name, value, found := strings.Cut(pair, "="); found {
			l.environ[name] = value
		}
	}
	l.file(in.File, l.config, "")
	l.environment()
	l.overrides(in.Overrides)
	config := l.config.Addr().Interface().(*Config)
	l.folder(config, in.File)
	if in.DatabaseURL != "" && !config.Several() {
		l.set(reflect.ValueOf(&config.Database.URL).Elem(), in.DatabaseURL, "database.url", Origin{Layer: FromFlag, Name: "DATABASE_URL"})
	}
	if l.unreadable {
		// What is missing can't be known.
		l.faults.sort()
		return nil, l.faults
	}
	l.secretFiles()
	l.inheritance(config)
	if config.Name == "" {
		config.Name = defaultName(in.Hostname)
	}
	l.validate(config)
	if len(l.faults) > 0 {
		l.faults.sort()
		return nil, l.faults
	}
	return &Loaded{Config: *config, Warnings: l.warnings, origins: l.origins}, nil
}

// loader holds the state of one call of Load.
type loader struct {
	*report
	config   reflect.Value // of Config
	environ  map[string]string
	unopened bool
	// unreadable is set when the file, or YAML elsewhere, could not be parsed.
	unreadable bool
}

func (l *loader) lookup(name string) (string, bool) {
	value, set := l.environ[name]
	return value, set
}

// file reads a file into the setting at a path.
func (l *loader) file(path string, into reflect.Value, at string) {
	if path == "" {
		return
	}
	origin := Origin{Layer: FromFile, Name: path}
	text, err := os.ReadFile(path)
	if err != nil {
		l.unreadable = true
		l.fault(origin, "", "can't read the file: %v", cause(err))
		return
	}
	d := &decoder{loader: l, origin: origin}
	d.document(text, into, at)
}

// secretFiles reads what the _file twins of secrets name.
func (l *loader) secretFiles() {
	walk(l.config, "", func(s setting) {
		if !isSecret(s.value.Type()) {
			return
		}
		twin, found := s.sibling("_file")
		if !found {
			return
		}
		own, other := l.origins[s.path], l.origins[twin.path]
		hasOwn, hasOther := textOf(s.value) != "" && own.Layer > FromDefault, twin.value.String() != ""
		if l.rejected[s.path] || l.rejected[twin.path] {
			return
		}
		switch {
		case hasOwn && hasOther && own.Layer == other.Layer:
			l.fault(other, twin.path, "%s is given as well; keep one of them", s.name())
			l.rejected[s.path] = true
			return
		case !hasOther:
			return
		case own.Layer > other.Layer:
			// Set to nothing counts: that takes the lower layer's file away.
			twin.value.SetString("")
			delete(l.origins, twin.path)
			return
		}
		text, err := os.ReadFile(twin.value.String())
		secret := strings.TrimRight(string(text), "\r\n")
		switch {
		case err != nil:
			l.fault(other, twin.path, "can't read %q: %v", twin.value.String(), cause(err))
			l.rejected[s.path] = true
		case secret == "":
			l.fault(other, twin.path, "the file %q is empty", twin.value.String())
			l.rejected[s.path] = true
		default:
			setTextOf(s.value, secret)
			l.origins[s.path] = other
		}
	})
}

// cause strips the operation and the path, which the message says better.
func cause(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}

func defaultName(hostname string) string {
	if hostname == "" {
		hostname, _ = os.Hostname()
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '-'
	}, strings.ToLower(hostname))
	if name = strings.Trim(name, "-_"); name == "" {
		return "relay"
	}
	return name[:min(len(name), maxName)]
}

// setting is one value in the tree of the configuration.
type setting struct {
	path   string
	value  reflect.Value
	field  reflect.StructField // of which it is the value; zero for an element
	parent reflect.Value       // the struct with that field
}

func (s setting) name() string { return key(s.field) }

// sibling returns the setting of the same section whose name has the suffix.
func (s setting) sibling(suffix string) (setting, bool) {
	if !s.parent.IsValid() {
		return setting{}, false
	}
	f, found := fieldByKey(s.parent.Type(), s.name()+suffix)
	if !found {
		return setting{}, false
	}
	return setting{path: s.path + suffix, value: s.parent.FieldByIndex(f.Index), field: f, parent: s.parent}, true
}

// walk visits every value in the order of the format, a section before its
// settings. Sections that are nil are not entered.
func walk(v reflect.Value, path string, visit func(setting)) {
	walkSetting(setting{path: path, value: v}, visit)
}

func walkSetting(s setting, visit func(setting)) {
	v := s.value
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
		s.value = v
	}
	visit(s)
	switch {
	case isScalar(v.Type()):
	case v.Kind() == reflect.Struct:
		for _, f := range reflect.VisibleFields(v.Type()) {
			walkSetting(setting{path: join(s.path, key(f)), value: v.FieldByIndex(f.Index), field: f, parent: v}, visit)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			walkSetting(setting{path: element(s.path, i), value: v.Index(i)}, visit)
		}
	}
}

// key is the name of a field in the format.
func key(f reflect.StructField) string { return f.Tag.Get("json") }

func fieldByKey(t reflect.Type, name string) (reflect.StructField, bool) {
	for _, f := range reflect.VisibleFields(t) {
		if key(f) == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

func keys(t reflect.Type) []string {
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		names = append(names, key(f))
	}
	return names
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// unknown means that a section has no such key, and which one may be meant.
func unknown(t reflect.Type, name string) string {
	names := keys(t)
	if t == reflect.TypeFor[Broker]() {
		if meant := nameHere(name); meant != "" {
			return "unknown key; its name here is " + meant
		}
	}
	if near, found := nearest(name, names); found {
		return fmt.Sprintf("unknown key; did you mean %q?", near)
	}
	if places := elsewhere(reflect.TypeFor[Config](), "", name); len(places) > 0 && len(places) < 4 {
		return "unknown key here; it belongs to " + strings.Join(places, " or ")
	}
	if len(names) == 0 {
		return "unknown key; nothing can be set here"
	}
	return "unknown key; possible here: " + strings.Join(names, ", ")
}

// otherNames are what brokers, and ways to them, are called elsewhere, in small letters and without - and _.
var otherNames = map[string]string{
	"webhook": "http", "webhooks": "http", "https": "http", "rest": "http", "url": "http", "callback": "http",
	"amqp": "rabbitmq", "amqps": "rabbitmq", "rabbit": "rabbitmq", "lavinmq": "rabbitmq",
	"jetstream": "nats", "natsjetstream": "nats", "natsio": "nats",
	"redpanda": "kafka", "msk": "kafka", "confluent": "kafka", "apachekafka": "kafka",
	"eventhub": "kafka (Event Hubs speaks its protocol)", "eventhubs": "kafka (Event Hubs speaks its protocol)",
	"azure":  "kafka (Event Hubs speaks its protocol)",
	"valkey": "redis", "redisstream": "redis", "redisstreams": "redis", "streams": "redis",
	"aws": "sqs or sns", "amazon": "sqs or sns", "localstack": "sqs or sns", "awssqs": "sqs", "amazonsqs": "sqs",
	"elasticmq": "sqs", "awssns": "sns", "amazonsns": "sns",
	"gcp": "pubsub", "google": "pubsub", "gcppubsub": "pubsub", "googlepubsub": "pubsub", "cloudpubsub": "pubsub",
	"console": "stdout", "log": "stdout", "jsonl": "file", "json": "file", "ndjson": "file",
	"s3": "archive (in a local directory)", "gcs": "archive (in a local directory)",
}

// nameHere is the name, in this configuration, of a broker that is called otherwise elsewhere; "" for none.
func nameHere(name string) string {
	name = strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(name))
	if slices.Contains(keys(reflect.TypeFor[Broker]()), name) {
		return name
	}
	return otherNames[name]
}

// elsewhere returns the sections that have a key of that name.
func elsewhere(t reflect.Type, path, name string) []string {
	switch {
	case isScalar(t):
	case t.Kind() == reflect.Pointer:
		return elsewhere(t.Elem(), path, name)
	case t.Kind() == reflect.Slice:
		return elsewhere(t.Elem(), path+"[]", name)
	case t.Kind() == reflect.Struct:
		var places []string
		if slices.Contains(keys(t), name) {
			if path == "" {
				places = append(places, "the top level")
			} else {
				places = append(places, path)
			}
		}
		for _, f := range reflect.VisibleFields(t) {
			if f.Type == reflect.TypeFor[[]Entry]() {
				continue // what stands there stands at the top level, too
			}
			places = append(places, elsewhere(f.Type, join(path, key(f)), name)...)
		}
		return places
	}
	return nil
}
