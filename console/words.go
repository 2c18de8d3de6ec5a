package console

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/printed"
)

// foreign is a text of others as a page can show it: what can't be printed is spelled out, and a long one is cut.
func foreign(s string, most int) string { return printed.Text(printed.Cut(s, most)) }

// ago is a moment relative to now, with the exact one on hover.
func ago(now, t time.Time) *element {
	if t.IsZero() {
		return none("–")
	}
	return moment(t, printed.Ago(now, t))
}

// none stands for a value that there isn't.
func none(text string) *element { return el("span.none", text) }

func moment(t time.Time, text string) *element {
	return el("time", attr("datetime", t.UTC().Format(time.RFC3339Nano)), attr("title", t.UTC().Format("2006-01-02 15:04:05.0 UTC")), text)
}

// clock is the moment itself.
func clock(t time.Time) *element {
	if t.IsZero() {
		return none("–")
	}
	return moment(t, t.UTC().Format("2006-01-02 15:04:05"))
}

// rate is messages a second, without the unit.
func rate(f float32) string {
	switch {
	case unknown(f):
		return "–"
	case f >= 9999.5:
		return fmt.Sprintf("%.1fk", f/1000)
	case f >= 99.5 || f == 0:
		return printed.Number(int64(math.Round(float64(f))))
	}
	return fmt.Sprintf("%.1f", f)
}

// measured is a span of seconds that may be unknown.
func measured(seconds float32) string {
	if unknown(seconds) {
		return "–"
	}
	return printed.Span(time.Duration(float64(seconds) * float64(time.Second)))
}

// glyphs are the shapes of the states: with its word, each is known without its colour.
var glyphs = map[health.State]string{
	health.StateIdle:    "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3zm0 2a3 3 0 1 1 0 6 3 3 0 0 1 0-6z",
	health.StateFlowing: "M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3z",
	health.StateUnknown: "M5 5.5a3 3 0 1 1 4.5 2.6c-.4.3-.5.5-.5 1v.4H7v-.6c0-1.2.5-1.8 1.2-2.300A1 1 0 1 0 7 5.500zM7 11h2v2H7z",
	health.StateLagging: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zm0 2a4 4 0 1 1 0 8 4 4 0 0 1 0-8zm-1 1v4h4V7.500H8.500V5z",
	health.StateBlocked: "M3 3h10v10H3z",
	health.StateDead:    "M3.5 2 8 6.5 12.5 2 14 3.5 9.5 8l4.5 4.5-1.5 1.500L8 9.5 3.5 14 2 12.5 6.5 8 2 3.500z",
	health.StatePaused:  "M3 2h4v12H3zM9 2h4v12H9z",
	health.StateFailing: "M8 1.5 15.5 14.500H.5z",
	health.StateStalled: "M8 1.5 15.5 14.500H.5zM8 5.5 3.9 12.500h8.200z",
	health.StateBroken:  "M2 2h7L7 6l3 2-3 6H2zM11 2h3v12H9l3-6.500L9.5 6z",
	health.StateNoRelay: "M8 1a7 7 0 1 0 0 14A7 7 0 0 0 8 1zm0 2a5 5 0 1 1 0 10A5 5 0 0 1 8 3zM7 4.500h2V9H7zm0 5.500h2v2H7z",
	health.StateStopped: "M5 1h6l4 4v6l-4 4H5l-4-4V5z",
}

func glyph(s health.State) *element {
	shape := el("path", attr("d", glyphs[s]))
	if s == health.StateStalled {
		shape = el("path", attr("d", glyphs[s]), attr("fill-rule", "evenodd"))
	}
	return el("svg.glyph", attr("viewBox", "0 0 16 16"), attr("aria-hidden", "true"), shape)
}

// state is a state as glyph, word and colour.
func state(s health.State) *element { return mark(s, s.Word()) }

// mark is a word with the glyph and the colour of a state.
func mark(s health.State, word string) *element {
	return el("span.state."+hue(s), glyph(s), " ", el("b", word))
}

// hue is the class of a state's colour. A pause is a wish, no trouble.
func hue(s health.State) string {
	switch {
	case s == health.StateIdle || s == health.StatePaused || s == health.StateUnknown:
		return "none"
	case s.Tone() == health.Calm:
		return "ok"
	case s.Tone() == health.Attention:
		return "late"
	}
	return "bad"
}

func unknown(f float32) bool { return math.IsNaN(float64(f)) }

// sentence ends a text as a sentence.
func sentence(text string) string {
	if text = foreign(text, 2000); strings.HasSuffix(text, ".") {
		return text
	}
	return text + "."
}

// printable keeps the lines of a text.
func printable(text []byte, most int) string {
	lines := strings.Split(string(text[:min(len(text), most)]), "\n")
	for i := range lines {
		lines[i] = foreign(strings.ReplaceAll(lines[i], "\t", "    "), most)
	}
	return strings.Join(lines, "\n")
}

// oldest is how long what was written at a time has waited when the report was made.
func oldest(r *health.Report, written time.Time) any {
	if written.IsZero() {
		return el("span.none", "–")
	}
	return moment(written, printed.Span(r.At.Sub(written)))
}
