package load

import (
	"fmt"
	"regexp"
	"strings"
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand replaces ${NAME}, ${NAME:-default} and ${NAME:default}, and $${ by
// ${. It returns the names that it came across, and a complaint about what
// can't be replaced; complaints repeat names alone, never text or values.
func expand(text string, lookup func(string) (string, bool)) (expanded string, names []string, complaints []string) {
	var b strings.Builder
	for {
		i := strings.Index(text, "${")
		if i < 0 {
			b.WriteString(text)
			return b.String(), names, complaints
		}
		if i > 0 && text[i-1] == '$' {
			b.WriteString(text[:i-1] + "${")
			text = text[i+2:]
			continue
		}
		b.WriteString(text[:i])
		reference, rest, closed := strings.Cut(text[i+2:], "}")
		if !closed {
			return "", names, append(complaints, "${ has no closing }; write $${ for a literal ${")
		}
		text = rest
		name, fallback, optional := strings.Cut(reference, ":")
		fallback = strings.TrimPrefix(fallback, "-")
		if !variableName.MatchString(name) {
			complaints = append(complaints, "${...} does not hold a variable's name; write $${ for a literal ${")
			continue
		}
		names = append(names, name)
		value, set := lookup(name)
		switch {
		case optional && value == "":
			value = fallback
		case !set:
			complaints = append(complaints, fmt.Sprintf("the variable %s is not set; set it, or give a default as in "+
				"${%s:-default}", name, name))
		}
		b.WriteString(value)
	}
}
