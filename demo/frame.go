package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// intro explains what the user sees.
const intro = `An orders service changes rows and writes an event about each change, in one
transaction. Two relays deliver to the broker; a consumer checks every event.
Break something! Lost, phantom and out of order stay 0, whatever you do.`

// frame draws v as lines for a terminal of that size: at most height lines, none wider than width.
func (v *view) frame(width, height int, s style) []string {
	top, bottom := v.top(width, s), v.bottom(s)
	// A low terminal loses the introduction first, then the empty lines, then the log. Help needs room as well.
	if height >= 22 && (!v.Help || height >= 36) {
		var lines []string
		for line := range strings.Lines(intro) {
			lines = append(lines, " "+s.paint(dim, strings.TrimSpace(line)))
		}
		top = slices.Insert(top, 1, lines...)
	}
	if len(top)+len(bottom)+2 > height || v.Help && height < 30 {
		top = slices.DeleteFunc(top, func(line string) bool { return line == "" })
	}
	room := max(0, height-len(top)-len(bottom))
	middle := v.log(width, room, s)
	if v.Help {
		middle = helpText(width, room, s)
	}
	blank := make([]string, room-len(middle))
	lines := slices.Concat(top, middle, blank, bottom)[:height]
	for i := range lines {
		lines[i] = cut(lines[i], width)
	}
	return lines
}

// top is the part above the log, without the introduction.
func (v *view) top(width int, s style) []string {
	wanted := "load " + number(v.Wanted) + "/s"
	if v.Phase == phaseDraining {
		wanted = "no more load"
	}
	room := min(60, max(0, width-56))
	flow := func(name string, count uint64, now, other rates, note string) string {
		return fmt.Sprintf(" %s  %s  %7s/s  %s  %s", name, s.paint(bold, fmt.Sprintf("%11s", number(count))), number(now.Now),
			s.paint(blue, sparkline(now, other, room)), note)
	}
	latency := s.paint(dim, "no event arrived in the last 5 s")
	if l := v.Latency; l.Count > 0 {
		at := func(took time.Duration) string { return s.paint(bold, pad(duration(took), 9)) }
		latency = "p50 " + at(l.P50) + " p95 " + at(l.P95) + " p99 " + at(l.P99) + " " + s.paint(dim, "last 5 s")
	}
	phantom := "none"
	if v.Counts.Phantom > 0 {
		phantom = number(v.Counts.Phantom)
	}
	dead := plural(v.Counts.DeadLettered, "dead letter")
	if v.Counts.DeadLettered > 0 {
		dead = s.paint(yellow, dead)
	}
	lines := []string{
		v.title(width, s),
		"",
		flow("committed", v.Counts.Committed, v.In, v.Out, wanted),
		flow("delivered", v.Counts.Delivered, v.Out, v.In, "under way "+number(v.Counts.Outstanding)),
		" commit to consumer   " + latency,
		"",
		" " + strings.Join([]string{
			s.count("lost", uint64(v.Lost), red),
			s.count("phantom", v.Counts.Phantom, red),
			s.count("out of order", v.Counts.Inverted, red),
			s.count("corrupted", v.Counts.Corrupted, red),
			s.count("duplicated", v.Counts.Duplicated, yellow),
		}, "    "),
		fmt.Sprintf(" %s rolled back, %s of them delivered        %s", number(v.Counts.RolledBack), phantom, dead),
		"",
	}
	part := func(name, state, color, note string) {
		lines = append(lines, " "+pad(name, 10)+" "+s.paint(color, pad(state, 11))+" "+note)
	}
	for _, r := range v.Relays {
		process := fmt.Sprintf("process %d", r.PID)
		if r.PID == 0 {
			process = "no process"
		}
		part(r.Name, string(r.Role), map[role]string{leads: green, down: red}[r.Role], process)
	}
	part("broker", v.brokerState(), map[bool]string{true: green, false: red}[v.BrokerUp], v.Address)
	part("console", "", "", v.Page)
	if v.Long > 0 {
		lines = append(lines, " long       "+s.paint(yellow, "open for "+duration(v.Long))+", a transaction that holds up nothing")
	}
	return append(lines, "")
}

