package schema

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// IsDataError reports whether err is the server's answer about a value, not about itself or the statement: a text
// without an equivalent in the client's encoding, a number out of range, a row too large for an index, a value that a
// constraint refuses. The same statement over the same values fails again, however often.
func IsDataError(err error) bool {
	code := sqlstate.Of(err)
	// Data exception, integrity constraint, program limit.
	return len(code) == 5 && slices.Contains([]string{"22", "23", "54"}, code[:2])
}

// MaxNote bounds the result of Fit, in bytes.
const MaxNote = 4 << 10

// Fit truncates and escapes an arbitrary string, such as a broker's error, so that a text column of conn's database can
// store it: characters that its encoding may lack are written as \u2192.
func Fit(conn *pgx.Conn, text string) string {
	if len(text) > MaxNote {
		text = text[:MaxNote-len("…")] + "…"
	}
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	return Storable(conn, text)
}

// Note is Fit of an error's text, nil for none.
func Note(conn *pgx.Conn, err error) *string {
	if err == nil {
		return nil
	}
	text := Fit(conn, err.Error())
	return &text
}

// Storable escapes text so that conn's database can store it: unless its encoding is UTF-8, characters that are not
// ASCII are written as \u2192. text is UTF-8 and has no NUL.
func Storable(conn *pgx.Conn, text string) string {
	switch conn.PgConn().ParameterStatus("server_encoding") {
	case "UTF8", "SQL_ASCII":
		return text
	}
	if strings.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRuneToASCII(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}
