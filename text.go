package outbox

import (
	"strings"
	"unicode/utf8"
)

// textFault returns why PostgreSQL can't store s, or why a broker can't carry it as a header.
func textFault(s string) string {
	switch {
	case plain(s, ' '):
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	case strings.IndexByte(s, 0) >= 0:
		return "contains a NUL byte"
	case strings.ContainsAny(s, "\r\n"):
		return "contains CR or LF"
	}
	return ""
}

// plain reports whether s has only printable ASCII characters from least on, as nearly every field does.
func plain(s string, least byte) bool {
	for i := range len(s) {
		if s[i] < least || s[i] > '~' {
			return false
		}
	}
	return true
}
