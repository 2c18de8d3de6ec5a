package rest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/pgoutbox/outbox/admin"
)

var maskPath = regexp.MustCompile(`^\$((\.([^.\[\]*$]+|\*)|\[\*\])+)$`)

// hidden stands for what is masked.
const hidden = admin.Masked

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
