// Package shell writes commands that a person can copy from a message into a shell.
package shell

import (
	"regexp"
	"strings"
)

var plain = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,-]+$`)

// Word returns s quoted, if necessary, as one word of a shell.
func Word(s string) string {
	if plain.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
