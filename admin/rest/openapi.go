package rest

import (
	"encoding"
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/verbs"
)

// object is one of JSON.
type object = map[string]any

// Describe returns the description of the verbs as an OpenAPI document, version 3.1.
func Describe(table []verbs.Verb) map[string]any {
	s := schemas{}
	problem := object{"description": "Refused, or failed: detail says why, and what to do.",
		"content": object{problemType: object{"schema": s.schemaOf(reflect.TypeFor[Problem]())}}}
	paths := object{
		"/api/v1/openapi.json": object{"get": object{
			"operationId": "openapi", "summary": "This description", "tags": []string{"viewer"},
			"responses": object{"200": content("The description.", "application/json", object{"type": "object"}), "default": problem},
		}},
		"/api/v1/status/stream": object{"get": object{
			"operationId": "status_stream", "summary": "The status, again and again", "tags": []string{"viewer"},
			"description": "Server-sent events: \"status\" has what /api/v1/status answers, \"problem\" a problem. A " +
				"slow client gets the newest.",
			"responses": object{"200": content("The events.", "text/event-stream", object{}), "default": problem},
		}},
	}
	for _, v := range table {
		op := object{
			"operationId": strings.ReplaceAll(v.Name, " ", "_"), "summary": v.Short, "tags": []string{string(v.Role)},
			"responses": object{"200": content("The result.", "application/json", s.schemaOf(v.Result())), "default": problem},
		}
		if v.Long != "" {
			op["description"] = v.Long
		}
		if v.Method() == http.MethodGet {
			op["parameters"] = query(v)
		} else {
			op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": body(v)}}}
		}
		paths[v.Path()] = object{strings.ToLower(v.Method()): op}
	}
	return object{
		"openapi": "3.1.0",
		"info": object{"title": "pgoutbox", "version": "1", "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
			"description": "What an operator may ask (GET) and do (POST). A viewer may ask; an operator may do both."},
		"security": []object{{"basic": []string{}}, {"bearer": []string{}}, {}},
		"paths":    paths,
		"components": object{"schemas": s, "securitySchemes": object{"basic": object{"type": "http", "scheme": "basic"},
			"bearer": object{"type": "http", "scheme": "bearer"}}},
	}
}

func content(description, kind string, schema object) object {
	return object{"description": description, "content": object{kind: object{"schema": schema}}}
}

// query describes the parameters of a GET.
func query(v verbs.Verb) []object {
	list := []object{}
	for _, p := range v.Params {
		list = append(list, object{"name": p.Name, "in": "query", "required": p.Required, "description": help(p), "schema": param(p)})
	}
	return list
}

// body describes the parameters of a POST.
func body(v verbs.Verb) object {
	properties, required := object{}, []string{}
	for _, p := range v.Params {
		one := param(p)
		one["description"] = help(p)
		properties[p.Name] = one
		if p.Required {
			required = append(required, p.Name)
		}
	}
	o := object{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		o["required"] = required
	}
	return o
}

func help(p verbs.Param) string {
	if p.Role == verbs.Operator {
		return p.Help + " (for operators)"
	}
	return p.Help
}

// param is the schema of a parameter.
func param(p verbs.Param) object {
	o := object{}
	switch {
	case p.Type == reflect.TypeFor[verbs.Duration]():
		o = object{"type": "string", "minLength": 1, "pattern": verbs.DurationPattern, "examples": []string{"1h30m"}}
	case p.Type == reflect.TypeFor[time.Time]():
		o = object{"type": "string", "anyOf": []object{{"format": "date-time"}, {"minLength": 1, "pattern": verbs.DurationPattern}},
			"examples": []string{"2026-05-01T12:00:00Z", "1h30m"}}
	case p.Repeats():
		o = object{"type": "array", "items": object{"type": "string", "minLength": 1}}
		if p.Required {
			o["minItems"] = 1
		}
	case p.Type.Kind() == reflect.Bool:
		o["type"] = "boolean"
	case p.Type.Kind() == reflect.String:
		o["type"] = "string"
		if len(p.Enum) > 0 {
			o["enum"] = p.Enum
		} else if p.Required {
			o["minLength"] = 1
		}
	default:
		o["type"], o["format"] = "integer", "int64"
		for name, bound := range map[string]string{"minimum": p.Min, "maximum": p.Max, "default": p.Default} {
			if n, err := strconv.ParseInt(bound, 10, 64); err == nil {
				o[name] = n
			}
		}
	}
	return o
}

// schemas are the structs of results by name.
type schemas map[string]object

// schemaOf returns the schema of a type as package json writes it.
func (s schemas) schemaOf(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[json.RawMessage]():
		return object{}
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return object{"anyOf": []object{s.schemaOf(t.Elem()), {"type": "null"}}}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "contentEncoding": "base64"}
		}
		return object{"type": []string{"array", "null"}, "items": s.schemaOf(t.Elem())}
	case reflect.Map:
		return object{"type": []string{"object", "null"}, "additionalProperties": s.schemaOf(t.Elem())}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Interface:
		return object{}
	case reflect.Struct:
		s.add(t)
		return object{"$ref": "#/components/schemas/" + t.Name()}
	}
	return object{"type": "integer", "format": "int64"}
}

func (s schemas) add(t reflect.Type) {
	if s[t.Name()] != nil {
		return
	}
	properties, required := object{}, []string{}
	o := object{"type": "object", "properties": properties}
	s[t.Name()] = o // before its fields: one may be of the type itself
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		properties[name] = s.schemaOf(f.Type)
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	if len(required) > 0 {
		o["required"] = required
	}
}
