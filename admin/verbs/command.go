package verbs

import (
	"reflect"
	"strings"

	"github.com/pgoutbox/outbox/internal/shell"
)

// Command is the command line that runs the verb with these parameters, as a shell takes it.
func (v Verb) Command(params any) string {
	text := "outbox " + v.Name
	behind, dashed := "", false
	for _, p := range v.Given(params) {
		for _, value := range p.Texts(params) {
			switch {
			case p.Behind():
				behind, dashed = behind+" "+shell.Word(value), dashed || strings.HasPrefix(value, "-")
			case value == "true":
				text += " --" + p.flag()
			default:
				text += " --" + p.flag() + " " + shell.Word(value)
			}
		}
	}
	if dashed {
		behind = " --" + behind
	}
	return text + behind
}

// flag is the parameter's name on a command line.
func (p Param) flag() string { return strings.ReplaceAll(p.Name, "_", "-") }

// Parse reads a command line of one verb, as Command writes it; ok is false for what is none.
func Parse(line string) (v Verb, params any, ok bool) {
	words, ok := split(line)
	if !ok || len(words) == 0 || words[0] != "outbox" {
		return v, nil, false
	}
	n := 0
	for _, candidate := range All() {
		name := strings.Fields(candidate.Name)
		if len(name) > n && len(words) > len(name) && strings.Join(words[1:len(name)+1], " ") == candidate.Name {
			v, n = candidate, len(name)
		}
	}
	if n == 0 {
		return v, nil, false
	}
	params = v.New()
	flags := true
	for rest := words[n+1:]; len(rest) > 0; {
		word := rest[0]
		rest = rest[1:]
		switch {
		case flags && word == "--":
			flags = false
		case flags && strings.HasPrefix(word, "--"):
			p, found := v.find(func(p Param) bool { return p.Flag && p.flag() == word[2:] })
			if !found {
				return v, nil, false
			}
			value := "true"
			if p.Type.Kind() != reflect.Bool {
				if len(rest) == 0 {
					return v, nil, false
				}
				value, rest = rest[0], rest[1:]
			}
			if p.Set(params, value) != nil {
				return v, nil, false
			}
		default:
			p, found := v.find(func(p Param) bool { return p.Arg != "" && (p.Repeats() || len(p.Texts(params)) == 0) })
			if !found || p.Set(params, word) != nil {
				return v, nil, false
			}
		}
	}
	return v, params, true
}

// split takes a command line apart as a shell does, as far as Word needs it.
func split(line string) (words []string, ok bool) {
	var word strings.Builder
	in, quoted := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case quoted && c == '\'':
			quoted = false
		case quoted:
			word.WriteByte(c)
		case c == '\'':
			in, quoted = true, true
		case c == '\\' && i+1 < len(line):
			i++
			in = true
			word.WriteByte(line[i])
		case c == ' ':
			if in {
				words = append(words, word.String())
				word.Reset()
			}
			in = false
		default:
			in = true
			word.WriteByte(c)
		}
	}
	if in {
		words = append(words, word.String())
	}
	return words, !quoted
}
