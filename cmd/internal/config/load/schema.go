package load

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/internal/value"
)

// Schema returns the JSON schema of the file, for editors. It knows what a
// single value may be; that values fit each other is for [Config] to check.
func Schema() ([]byte, error) {
	text := func(pattern string) *jsonschema.Schema {
		return &jsonschema.Schema{Type: "string", Pattern: pattern}
	}
	schema, err := jsonschema.For[config.Config](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		value.DurationType: text(`^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$|` + variable),
		scalar.SizeType: {AnyOf: []*jsonschema.Schema{
			{Type: "integer", Minimum: jsonschema.Ptr(0.0)},
			text(`^[0-9]+ *([kKMG]?B|[KMG]iB)?$|` + variable),
		}},
		scalar.SecretType: text(""),
		scalar.URLType:    text(""),
	}})
	if err != nil {
		return nil, fmt.Errorf("schema of the configuration: %w", err)
	}
	schema.Schema = "https://json-schema.org/draft/2020-12/schema"
	schema.Title = "Configuration of the outbox relay"
	annotate(schema, fields.New(reflect.TypeFor[config.Config]()), "")
	entry := schema.Properties["databases"].Items.Properties
	for name := range entry {
		if name != "name" {
			entry[name] = &jsonschema.Schema{Ref: "#/properties/" + name}
		}
	}
	source := schema.Properties["discover"].Items.Properties
	for _, name := range []string{"retention", "dormant", "dormant_poll", "notify", "quota", "destinations"} {
		source[name] = &jsonschema.Schema{Ref: "#/properties/" + name}
	}
	encoded, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("schema of the configuration: %w", err)
	}
	return append(encoded, '\n'), nil
}

// variable is the pattern of a text that is known only once its variables are.
const variable = `\$\{`

// annotate adds defaults and constraints to the schema of a value. What is left
// out, or null, has its default.
func annotate(schema *jsonschema.Schema, v reflect.Value, tag reflect.StructTag) {
	t := v.Type()
	if t.Kind() == reflect.Pointer {
		annotate(schema, fields.New(t.Elem()), tag)
		return
	}
	switch {
	case t.Kind() == reflect.Struct && !scalar.IsSecret(t):
		schema.Type, schema.Types, schema.Required = "", []string{"null", "object"}, nil
		if t == reflect.TypeFor[config.Destination]() {
			schema.Required = []string{"name"}
		}
		if t == reflect.TypeFor[brokers.Broker]() {
			schema.MinProperties, schema.MaxProperties = jsonschema.Ptr(1), jsonschema.Ptr(1)
		}
		for _, f := range reflect.VisibleFields(t) {
			annotate(schema.Properties[fields.Key(f)], v.FieldByIndex(f.Index), f.Tag)
		}
	case t.Kind() == reflect.Slice:
		schema.Type, schema.Types = "", []string{"null", "array"}
		annotate(schema.Items, fields.New(t.Elem()), "")
	default:
		one := jsonschema.Schema{Type: schema.Type, Pattern: schema.Pattern, AnyOf: schema.AnyOf}
		bounds := value.BoundsOf(tag)
		for _, choice := range bounds.Enum {
			one.Enum = append(one.Enum, choice)
		}
		if n, err := strconv.ParseFloat(bounds.Min, 64); err == nil && t != scalar.SizeType && t != value.DurationType {
			one.Minimum = &n
		}
		if n, err := strconv.ParseFloat(bounds.Max, 64); err == nil {
			one.Maximum = &n
		}
		schema.Type, schema.Pattern, schema.AnyOf = "", "", append(one.AnyOf, &jsonschema.Schema{Type: "null"})
		if one.Type != "" {
			if len(one.Enum) > 0 || !scalar.IsText(t) && t != value.DurationType {
				schema.AnyOf = append(schema.AnyOf, &jsonschema.Schema{Type: "string", Pattern: variable})
			}
			one.AnyOf = nil
			schema.AnyOf = append([]*jsonschema.Schema{&one}, schema.AnyOf...)
		}
		if len(schema.AnyOf) == 2 && scalar.IsText(t) {
			schema.AnyOf, schema.Types = nil, []string{"null", "string"}
		}
		if tag != "" && !v.IsZero() || t.Kind() == reflect.Bool {
			schema.Default = defaultOf(v)
		}
	}
}

func defaultOf(v reflect.Value) json.RawMessage {
	plain := v.Interface()
	if v.Type() == value.DurationType {
		plain = written(v)
	}
	b, err := json.Marshal(plain)
	if err != nil {
		panic(fmt.Sprintf("config: default of type %s: %v", v.Type(), err)) // only basic types occur
	}
	return b
}
