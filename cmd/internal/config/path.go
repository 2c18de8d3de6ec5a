package config

import (
	"strconv"
	"strings"
)

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

const envPrefix = "OUTBOX"

// variableOf is the variable of the setting at a path.
func variableOf(path string) string {
	return envPrefix + "_" + strings.ToUpper(strings.NewReplacer(".", "_", "[", "_", "]", "").Replace(path))
}
