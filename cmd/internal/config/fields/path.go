package fields

import (
	"strconv"
	"strings"
)

func Join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func Element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

const VariablePrefix = "OUTBOX"

// Variable is the variable of the setting at a path.
func Variable(path string) string {
	return VariablePrefix + "_" + strings.ToUpper(strings.NewReplacer(".", "_", "[", "_", "]", "").Replace(path))
}
