package load

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/internal/value"
)

// decoder puts a YAML document into the configuration. It works on the syntax
// tree, so that each value and each fault has its place.
type decoder struct {
	*loader
	origin  findings.Origin // without line and column
	anchors map[string]ast.Node
}

// maxAliases ends the search behind an alias that stands for itself. A larger
// cycle ends where the types of the configuration do.
const maxAliases = 50

func (d *decoder) document(text []byte, v reflect.Value, path string) {
	file, err := parse(text)
	if err != nil {
		d.unreadable = true
		d.syntax(err, text, path)
		return
	}
	d.anchors = make(map[string]ast.Node)
	seen := false
	for _, document := range file.Docs {
		if document.Body == nil || document.Body.Type() == ast.CommentType {
			continue
		}
		if seen {
			d.Fault(d.originOf(document.Body.GetToken()), path, "a second document begins here; the configuration is one")
			return
		}
		seen = true
		ast.Walk(d, document.Body)
		d.node(document.Body, v, path)
	}
}

// syntax reports what the parser said. Its error's text has the lines around,
// and so their secrets; its message quotes the file in double quotes.
func (d *decoder) syntax(err error, text []byte, path string) {
	var syntax yaml.Error
	if !errors.As(err, &syntax) {
		d.Fault(d.origin, path, "not valid YAML")
		return
	}
	at, hint := d.originOf(syntax.GetToken()), ""
	if lines := bytes.Split(text, []byte("\n")); at.Line > 0 && at.Line <= len(lines) {
		if line := lines[at.Line-1]; bytes.Contains(line, []byte("${")) &&
			bytes.ContainsAny(bytes.ReplaceAll(line, []byte("${"), nil), "[{") {
			hint = "; within { } and [ ], put text that has ${...} in quotes"
		}
	}
	message := quoted.ReplaceAllString(syntax.GetMessage(), "...")
	if strings.Contains(message, "'\t'") {
		message, hint = "found a tab where only spaces may stand", "; indent with spaces"
	}
	d.Fault(at, path, "not valid YAML: %s%s", message, hint)
}

var quoted = regexp.MustCompile(`(?s)".*"`)

// parse also reports a panic of the parser as an error: the text may be
// anything.
func parse(text []byte) (file *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("the parser failed")
		}
	}()
	return parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
}

// Visit collects the anchors.
func (d *decoder) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil {
		d.anchors[a.Name.GetToken().Value] = a.Value
	}
	return d
}

func (d *decoder) originOf(t *token.Token) findings.Origin {
	o := d.origin
	if t != nil && t.Position != nil && o.Layer == findings.FromFile {
		o.Line, o.Column = t.Position.Line, t.Position.Column
	}
	return o
}

func (d *decoder) node(n ast.Node, v reflect.Value, path string) {
	at := d.originOf(n.GetToken())
	n, ok := d.resolve(n, path)
	if !ok {
		return
	}
	if v.Kind() == reflect.Pointer {
		// Naming a broker chooses it, even with nothing behind its colon.
		if v.IsNil() {
			p := reflect.New(v.Type().Elem())
			p.Elem().Set(fields.New(v.Type().Elem()))
			v.Set(p)
		}
		v = v.Elem()
		d.Origins[path] = at
	}
	if n == nil || n.Type() == ast.NullType {
		return
	}
	switch {
	case scalar.Is(v.Type()):
		d.scalar(n, v, path, at)
	case v.Kind() == reflect.Slice:
		sequence, ok := n.(*ast.SequenceNode)
		if !ok {
			d.Fault(at, path, "expected a list, found %s", describe(n))
			return
		}
		d.Origins[path] = at
		v.SetZero() // an empty list is none
		for i, item := range sequence.Values {
			v.Set(reflect.Append(v, fields.New(v.Type().Elem())))
			d.Origins[fields.Element(path, i)] = d.originOf(item.GetToken())
			d.node(item, v.Index(i), fields.Element(path, i))
		}
	default:
		d.section(n, v, path, at)
	}
}

