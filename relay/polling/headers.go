package polling

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/pgoutbox/outbox"
)

// headerParser reads the text of a json value into headers. A stored value is valid JSON. So a fault found here means
// that the value isn't an object, or that it can't become headers. Values that are not strings become their JSON text.
type headerParser struct {
	in    string
	at    int
	arena *arena
}

var (
	errHeadersCut = errors.New("headers are not valid JSON")
	errSurrogate  = errors.New("headers have one half of a surrogate pair, which has no UTF-8 form")
)

// appendHeaders appends the members of the object text to dst. Names and values point into text or into
// memory of a. If a name comes twice, the last value counts, as in jsonb.
func appendHeaders(dst []outbox.Header, text string, a *arena) ([]outbox.Header, error) {
	from := len(dst)
	p := headerParser{in: text, arena: a}
	p.space()
	if p.at == len(p.in) || p.in[p.at] != '{' {
		return dst, fmt.Errorf("headers are a JSON %s, they must be an object", p.kind())
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
			return dst, errHeadersCut
		}
		p.space()
		value, err := p.value()
		if err != nil {
			return dst, err
		}
		dst = set(dst, from, outbox.Header{Name: name, Value: value})
		p.space()
		if p.take('}') {
			return dst, p.end()
		}
		if !p.take(',') {
			return dst, errHeadersCut
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
func (p *headerParser) kind() string {
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

func (p *headerParser) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return
		}
	}
}

func (p *headerParser) take(c byte) bool {
	if p.at < len(p.in) && p.in[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *headerParser) end() error {
	p.space()
	if p.at != len(p.in) {
		return errHeadersCut
	}
	return nil
}

// value reads a string as its content, and any other value as its text.
func (p *headerParser) value() (string, error) {
	if p.at < len(p.in) && p.in[p.at] == '"' {
		return p.str()
	}
	from := p.at
	for depth := 0; p.at < len(p.in); {
		switch c := p.in[p.at]; c {
		case '"':
			if depth == 0 {
				return "", errHeadersCut
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
	return "", errHeadersCut
}

func (p *headerParser) since(from int) (string, error) {
	if p.at == from {
		return "", errHeadersCut
	}
	return p.in[from:p.at], nil
}

func (p *headerParser) skipStr() error {
	for p.at++; p.at < len(p.in); p.at++ {
		switch p.in[p.at] {
		case '\\':
			p.at++
		case '"':
			p.at++
			return nil
		}
	}
	return errHeadersCut
}

// str reads a string literal. A literal without escapes, as nearly all are, is not copied.
func (p *headerParser) str() (string, error) {
	if !p.take('"') {
		return "", errHeadersCut
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
			return "", errHeadersCut
		}
	}
	return "", errHeadersCut
}

// unescape continues a string at its first backslash.
func (p *headerParser) unescape(from int) (string, error) {
	// An escape is never shorter than the text that it stands for.
	end := p.at
	for end < len(p.in) && p.in[end] != '"' {
		if p.in[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(p.in) {
		return "", errHeadersCut
	}
	out := append(p.arena.grow(end - from)[:0], p.in[from:p.at]...)
	for p.at < end {
		c := p.in[p.at]
		p.at++
		switch {
		case c < ' ':
			return "", errHeadersCut
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
				return "", errHeadersCut
			}
			if utf16.IsSurrogate(r) {
				if r = p.joined(r, end); r == utf8.RuneError {
					return "", errSurrogate
				}
			}
			out = utf8.AppendRune(out, r)
		default:
			return "", errHeadersCut
		}
	}
	p.at++
	return aliased(out), nil
}

// hex4 reads the four digits after \u.
func (p *headerParser) hex4(end int) (rune, bool) {
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
func (p *headerParser) joined(r rune, end int) rune {
	if end-p.at < 6 || p.in[p.at] != '\\' || p.in[p.at+1] != 'u' {
		return utf8.RuneError
	}
	p.at += 2
	second, _ := p.hex4(end)
	return utf16.DecodeRune(r, second)
}
