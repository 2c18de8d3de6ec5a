package fields

import (
	"strconv"
	"strings"
)

// Join returns the path of a setting in the section at a path; "" is the top level.
func Join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// Element returns the path of an element of the list at a path.
func Element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// VariablePrefix begins the names of the environment's variables.
const VariablePrefix = "OUTBOX"

// Variable is the variable of the setting at a path.
func Variable(path string) string {
	return VariablePrefix + "_" + strings.ToUpper(strings.NewReplacer(".", "_", "[", "_", "]", "").Replace(path))
}
