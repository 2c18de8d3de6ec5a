package format

import (
	"bytes"
	"encoding/json"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Debezium's event router expands a JSON payload in these steps: it derives a Connect schema from the document
// (JsonSchemaData in debezium-core), puts the document into it, and JsonConverter writes the result. In these steps,
// null members and empty arrays are lost, numbers that are not integers become doubles, and a member that only some
// objects of an array have is null in the others.

// node is a value as it is written.
type node struct {
	schema   *schema
	null     bool
	text     []byte  // of a string; of another scalar, its written form
	elements []*node // of an array
	members  []*node // of a struct, as schema.fields
}

// schema is a Connect schema. All are optional.
type schema struct {
	kind   string // string, boolean, int32, int64, double, array, struct
	name   string // of a struct; empty: it has none
	items  *schema
	fields []structField
}

type structField struct {
	name string
	*schema
}

// value is a parsed JSON value that keeps the order of members.
type value struct {
	kind     byte // one of '{' '[' '"' 't' '0' 'n'
	text     string
	boolean  bool
	elements []*value
	names    []string
	members  map[string]*value
}

// maxDepth bounds the nesting of an expanded document, as in Jackson.
const maxDepth = 1000

// expand returns the expansion of a payload. It returns nil if the payload is sent as a string: because it is not a
// JSON object or array, or because the event router can't expand something in it.
func expand(payload []byte) *node {
	if len(payload) == 0 || payload[0] != '{' && payload[0] != '[' {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	document, ok := parse(decoder, 0)
	if !ok {
		return nil
	}
	// Text after the document is ignored, as in Jackson.
	s, ok := derive("payload", document)
	if !ok || s == nil {
		return nil
	}
	n, ok := fit(document, s)
	if !ok {
		return nil
	}
	return n
}

func parse(d *json.Decoder, depth int) (*value, bool) {
	token, err := d.Token()
	if err != nil || depth > maxDepth {
		return nil, false
	}
	switch t := token.(type) {
	case nil:
		return &value{kind: 'n'}, true
	case bool:
		return &value{kind: 't', boolean: t}, true
	case string:
		return &value{kind: '"', text: t}, true
	case json.Number:
		return &value{kind: '0', text: t.String()}, true
	case json.Delim:
		v := &value{kind: byte(t)}
		if t == '{' {
			v.members = make(map[string]*value)
		}
		for d.More() {
			name := ""
			if t == '{' {
				token, err := d.Token()
				if err != nil {
					return nil, false
				}
				name = token.(string) // a member's name
			}
			child, ok := parse(d, depth+1)
			if !ok {
				return nil, false
			}
			if t == '[' {
				v.elements = append(v.elements, child)
				continue
			}
			if _, twice := v.members[name]; !twice {
				v.names = append(v.names, name)
			}
			v.members[name] = child
		}
		_, err := d.Token() // the closing one
		return v, err == nil
	}
	return nil, false
}

// derive returns the schema of a value, nil if a member with this value is left out. ok is false if the document can't
// be expanded.
func derive(key string, v *value) (s *schema, ok bool) {
	switch v.kind {
	case '"':
		return &schema{kind: "string"}, true
	case 't':
		return &schema{kind: "boolean"}, true
	case '0':
		return &schema{kind: numberKind(v.text)}, true
	case '[':
		if len(v.elements) == 0 {
			return nil, true
		}
		items, ok := deriveItems(key, v.elements)
		return &schema{kind: "array", items: items}, ok
	case '{':
		s := &schema{kind: "struct", name: key}
		for _, name := range v.names {
			path := name
			if strings.TrimSpace(key) != "" {
				path = key + "." + name
			}
			field, ok := derive(path, v.members[name])
			if !ok {
				return nil, false
			}
			if field != nil && name == "" {
				return nil, false // Connect has no field without a name
			}
			if field != nil {
				s.fields = append(s.fields, structField{name, field})
			}
		}
		return s, true
	}
	return nil, true
}

func numberKind(text string) string {
	if strings.ContainsAny(text, ".eE") {
		return "double"
	}
	switch n, err := strconv.ParseInt(text, 10, 64); {
	case err != nil:
		return "integer" // larger than a long; it can't be a value
	case n == int64(int32(n)):
		return "int32"
	}
	return "int64"
}

// deriveItems returns the schema of an array's elements, which must be of one kind.
func deriveItems(key string, elements []*value) (*schema, bool) {
	var sample *value
	for _, e := range elements {
		if e.kind == 'n' {
			continue
		}
		if sample == nil {
			sample = e
		}
		if e.kind != sample.kind || e.kind == '0' && numberKind(e.text) != numberKind(sample.text) {
			return nil, false
		}
	}
	if sample == nil {
		return nil, false // only nulls
	}
	if sample.kind != '{' {
		items, ok := derive("", sample)
		return items, ok && items != nil
	}
	var merged *schema
	for _, e := range elements {
		if e.kind != '{' {
			continue
		}
		s, ok := derive(key, e)
		if !ok {
			return nil, false
		}
		merged = merge(merged, s)
	}
	return merged, true
}

// merge adds to a struct's schema the fields that only the other struct has.
func merge(left, right *schema) *schema {
	if left == nil {
		return right
	}
	for _, f := range right.fields {
		if !slices.ContainsFunc(left.fields, func(g structField) bool { return g.name == f.name }) {
			left.fields = append(left.fields, f)
		}
	}
	return left
}

// fit puts a value into a schema. ok is false if it doesn't fit.
func fit(v *value, s *schema) (*node, bool) {
	n := &node{schema: s}
	switch v.kind {
	case 'n':
		n.null = true
		return n, true
	case '"':
		n.text = []byte(v.text)
		return n, s.kind == "string"
	case 't':
		n.text = strconv.AppendBool(nil, v.boolean)
		return n, s.kind == "boolean"
	case '0':
		return n, s.kind == numberKind(v.text) && n.number(v.text)
	case '[':
		if s.kind != "array" {
			return nil, false
		}
		for _, e := range v.elements {
			element, ok := fit(e, s.items)
			if !ok {
				return nil, false
			}
			n.elements = append(n.elements, element)
		}
		return n, true
	}
	if s.kind != "struct" {
		return nil, false
	}
	for _, f := range s.fields {
		member := v.members[f.name]
		if member == nil {
			member = &value{kind: 'n'}
		}
		child, ok := fit(member, f.schema)
		if !ok {
			return nil, false
		}
		n.members = append(n.members, child)
	}
	return n, true
}

// number writes a number as Java does.
func (n *node) number(text string) bool {
	switch n.schema.kind {
	case "int32", "int64":
		whole, ok := new(big.Int).SetString(text, 10)
		if ok {
			n.text = whole.Append(nil, 10) // -0 is 0
		}
		return ok
	case "double":
		f, _ := strconv.ParseFloat(text, 64) // a number that is too large is infinite, here as in Java
		n.text = appendDouble(nil, f, 64)
		return true
	}
	return false
}

func (n *node) append(b []byte) []byte {
	switch {
	case n.null:
		return append(b, "null"...)
	case n.schema.kind == "array":
		b = append(b, '[')
		for i, e := range n.elements {
			if i > 0 {
				b = append(b, ',')
			}
			b = e.append(b)
		}
		return append(b, ']')
	case n.schema.kind == "struct":
		b = append(b, '{')
		for i, member := range n.members {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendString(b, n.schema.fields[i].name)
			b = append(b, ':')
			b = member.append(b)
		}
		return append(b, '}')
	case n.schema.kind == "string":
		return appendString(b, n.text)
	}
	return append(b, n.text...)
}

// append writes the schema without its closing brace.
func (s *schema) append(b []byte) []byte {
	b = append(b, `{"type":`...)
	b = appendString(b, s.kind)
	switch s.kind {
	case "array":
		b = append(b, `,"items":`...)
		b = s.items.append(b)
		b = append(b, '}')
	case "struct":
		b = append(b, `,"fields":[`...)
		for i, f := range s.fields {
			if i > 0 {
				b = append(b, ',')
			}
			b = f.append(b)
			b = append(b, `,"field":`...)
			b = appendString(b, f.name)
			b = append(b, '}')
		}
		b = append(b, ']')
	}
	b = append(b, `,"optional":true`...)
	if s.name != "" {
		b = append(b, `,"name":`...)
		b = appendString(b, s.name)
	}
	return b
}