func (v *view) title(width int, s style) string {
	left := " outbox demo: " + v.Postgres + " > relays > " + v.Broker
	time := clock(v.Elapsed)
	switch {
	case v.Phase != phaseRunning:
		time = string(v.Phase)
	case v.Left > 0:
		time = "verdict in " + clock(v.Left)
	}
	gap := max(1, width-1-utf8.RuneCountInString(left)-len(time))
	return s.paint(inverse, left+strings.Repeat(" ", gap)+time+" ")
}

func (v *view) bottom(s style) []string {
	if !v.Keys {
		return []string{"", " " + s.paint(dim, "Ctrl-C ends it")}
	}
	var breaking []string
	for _, fault := range faultTable {
		label := fault.label
		if fault.name == "broker" && !v.BrokerUp {
			label = "broker up"
		}
		breaking = append(breaking, s.paint(bold, string(fault.key))+" "+label)
	}
	var others []string
	for _, key := range [][2]string{{"+ -", "load"}, {"d", "drain & verdict"}, {"q", "quit"}, {"?", "help"}} {
		others = append(others, s.paint(bold, key[0])+" "+key[1])
	}
	return []string{"", " " + strings.Join(breaking, "   "), " " + strings.Join(others, "   ")}
}

// log shows the latest events that fit, the last one at the end.
func (v *view) log(width, room int, s style) (lines []string) {
	for _, e := range slices.Backward(v.Events) {
		block := wrapText(e.Text, max(20, width-9))
		block = block[:min(len(block), room-len(lines))] // the oldest one may end early
		for i, line := range block {
			stamp := "      "
			if i == 0 {
				stamp = s.paint(dim, pad(clock(e.At), 6))
			}
			if e.Bad {
				line = s.paint(red, line)
			}
			block[i] = " " + stamp + " " + line
		}
		lines = append(block, lines...)
	}
	return lines
}

func helpText(width, room int, s style) (lines []string) {
	add := func(key, help string) {
		for i, line := range wrapText(help, max(20, width-5)) {
			label := " "
			if i == 0 {
				label = s.paint(bold, key)
			}
			lines = append(lines, " "+label+"  "+line)
		}
	}
	for _, fault := range faultTable {
		add(string(fault.key), fault.help)
	}
	add("d", "No more load; everything committed is delivered, then the verdict.")
	return lines[:min(len(lines), room)]
}

// sparkline draws the latest values on the scale of both lines.
func sparkline(r, other rates, width int) string {
	levels := []rune("▁▂▃▄▅▆▇█")
	latest := func(history []int) []int { return history[max(0, len(history)-width):] }
	top := slices.Max(slices.Concat([]int{1}, latest(r.History), latest(other.History)))
	var b strings.Builder
	for _, n := range latest(r.History) {
		b.WriteRune(levels[min(7, max(0, (n*8-1)/top))])
	}
	return pad(b.String(), width)
}

// pad fills up with blanks. It counts characters, so text must not have escape sequences yet.
func pad(text string, width int) string { return fmt.Sprintf("%-*s", width, text) }

// wrapText breaks text into lines between words.
func wrapText(text string, width int) []string {
	lines := []string{""}
	for _, word := range strings.Fields(text) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case utf8.RuneCountInString(*last)+1+utf8.RuneCountInString(word) > width:
			lines = append(lines, word)
		default:
			*last += " " + word
		}
	}
	return lines
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
	inverse   = "7"
	red       = "1;31"
	green     = "32"
	boldGreen = "1;32"
	yellow    = "33"
	blue      = "34"
	reset     = "\x1b[0m"
)

func (s style) paint(code, text string) string {
	if !s.color || code == "" || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + reset
}

// count shows a count that should be 0; bad is the colour of any other value.
func (s style) count(name string, n uint64, bad string) string {
	if n == 0 {
		bad = boldGreen
	}
	return s.paint(bad, name+" "+number(n))
}