// resolve follows anchors, aliases and tags to the value behind them.
func (d *decoder) resolve(n ast.Node, path string) (ast.Node, bool) {
	for range maxAliases {
		switch t := n.(type) {
		case *ast.AnchorNode:
			n = t.Value
		case *ast.TagNode:
			n = t.Value
		case *ast.AliasNode:
			name := t.Value.GetToken().Value
			target, found := d.anchors[name]
			if !found {
				d.Fault(d.originOf(t.GetToken()), path, "no anchor &%s for this alias; a text that begins with * stands in quotes: \"*%s\"",
					name, name)
				return nil, false
			}
			n = target
		default:
			return n, true
		}
	}
	d.Fault(d.origin, path, "an alias stands for itself")
	return nil, false
}

func (d *decoder) section(n ast.Node, v reflect.Value, path string, at findings.Origin) {
	mapping, ok := n.(ast.MapNode)
	if !ok {
		d.unreadable = d.unreadable || path == ""
		d.Fault(at, path, "expected a section with settings, found %s", describe(n))
		return
	}
	if _, known := d.Origins[path]; !known && path != "" {
		d.Origins[path] = at
	}
	seen := make(map[string]*token.Token)
	for pairs := mapping.MapRange(); pairs.Next(); {
		pair := pairs.KeyValue()
		at := d.originOf(pair.Key.GetToken())
		if pair.Key.IsMergeKey() {
			d.Fault(at, path, "merge keys (<<) are not supported; repeat the settings, or alias the whole section")
			continue
		}
		name := pair.Key.GetToken().Value
		here := fields.Join(path, name)
		if first, twice := seen[name]; twice {
			d.Fault(at, here, "given twice; the first is in line %d", first.Position.Line)
			continue
		}
		seen[name] = pair.Key.GetToken()
		field, found := fields.ByKey(v.Type(), name)
		if !found {
			d.Fault(at, here, "%s", unknown(v.Type(), name))
			// What it is meant to be isn't missing.
			if near, found := value.Nearest(name, fields.Keys(v.Type())); found {
				d.Rejected[fields.Join(path, near)] = true
			}
			if v.Type() == reflect.TypeFor[brokers.Broker]() {
				d.Rejected[path] = true
			}
			continue
		}
		value := v.FieldByIndex(field.Index)
		if !scalar.Is(value.Type()) {
			d.Origins[here] = at
		}
		d.node(pair.Value, value, here)
	}
}

func (d *decoder) scalar(n ast.Node, v reflect.Value, path string, at findings.Origin) {
	var text string
	switch t := n.(type) {
	case *ast.StringNode:
		text = t.Value
	case *ast.LiteralNode:
		text = t.Value.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		// The text as it is written: a password of 0123 keeps its zero.
		text = n.GetToken().Value
	default:
		var ok bool
		if text, ok = joined(n); !ok {
			d.Fault(at, path, "expected a single value, found %s", describe(n))
			return
		}
	}
	if at.Layer == findings.FromFile {
		expanded, names, complaints := expand(text, d.lookup)
		for _, c := range complaints {
			d.Fault(at, path, "%s", c)
		}
		if len(complaints) > 0 {
			return
		}
		text, at.Variables = expanded, names
	}
	d.set(v, text, path, at)
}

// joined returns the text of something like host:9092 within [ ], which is one
// value in YAML and a mapping to this parser.
func joined(n ast.Node) (string, bool) {
	pair, ok := n.(*ast.MappingValueNode)
	if m, isMapping := n.(*ast.MappingNode); isMapping && len(m.Values) == 1 {
		pair, ok = m.Values[0], true
	}
	if !ok {
		return "", false
	}
	if _, scalar := pair.Value.(ast.ScalarNode); !scalar {
		return "", false
	}
	k, v := pair.Key.GetToken(), pair.Value.GetToken()
	if k.Position.Line != v.Position.Line || v.Position.Column != k.Position.Column+len(k.Value)+1 {
		return "", false
	}
	return k.Value + ":" + v.Value, true
}

// describe names the kind of a node, not its content.
func describe(n ast.Node) string {
	switch n.(type) {
	case ast.MapNode:
		return "a section with settings"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case ast.ScalarNode:
		return "a single value"
	}
	return fmt.Sprintf("a YAML %s", n.Type())
}
