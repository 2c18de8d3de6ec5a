package rest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/route"
)

var maskPath = regexp.MustCompile(`^\$((\.([^.\[\]*$]+|\*)|\[\*\])+)$`)

const hidden = jobs.Masked

// Mask returns a function that hides the values at some paths in payloads of JSON. A path is $ and then, again and
// again, .NAME for a member, .* for every member or [*] for every element; a name goes through lists by itself, so that
// a value in a list of objects isn't shown because the [*] was forgotten. A payload that isn't JSON is hidden as a
// whole.
func Mask(paths []string) (func(payload []byte) []byte, error) {
	var steps [][]string
	for _, path := range paths {
		if !maskPath.MatchString(path) {
			return nil, fmt.Errorf("%q is not a path such as $.card.number or $.items[*].price", path)
		}
		steps = append(steps, strings.Split(strings.ReplaceAll(path, "[*]", ".[*]"), ".")[1:])
	}
	return func(payload []byte) []byte {
		d := json.NewDecoder(bytes.NewReader(payload))
		d.UseNumber() // a number is shown as it was sent
		var value any
		if d.Decode(&value) != nil {
			return []byte(hidden)
		}
		if _, err := d.Token(); err != io.EOF {
			return []byte(hidden)
		}
		for _, s := range steps {
			value = hide(value, s)
		}
		masked, err := json.Marshal(value)
		if err != nil {
			return []byte(hidden)
		}
		return masked
	}, nil
}

func hide(value any, steps []string) any {
	if len(steps) == 0 {
		return hidden
	}
	switch value := value.(type) {
	case []any:
		rest := steps
		if steps[0] == "[*]" {
			rest = steps[1:]
		}
		for i := range value {
			value[i] = hide(value[i], rest)
		}
	case map[string]any:
		for name, member := range value {
			if steps[0] == "*" || steps[0] == name {
				value[name] = hide(member, steps[1:])
			}
		}
	}
	return value
}

// CredentialHeaders are patterns of names under which headers carry logins, keys and signatures.
func CredentialHeaders() []string {
	return []string{"*authorization*", "*authentication*", "x-auth*", "*-auth", "*cookie*", "*token*", "*secret*", "*passw*",
		"*credential*", "*session*", "*api*key*", "*access*key*", "*private*key*", "*signature*", "*jwt*"}
}

// MaskHeaders returns a function that reports whether a header's value is hidden: whether its name, in lower case,
// matches one of the patterns, in which * stands for any characters.
func MaskHeaders(patterns []string) func(name string) bool {
	lower := make([]string, len(patterns))
	for i, p := range patterns {
		lower[i] = strings.ToLower(p)
	}
	return func(name string) bool {
		name = strings.ToLower(name)
		return slices.ContainsFunc(lower, func(pattern string) bool { return route.Glob(pattern, name) })
	}
}

// hideHeaders returns headers as stored, with the values of some names hidden, at every depth. Headers
// that are no object are hidden as a whole: what could be told apart in them isn't known.
func hideHeaders(stored json.RawMessage, hides func(name string) bool) json.RawMessage {
	if len(stored) == 0 || string(stored) == "null" {
		return stored
	}
	d := json.NewDecoder(bytes.NewReader(stored))
	d.UseNumber()
	var object map[string]any
	if d.Decode(&object) != nil {
		return json.RawMessage(`"` + hidden + `"`)
	}
	if !hideMembers(object, hides) {
		return stored // with its order and spelling
	}
	masked, err := encode(object)
	if err != nil {
		return json.RawMessage(`"` + hidden + `"`)
	}
	return masked
}

// hideMembers hides members of objects at every depth, also in lists, and reports whether there were any.
func hideMembers(value any, hides func(name string) bool) (found bool) {
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			found = hideMembers(element, hides) || found
		}
	case map[string]any:
		for name, member := range value {
			if hides(name) {
				value[name], found = hidden, true
			} else {
				found = hideMembers(member, hides) || found
			}
		}
	}
	return found
}
