package load

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/internal/value"
)

// environment applies the OUTBOX_* variables. One that is no setting is no
// fault, since others may use the prefix: it is a warning. Kubernetes sets
// OUTBOX_PORT and the like for a service that is named outbox; these are not
// named.
func (l *loader) environment() {
	e := &environment{loader: l, known: make(map[string]bool)}
	e.apply(l.config, "", fields.VariablePrefix)
	known := slices.Sorted(maps.Keys(e.known))
	for _, name := range slices.Sorted(maps.Keys(l.environ)) {
		if !strings.HasPrefix(name, fields.VariablePrefix+"_") || e.known[name] {
			continue
		}
		if meant := brokerVariable(name); meant != "" {
			l.Warn("the environment variable %s is not used: that broker's name here is %s", name, meant)
		} else if near, found := value.Nearest(name, known); found {
			l.Warn("the environment variable %s is not used; did you mean %s?", name, near)
		} else if !ofOthers.MatchString(name) {
			l.Warn("the environment variable %s is not used: there is no such setting (outbox config schema has all; "+
				"variables have their paths, as in OUTBOX_DESTINATIONS_0_RATE)", name)
		}
	}
}

var ofBroker = regexp.MustCompile(`_BROKER_([A-Z0-9]+)(_[A-Z0-9]+)?(_|$)`)

// brokerVariable is the name, in this configuration, of the broker that a variable names otherwise; "" for none.
func brokerVariable(name string) string {
	m := ofBroker.FindStringSubmatch(name)
	if m == nil || slices.Contains(fields.Keys(reflect.TypeFor[brokers.Broker]()), strings.ToLower(m[1])) {
		return "" // something in its section is misspelt
	}
	return cmp.Or(nameHere(m[1]+m[2]), nameHere(m[1]))
}

// ofOthers are variables of the commands, of tests, and those that Kubernetes makes for services.
var ofOthers = regexp.MustCompile(`^OUTBOX_(CONFIG|SERVER(_USER|_PASSWORD|_TOKEN|_TOKEN_FILE)?|TEST_.*|` +
	`(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_[0-9]+_(TCP|UDP)(_(ADDR|PORT|PROTO))?))$`)

type environment struct {
	*loader
	known map[string]bool // names of variables that can be set
}

// apply sets what has a variable in v and below, and returns how many it found.
func (e *environment) apply(v reflect.Value, path, name string) int {
	if v.Kind() == reflect.Pointer || scalar.Is(v.Type()) || v.Kind() == reflect.Slice && scalar.Is(v.Type().Elem()) {
		e.known[name] = true
	}
	text, set := e.environ[name]
	origin := findings.Origin{Layer: findings.FromEnvironment, Name: name}
	switch {
	case scalar.Is(v.Type()):
		if !set {
			return 0
		}
		e.set(v, text, path, origin)
		return 1
	case v.Kind() == reflect.Pointer:
		count := 0
		if set {
			e.yaml(text, v, path, origin)
			count++
		}
		if !v.IsNil() {
			return count + e.apply(v.Elem(), path, name)
		}
		// Setting something of a broker chooses it.
		p := reflect.New(v.Type().Elem())
		p.Elem().Set(fields.New(v.Type().Elem()))
		if count += e.apply(p.Elem(), path, name); count > 0 && v.IsNil() {
			v.Set(p)
		}
		return count
	case v.Kind() == reflect.Slice && scalar.Is(v.Type().Elem()):
		if !set {
			return 0
		}
		e.list(v, text, path, origin)
		return 1
	case v.Kind() == reflect.Slice:
		count := 0
		for i := range v.Len() {
			count += e.apply(v.Index(i), fields.Element(path, i), fmt.Sprintf("%s_%d", name, i))
		}
		for {
			i := v.Len()
			next := fields.New(v.Type().Elem())
			found := e.apply(next, fields.Element(path, i), fmt.Sprintf("%s_%d", name, i))
			if found == 0 {
				return count
			}
			v.Set(reflect.Append(v, next))
			e.Origins[fields.Element(path, i)] = findings.Origin{Layer: findings.FromEnvironment,
				Name: e.first(fmt.Sprintf("%s_%d", name, i))}
			count += found
		}
	default:
		count := 0
		for _, f := range reflect.VisibleFields(v.Type()) {
			count += e.apply(v.FieldByIndex(f.Index), fields.Join(path, fields.Key(f)), name+"_"+strings.ToUpper(fields.Key(f)))
		}
		return count
	}
}

// first is the first variable that sets something of what has the name.
func (e *environment) first(name string) string {
	for _, variable := range slices.Sorted(maps.Keys(e.environ)) {
		if variable == name || strings.HasPrefix(variable, name+"_") {
			return variable
		}
	}
	return name
}
