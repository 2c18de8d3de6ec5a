// Package printed shows text of strangers to people: in logs, errors and on terminals.
package printed

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxKey bounds a key in a log line. A key of a table that exists may have megabytes.
const maxKey = 200

// Key is a key as a log line shows it: a key may be any bytes. It has at most 200 bytes of the key.
func Key(s string) string {
	if len(s) > maxKey {
		end := maxKey
		for end > maxKey-utf8.UTFMax && !utf8.RuneStart(s[end]) {
			end--
		}
		return Text(s[:end]) + "…"
	}
	return Text(s)
}

// Text escapes what can't be printed, as Go does: \x00, \n, \u200b. Everything else stays.
func Text(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unprintable(r):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
		s = s[size:]
	}
	return b.String()
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }
