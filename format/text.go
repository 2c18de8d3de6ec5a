package format

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// appendString appends s as a JSON string, escaped as Jackson does: quotes, backslashes and control characters, these
// by a letter if there is one, else as \u00XX in upper case. s must be UTF-8.
func appendString[T string | []byte](b []byte, s T) []byte {
	const hex = "0123456789ABCDEF"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, '\\', 'b')
		case '\t':
			b = append(b, '\\', 't')
		case '\n':
			b = append(b, '\\', 'n')
		case '\f':
			b = append(b, '\\', 'f')
		case '\r':
			b = append(b, '\\', 'r')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}

// appendPercent appends s with percent-encoding of everything except printable ASCII, and of space, double quote and
// percent sign, as the HTTP and NATS bindings of CloudEvents require.
func appendPercent[T string | []byte](b []byte, s T) []byte {
	const hex = "0123456789ABCDEF"
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '"' || c == '%' {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}

// UnescapePercent decodes attribute values of the HTTP and NATS bindings of CloudEvents. ok is false for text that they
// can't have written: a % that is not followed by two hexadecimal digits, or bytes that are not UTF-8.
func UnescapePercent(s string) (text string, ok bool) {
	if strings.IndexByte(s, '%') < 0 {
		return s, utf8.ValidString(s)
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		high, low := unhex(s[i+1]), unhex(s[i+2])
		if high > 15 || low > 15 {
			return "", false
		}
		b = append(b, high<<4|low)
		i += 2
	}
	return string(b), utf8.Valid(b)
}

func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}

// appendDouble appends f, of 64 or 32 bits, as Java's Double.toString or Float.toString writes it (since JDK 19, the
// shortest digits that identify f), and NaN and infinities as Jackson does: in quotes.
func appendDouble(b []byte, f float64, bits int) []byte {
	switch {
	case math.IsInf(f, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(f, -1):
		return append(b, `"-Infinity"`...)
	case math.IsNaN(f):
		return append(b, `"NaN"`...)
	}
	if size := math.Abs(f); size == 0 || size >= 1e-3 && size < 1e7 {
		from := len(b)
		b = strconv.AppendFloat(b, f, 'f', -1, bits)
		if !strings.Contains(string(b[from:]), ".") {
			b = append(b, ".0"...)
		}
		return b
	}
	text := strconv.FormatFloat(f, 'e', -1, bits) // -d.ddde±xx
	digits, exponent, _ := strings.Cut(text, "e")
	if !strings.Contains(digits, ".") {
		// If one digit is enough, Java takes the closest number of two digits, which differs among the very smallest:
		// 4.9E-324.
		digits, exponent, _ = strings.Cut(strconv.FormatFloat(f, 'e', 1, bits), "e")
	}
	b = append(b, digits...)
	n, _ := strconv.Atoi(exponent) // FormatFloat wrote it
	b = append(b, 'E')
	return strconv.AppendInt(b, int64(n), 10)
}
