// Package printed makes foreign text safe to print, in logs, errors and on terminals.
package printed

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pgoutbox/outbox"
)

// maxKey bounds a key in a log line. A key of an existing table may have megabytes.
const maxKey = 200

// Key returns a key for a log line: at most its first 200 bytes, because a key may be any bytes.
func Key(s string) string { return Text(Cut(s, maxKey)) }

// Cut is at most so many bytes of a text, with a mark where the rest would be. It splits no character.
func Cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	end := most
	for end > max(most-utf8.UTFMax, 0) && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// Short returns s, or its first 100 bytes if it is longer, for texts of errors that quote it.
func Short(s string) string { return Cut(s, 100) }

// Message returns a message's attributes for a log line: its id, topic and key, and its event type and trace if it has
// them. They are copies, because a line may outlive the message's memory.
func Message(m *outbox.Message) []any {
	about := []any{"message_id", m.ID.String(), "topic", strings.Clone(Key(m.Topic)), "key", strings.Clone(Key(m.OrderingKey()))}
	if m.EventType != "" {
		about = append(about, "event_type", strings.Clone(Key(m.EventType)))
	}
	if trace, ok := m.TraceParent(); ok {
		about = append(about, "trace_id", strings.Clone(trace.TraceID))
	}
	return about
}

// Text escapes characters that can't be printed, as Go does: \x00, \n, \u200b. It leaves all others unchanged.
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
