package main

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgoutbox/outbox/internal/printed"
)

// duration formats with a precision for people: 2.1 ms, 38 ms, 2.35 s, 1:15.
func duration(d time.Duration) string {
	switch ms := float64(d) / float64(time.Millisecond); {
	case d < 9950*time.Microsecond:
		return fmt.Sprintf("%.1f ms", ms)
	case d < 999500*time.Microsecond:
		return fmt.Sprintf("%.0f ms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return clock(d) + " min"
}

// clock formats a time since the start: 0:07.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// pad fills up with blanks. It counts characters, so text must not have escape sequences yet.
func pad(text string, width int) string { return fmt.Sprintf("%-*s", width, text) }

// wrapText breaks text into lines between words, each after the indent.
func wrapText(text, indent string, width int) string {
	lines, used := "", width
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		if used+1+n > width {
			lines, used = lines+"\n"+indent+word, len(indent)+n
			continue
		}
		lines, used = lines+" "+word, used+1+n
	}
	return strings.TrimPrefix(lines, "\n")
}

// cut shortens a line to width characters, leaving escape sequences whole.
func cut(line string, width int) string {
	shown, inEscape := 0, false
	for i, r := range line {
		switch {
		case inEscape:
			inEscape = r != 'm'
		case r == '\x1b':
			inEscape = true
		case shown < width:
			shown++
		case strings.Contains(line, "\x1b"):
			return line[:i] + reset
		default:
			return line[:i]
		}
	}
	return line
}

// style colours text, or doesn't.
type style struct{ color bool }

// The colours of style.
const (
	bold      = "1"
	dim       = "2"
	red       = "1;31"
	boldGreen = "1;32"
	yellow    = "33"
	reset     = "\x1b[0m"
)

func (s style) paint(code, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + reset
}

// count shows a count that should be 0; bad is the colour of any other value.
func (s style) count(name string, n uint64, bad string) string {
	if n == 0 {
		bad = boldGreen
	}
	return s.paint(bad, name+" "+printed.Number(n))
}
