package output

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/internal/printed"
)

// Draw draws what a verb shows: data to Stdout, what is about the data to Stderr.
func (s Streams) Draw(parts sheet.Parts, colours bool) error {
	d := drawing{Streams: s, now: time.Now(), colours: colours}
	for _, part := range parts {
		d.part(part)
	}
	d.endPairs()
	return d.err
}

// drawing is a sheet that is being drawn.
type drawing struct {
	Streams
	now     time.Time
	colours bool
	begun   bool   // something is drawn above
	pairs   *Table // of names and values that belong together
	err     error  // the first one
}

func (d *drawing) part(part any) {
	switch p := part.(type) {
	case sheet.Facts:
		for _, c := range p.Cells {
			d.pair(strings.ToLower(c.Title), d.text(c.Value))
		}
		return
	case sheet.Block:
		if p.Text != nil {
			d.pair(strings.ToLower(p.Title), payload(p.Text))
		}
		return
	case sheet.Changes:
		if len(p) > 0 {
			d.pair("edited", "- as it was written, + as it is now")
		}
		for _, c := range p {
			d.pair("- "+c.Field, payload([]byte(c.Before)))
			d.pair("+ "+c.Field, payload([]byte(c.After)))
		}
		return
	}
	d.endPairs()
	switch p := part.(type) {
	case sheet.Line:
		d.line(d.Stdout, Clean(string(p)))
	case sheet.Hint:
		d.line(d.Stderr, Clean(string(p)))
	case sheet.More:
		d.line(d.Stderr, "there may be more: add --"+p.Param+" "+Clean(p.Value))
	case sheet.Head: // what follows has its text
		if d.begun {
			d.space()
			d.begun = false
		}
	case sheet.Verdict:
		d.verdict(p.Verdict)
	case sheet.Findings:
		for _, f := range p {
			d.finding(f)
		}
		d.space()
	case sheet.Life:
		d.space()
		t := NewTable(d.Stdout)
		for _, step := range p {
			t.Row(d.text(sheet.Clock(step.At)), d.text(step.What), d.text(step.Text))
		}
		d.keep(t.Flush())
	case sheet.Table:
		d.table(p)
	}
}

func (d *drawing) table(t sheet.Table) {
	if len(t.Rows) == 0 {
		none := "none"
		if t.Empty != "" {
			none += ": " + t.Empty
		}
		d.line(d.Stderr, none)
		return
	}
	d.space()
	cells := make([]any, len(t.Columns))
	for i, title := range t.Columns {
		cells[i] = strings.ToUpper(title)
	}
	lines := NewTable(d.Stdout, cells...)
	for _, row := range t.Rows {
		for i, c := range row.Cells {
			cells[i] = d.text(c.Value)
		}
		lines.Row(cells...)
	}
	d.keep(lines.Flush())
}

func (d *drawing) verdict(v health.Verdict) {
	word := v.State.Word()
	text := strings.ToUpper(word)
	if d.colours {
		green, yellow, red := "\x1b[1;32m", "\x1b[1;33m", "\x1b[1;31m"
		text = map[health.Tone]string{health.Calm: green, health.Attention: yellow, health.Alarm: red}[v.State.Tone()] + text + "\x1b[0m"
	}
	d.line(d.Stdout, text+printed.Text(strings.TrimPrefix(v.Sentence(), word)))
	if remedy := v.Remedy(); remedy != "" {
		d.line(d.Stdout, "next: "+Clean(remedy))
	}
}

func (d *drawing) finding(f health.Symptom) {
	d.space()
	d.line(d.Stdout, strings.ToUpper(string(f.Weight))+": "+Clean(f.About)+": "+Clean(f.Text))
	if repair := (health.Finding{Advice: f.Advice, Next: f.Repair}).Remedy(); repair != "" {
		d.line(d.Stdout, "  repair: "+Clean(repair))
	}
}

// text is a value as a terminal shows it.
func (d *drawing) text(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case int:
		return printed.Number(v)
	case int64:
		return printed.Number(v)
	case sheet.ID:
		return fmt.Sprint(int64(v))
	case sheet.Key:
		return printed.Cut(string(v), 40)
	case sheet.Note:
		return printed.Cut(string(v), 60)
	case sheet.Code:
		return printed.Cut(string(v), 80)
	case sheet.Error:
		return printed.Cut(string(v), 300) // the repair is at its end
	case sheet.Bytes:
		return printed.Bytes(int64(v))
	case time.Time:
		return printed.Ago(d.now, v)
	case sheet.Clock:
		if time.Time(v).IsZero() {
			return ""
		}
		return time.Time(v).Local().Format(time.DateTime)
	case sheet.Mark:
		return v.Word
	case sheet.Link:
		return d.text(v.Value)
	case sheet.Series:
		texts := make([]string, len(v.Values))
		for i, one := range v.Values {
			texts[i] = d.text(one)
		}
		return strings.Join(texts, v.Between)
	}
	return fmt.Sprint(value)
}

// payload is a text, or its bytes if it is none.
func payload(p []byte) string {
	if utf8.Valid(p) {
		return string(p)
	}
	return fmt.Sprintf("%d bytes, in hexadecimal: %x", len(p), p)
}

// pair adds a name and a value to those above.
func (d *drawing) pair(name, value string) {
	if d.pairs == nil {
		d.space()
		d.pairs = NewTable(d.Stdout, name, value)
		return
	}
	d.pairs.Row(name, value)
}

func (d *drawing) endPairs() {
	if d.pairs != nil {
		d.keep(d.pairs.Flush())
		d.pairs = nil
	}
}

// space keeps what follows apart from what is above.
func (d *drawing) space() {
	if d.begun {
		_, err := fmt.Fprintln(d.Stdout)
		d.keep(err)
	}
	d.begun = true
}

func (d *drawing) line(w io.Writer, text string) {
	_, err := fmt.Fprintln(w, text)
	d.keep(err)
	d.begun = d.begun || w == d.Stdout
}

func (d *drawing) keep(err error) {
	if d.err == nil {
		d.err = err
	}
}
