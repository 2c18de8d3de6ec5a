package debezium

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/magiconair/properties"
)

// reader hands out settings by the names that Kafka Connect has for them. Each is taken once; what is left has no
// counterpart.
type reader struct {
	left    map[string]string
	server  bool   // of Debezium Server, and not of Kafka Connect
	name    string // of the connector
	router  string // what the event router's settings begin with
	notes   []string
	aliases map[string]string // by the name that is asked for, the name in the file
}

// prefixes are those of Debezium Server, and what they are in Kafka Connect. A format without a part is that of all.
var prefixes = []struct{ theirs, ours string }{
	{"debezium.source.", ""}, {"debezium.transforms.", "transforms."}, {"debezium.transforms", "transforms"},
	{"debezium.predicates", "predicates"}, {"debezium.sink.", "sink."},
	{"debezium.format.key", "key.converter"}, {"debezium.format.value", "value.converter"}, {"debezium.format.header", "header.converter"},
	{"debezium.format.", "all.converter."},
}

func parse(text []byte) (*reader, error) {
	r := &reader{left: make(map[string]string), aliases: make(map[string]string)}
	trimmed := bytes.TrimSpace(text)
	switch {
	case bytes.HasPrefix(trimmed, []byte("{")):
		return r, r.connector(trimmed)
	case strimzi.Match(trimmed):
		return r, r.resource(trimmed)
	}
	return r, r.properties(text)
}

// connector reads a connector as Kafka Connect's API takes and returns it: with its name, or its settings alone.
func (r *reader) connector(text []byte) error {
	var all map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&all); err != nil {
		return fmt.Errorf("the connector is no JSON object of settings: %w", err)
	}
	if nested, given := all["config"]; given {
		settings, is := nested.(map[string]any)
		if !is {
			return errors.New("the connector is no JSON object of settings: its config is none")
		}
		r.name, _ = all["name"].(string)
		all = settings
	}
	r.connect(all)
	return nil
}

// A connector as Strimzi's operator has it.
var strimzi = regexp.MustCompile(`(?m)^kind:\s*"?KafkaConnector"?\s*$`)

func (r *reader) resource(text []byte) error {
	var of struct {
		Metadata struct {
			Name string `yaml:"name"`
		} `yaml:"metadata"`
		Spec struct {
			Class  string         `yaml:"class"`
			Config map[string]any `yaml:"config"`
		} `yaml:"spec"`
	}
	if err := yaml.Unmarshal(text, &of); err != nil {
		return fmt.Errorf("the KafkaConnector can't be read: %w", err)
	}
	r.name = of.Metadata.Name
	r.connect(of.Spec.Config)
	if of.Spec.Class != "" {
		r.left["connector.class"] = of.Spec.Class
	}
	return nil
}

// provided is what a provider of Kafka Connect looks up, as in ${file:/etc/db.properties:user} and ${env:DB_USER}.
var provided = regexp.MustCompile(`\$\{([A-Za-z0-9_-]+):([^{}]*)\}`)

// connect takes the settings of a connector. A variable of the environment stays one. What another provider looks up
// becomes a variable, too, named like the setting: the relay has no such providers.
func (r *reader) connect(settings map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if settings[key] == nil {
			continue
		}
		value := strings.TrimSpace(fmt.Sprint(settings[key]))
		if m := provided.FindStringSubmatch(value); m != nil && !secret.MatchString(key) {
			name := variable(key)
			if m[1] == "env" {
				name = m[2][strings.LastIndexByte(m[2], ':')+1:]
			} else {
				r.note("%s is looked up by the provider %s, which the relay doesn't have. Give it as the variable %s, or write it "+
					"into the file.", key, m[1], name)
			}
			value = provided.ReplaceAllLiteralString(value, "${"+name+"}")
		}
		r.left[key] = value
	}
}

// secret is what is not copied, wherever it comes from.
var secret = regexp.MustCompile(`password|jaas`)

var notInVariables = regexp.MustCompile(`[^A-Z0-9]+`)

// variable is a setting's name as that of a variable.
func variable(setting string) string {
	return strings.Trim(notInVariables.ReplaceAllString(strings.ToUpper(setting), "_"), "_")
}

func (r *reader) properties(text []byte) error {
	r.server = true
	loader := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
	all, err := loader.LoadBytes(text)
	if err != nil {
		return fmt.Errorf("the properties can't be read: %w", err)
	}
	for key, value := range all.Map() {
		key = strings.TrimPrefix(key, "%prod.")
		if strings.HasPrefix(key, "DEBEZIUM_") {
			return fmt.Errorf("%s is a variable of the environment: write the settings as properties, such as "+
				"debezium.source.table.include.list=public.outboxevent", key)
		}
		if strings.HasPrefix(key, "quarkus.debezium-outbox.") {
			return fmt.Errorf("%s is a setting of the Quarkus extension, which writes the rows. Convert the file of the connector "+
				"that reads them; names of columns that the extension was given stand there as table.field.event.*", key)
		}
		if strings.HasPrefix(key, "quarkus.") {
			continue // of the process
		}
		name := key
		for _, p := range prefixes {
			if rest, found := strings.CutPrefix(key, p.theirs); found {
				name = p.ours + rest
				break
			}
		}
		if name == key && converterOfConnect.MatchString(key) {
			r.note("%s is a setting of Kafka Connect, which Debezium Server doesn't read: its format is debezium.format.*.", key)
			continue
		}
		r.left[name], r.aliases[name] = strings.TrimSpace(value), key
	}
	slices.Sort(r.notes)
	return nil
}

var converterOfConnect = regexp.MustCompile(`^(key|value|header)\.converter`)

func (r *reader) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// missing is what stands in the file in place of what can't be known: a variable. The relay doesn't start until it is
// set or replaced, so nothing is read from, or sent to, a place that was guessed. why says what it is.
func (r *reader) missing(variable, why string, args ...any) string {
	r.note(why+" Give it as the variable %s, or write it into the file in place of that.", append(args, variable)...)
	return "${" + variable + "}"
}

// take returns a setting, or other if it isn't there.
func (r *reader) take(name, other string) string {
	value, found := r.left[name]
	delete(r.left, name)
	if !found || value == "" {
		return other
	}
	return value
}

// theirs is a setting's name in the file.
func (r *reader) theirs(name string) string {
	if key, found := r.aliases[name]; found {
		return key
	}
	return name
}
