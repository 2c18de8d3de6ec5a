// Package headers reads the headers of a row, which are stored as a JSON object, and checks names of headers.
//
// The text must be valid JSON, as the types json and jsonb have it; it is not checked. Values that are not strings
// become their JSON text. If a name comes twice, the last value counts, as in jsonb.
package headers

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/pgoutbox/outbox"
)

// Memory provides memory for strings whose escapes are resolved.
type Memory interface {
	// Grow returns n bytes, which belong to the caller.
	Grow(n int) []byte
}

// Append appends the members of the object text to dst, in their order. Names and values point into text, or into
// memory if they have escapes. It refuses one half of a surrogate pair, which has no UTF-8 form.
func Append(dst []outbox.Header, text string, memory Memory) ([]outbox.Header, error) {
	p := parser{in: text, memory: memory}
	return p.members(dst)
}

// Parse returns the members of the object text.
func Parse(text string) ([]outbox.Header, error) { return Append(nil, text, heap{}) }

// ParseBroken is Parse for headers that may be why their message can't be delivered: one half of a surrogate pair
// becomes U+FFFD, and broken has the names of the headers that have one.
func ParseBroken(text string) (all []outbox.Header, broken map[string]bool, err error) {
	p := parser{in: text, memory: heap{}, broken: make(map[string]bool)}
	all, err = p.members(nil)
	return all, p.broken, err
}

type heap struct{}

func (heap) Grow(n int) []byte { return make([]byte, n) }

type parser struct {
	in     string
	at     int
	memory Memory
	broken map[string]bool // nil if half a pair is an error
	half   bool            // the current member has half a pair
}

// ErrNotObject is in the error for every other JSON value, and for no text at all.
var ErrNotObject = errors.New("they must be an object")

// fromTrigger begins the text that the trigger of outbox attach stores as headers of a message that it could not make:
// the text is the reason.
const fromTrigger = "outbox attach: "

var (
	errCut  = errors.New("headers are not valid JSON")
	errHalf = errors.New("headers have one half of a surrogate pair, which has no UTF-8 form")
)

func (p *parser) members(dst []outbox.Header) ([]outbox.Header, error) {
	from := len(dst)
	p.space()
	if p.at == len(p.in) || p.in[p.at] != '{' {
		err := fmt.Errorf("headers are a JSON %s, %w", p.kind(), ErrNotObject)
		if text, e := p.str(); e == nil && strings.HasPrefix(text, fromTrigger) {
			err = fmt.Errorf("%s: %w", text, err)
		}
		return dst, err
	}
	p.at++
	p.space()
	if p.take('}') {
		return dst, p.end()
	}
	for {
		name, err := p.str()
		if err != nil {
			return dst, err
		}
		p.space()
		if !p.take(':') {
			return dst, errCut
		}
		p.space()
		value, err := p.value()
		if err != nil {
			return dst, err
		}
		dst = set(dst, from, outbox.Header{Name: name, Value: value})
		if p.broken != nil {
			p.broken[name], p.half = p.half, false
		}
		p.space()
		if p.take('}') {
			return dst, p.end()
		}
		if !p.take(',') {
			return dst, errCut
		}
		p.space()
	}
}

// set appends h to the headers that begin at from, or replaces the one of its name. It compares no names beyond the
// limit of a message, so an object of a hundred thousand names doesn't hold the relay up: such a message is invalid in
// any case.
func set(dst []outbox.Header, from int, h outbox.Header) []outbox.Header {
	for i := from; i < len(dst) && len(dst)-from <= outbox.MaxHeaders; i++ {
		if dst[i].Name == h.Name {
			dst[i].Value = h.Value
			return dst
		}
	}
	return append(dst, h)
}

// kind names the type of the value at the parser's position.
func (p *parser) kind() string {
	if p.at == len(p.in) {
		return "nothing"
	}
	switch p.in[p.at] {
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	default:
		return "number"
	}
}

func (p *parser) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return
		}
	}
}

func (p *parser) take(c byte) bool {
	if p.at < len(p.in) && p.in[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) end() error {
	p.space()
	if p.at != len(p.in) {
		return errCut
	}
	return nil
}

// value reads a string as its content, and any other value as its text.
func (p *parser) value() (string, error) {
	if p.at < len(p.in) && p.in[p.at] == '"' {
		return p.str()
	}
	from := p.at
	for depth := 0; p.at < len(p.in); {
		switch c := p.in[p.at]; c {
		case '"':
			if depth == 0 {
				return "", errCut
			}
			if err := p.skipStr(); err != nil {
				return "", err
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return p.since(from)
			}
			depth--
			if depth == 0 {
				p.at++
				return p.since(from)
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return p.since(from)
			}
		}
		p.at++
	}
	return "", errCut
}

func (p *parser) since(from int) (string, error) {
	if p.at == from {
		return "", errCut
	}
	return p.in[from:p.at], nil
}

func (p *parser) skipStr() error {
	for p.at++; p.at < len(p.in); p.at++ {
		switch p.in[p.at] {
		case '\\':
			p.at++
		case '"':
			p.at++
			return nil
		}
	}
	return errCut
}

// str reads a string literal. A literal without escapes, as nearly all are, is not copied.
func (p *parser) str() (string, error) {
	if !p.take('"') {
		return "", errCut
	}
	from := p.at
	for ; p.at < len(p.in); p.at++ {
		switch c := p.in[p.at]; {
		case c == '"':
			p.at++
			return p.in[from : p.at-1], nil
		case c == '\\':
			return p.unescape(from)
		case c < ' ':
			return "", errCut
		}
	}
	return "", errCut
}

// unescape continues a string at its first backslash.
func (p *parser) unescape(from int) (string, error) {
	// An escape is never shorter than the text that it stands for.
	end := p.at
	for end < len(p.in) && p.in[end] != '"' {
		if p.in[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(p.in) {
		return "", errCut
	}
	out := append(p.memory.Grow(end - from)[:0], p.in[from:p.at]...)
	for p.at < end {
		c := p.in[p.at]
		p.at++
		switch {
		case c < ' ':
			return "", errCut
		case c != '\\':
			out = append(out, c)
			continue
		}
		c = p.in[p.at]
		p.at++
		switch c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, ok := p.hex4(end)
			if !ok {
				return "", errCut
			}
			if utf16.IsSurrogate(r) {
				if r = p.joined(r, end); r == utf8.RuneError {
					if p.broken == nil {
						return "", errHalf
					}
					p.half = true
				}
			}
			out = utf8.AppendRune(out, r)
		default:
			return "", errCut
		}
	}
	p.at++
	return unsafe.String(unsafe.SliceData(out), len(out)), nil
}

// hex4 reads the four digits after \u.
func (p *parser) hex4(end int) (rune, bool) {
	if end-p.at < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(p.in[p.at:p.at+4], 16, 16)
	if err != nil {
		return 0, false
	}
	p.at += 4
	return rune(n), true
}

// joined is the character of r and the second half that follows it, or U+FFFD if none does.
func (p *parser) joined(r rune, end int) rune {
	if end-p.at < 6 || p.in[p.at] != '\\' || p.in[p.at+1] != 'u' {
		return utf8.RuneError
	}
	p.at += 2
	second, _ := p.hex4(end)
	return utf16.DecodeRune(r, second)
}

// IsToken reports whether name can be the name of a header in HTTP and NATS.
func IsToken(name string) bool {
	for i := 0; i < len(name); i++ {
		c := name[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return name != ""
}
