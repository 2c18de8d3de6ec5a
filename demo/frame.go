package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// intro says what one sees, in three lines.
var intro = [3]string{
	"An orders service changes rows and writes an event about each change, in one",
	"transaction. Two relays deliver to the broker; a consumer checks every event.",
	"Break something! Lost, phantom and out of order stay 0, whatever you do.",
}

// frame draws v as lines for a terminal of that size: at most height of them, none wider than width.
func (v *view) frame(width, height int, s style) []string {
	top := v.top(width, s)
	bottom := v.bottom(s)
	// A low terminal loses the introduction first, then the empty lines, then the log. Help needs its place as well.
	if height < 22 || v.Help && height < 36 {
		top = append(top[:1:1], top[1+len(intro):]...)
	}
	if len(top)+len(bottom)+2 > height || v.Help && height < 30 {
		top = withoutEmpty(top)
	}
	room := max(0, height-len(top)-len(bottom))
	middle := v.log(width, room, s)
	if v.Help {
		middle = helpText(width, room, s)
	}
	lines := append(top, middle...)
	for len(lines)+len(bottom) < height {
		lines = append(lines, "")
	}
	lines = append(lines, bottom...)
	lines = lines[:min(len(lines), height)]
	for i := range lines {
		lines[i] = cut(lines[i], width)
	}
	return lines
}

func (v *view) top(width int, s style) []string {
	lines := []string{v.title(width, s)}
	for _, line := range intro {
		lines = append(lines, " "+s.dim(line))
	}
	lines = append(lines, "")

	wanted := "load " + number(v.Wanted) + "/s"
	if v.Phase == phaseDraining {
		wanted = "no more load"
	}
	underway := "under way " + number(v.Counts.Outstanding)
	spark := min(60, max(0, width-56))
	lines = append(lines,
		fmt.Sprintf(" committed  %s  %7s/s  %s  %s", s.bold(right(number(v.Counts.Committed), 11)), number(v.In.Now), s.blue(sparkline(v.In, v.Out, spark)), wanted),
		fmt.Sprintf(" delivered  %s  %7s/s  %s  %s", s.bold(right(number(v.Counts.Delivered), 11)), number(v.Out.Now), s.blue(sparkline(v.Out, v.In, spark)), underway),
		" commit to consumer   "+v.latencyText(s),
		"",
		" "+strings.Join([]string{
			s.verdict("lost", uint64(v.Lost)),
			s.verdict("phantom", v.Counts.Phantom),
			s.verdict("out of order", v.Counts.Inverted),
			s.verdict("corrupted", v.Counts.Corrupted),
			s.tolerated("duplicated", v.Counts.Duplicated),
		}, "    "),
		fmt.Sprintf(" %s rolled back, %s        %s", number(v.Counts.RolledBack), neverSeen(v.Counts.Phantom), v.deadText(s)),
		"",
	)
	for _, r := range v.Relays {
		lines = append(lines, r.text(s))
	}
	lines = append(lines, v.brokerText(s))
	if v.Long > 0 {
		lines = append(lines, " long       "+s.yellow("open for "+duration(v.Long))+", a transaction that holds up nothing")
	}
	return append(lines, "")
}

func (v *view) title(width int, s style) string {
	left := " outbox demo: " + v.Postgres + " > relays > " + v.Broker
	time := clock(v.Elapsed)
	if v.Left > 0 {
		time = "verdict in " + clock(v.Left)
	}
	switch v.Phase {
	case phaseStarting:
		time = "starting"
	case phaseDraining:
		time = "draining"
	}
	gap := max(1, width-1-utf8.RuneCountInString(left)-len(time))
	return s.inverse(left + strings.Repeat(" ", gap) + time + " ")
}

func (v *view) latencyText(s style) string {
	if v.Latency.Count == 0 {
		return s.dim("no event arrived in the last 5 s")
	}
	return fmt.Sprintf("p50 %s p95 %s p99 %s %s", s.bold(pad(duration(v.Latency.P50), 9)), s.bold(pad(duration(v.Latency.P95), 9)),
		s.bold(pad(duration(v.Latency.P99), 9)), s.dim("last 5 s"))
}

func neverSeen(phantom uint64) string {
	if phantom == 0 {
		return "none of them delivered"
	}
	return number(phantom) + " of them delivered"
}

func (v *view) deadText(s style) string {
	text := plural(v.Counts.DeadLettered, "dead letter")
	if v.Counts.DeadLettered > 0 {
		return s.yellow(text)
	}
	return text
}

func (r relayView) text(s style) string {
	role := pad(string(r.Role), 11)
	switch r.Role {
	case leads:
		role = s.green(role)
	case down:
		role = s.red(role)
	}
	process := "no process"
	if r.PID != 0 {
		process = fmt.Sprintf("process %d", r.PID)
	}
	return fmt.Sprintf(" %s    %s %s", r.Name, role, process)
}

func (v *view) brokerText(s style) string {
	state := s.green(pad("up", 11))
	if !v.BrokerUp {
		state = s.red(pad("down", 11))
	}
	return " broker     " + state + " " + v.Address
}

func (v *view) bottom(s style) []string {
	if !v.Keys {
		return []string{"", " " + s.dim("Ctrl-C ends it")}
	}
	key := func(k, what string) string { return s.bold(k) + " " + what }
	brokerKey := "broker down"
	if !v.BrokerUp {
		brokerKey = "broker up"
	}
	return []string{
		"",
		" " + strings.Join([]string{key("b", brokerKey), key("k", "kill a relay"), key("l", "long transaction"), key("r", "roll-backs"), key("p", "poison")}, "   "),
		" " + strings.Join([]string{key("+ -", "load"), key("d", "drain & verdict"), key("q", "quit"), key("?", "help")}, "   "),
	}
}

// log shows the latest events that fit, the last one at the end.
func (v *view) log(width, room int, s style) []string {
	var lines []string
	for i := len(v.Events) - 1; i >= 0; i-- {
		e := v.Events[i]
		text := wrapText(e.Text, max(20, width-9))
		if len(lines) >= room {
			break
		}
		text = text[:min(len(text), room-len(lines))] // the oldest one may end early
		var block []string
		for j, line := range text {
			if e.Bad {
				line = s.red(line)
			}
			stamp := "      "
			if j == 0 {
				stamp = s.dim(pad(clock(e.At), 6))
			}
			block = append(block, " "+stamp+" "+line)
		}
		lines = append(block, lines...)
	}
	return lines
}

func helpText(width, room int, s style) []string {
	var lines []string
	for _, h := range [][2]string{
		{"b", "The broker goes away. Commits go on, events wait in PostgreSQL; no attempt is counted. Again: it is back."},
		{"k", "SIGKILL for the relay that leads. The other takes over when the lease ends, and repeats what wasn't settled."},
		{"l", "A transaction stays open for 10 s after writing its event. Others are delivered as before."},
		{"r", "The next transactions write their event and roll back. None may reach the consumer."},
		{"p", "An event too large for the broker. It becomes a dead letter, and its order goes on."},
		{"d", "No more load; everything committed is delivered, then the verdict."},
	} {
		for i, line := range wrapText(h[1], max(20, width-5)) {
			label := " "
			if i == 0 {
				label = s.bold(h[0])
			}
			lines = append(lines, " "+label+"  "+line)
		}
	}
	return lines[:min(len(lines), room)]
}

func withoutEmpty(lines []string) []string {
	var kept []string
	for _, line := range lines {
		if line != "" {
			kept = append(kept, line)
		}
	}
	return kept
}

// sparkline draws the latest values on the scale of both lines.
func sparkline(r, other rate, width int) string {
	const levels = "▁▂▃▄▅▆▇█"
	top := 1
	for _, n := range append(append([]int{}, latest(r.History, width)...), latest(other.History, width)...) {
		top = max(top, n)
	}
	var b strings.Builder
	for _, n := range latest(r.History, width) {
		level := 0
		if n > 0 {
			level = min(7, (n*8-1)/top)
		}
		b.WriteRune([]rune(levels)[level])
	}
	return pad(b.String(), width)
}

func latest(history []int, n int) []int { return history[max(0, len(history)-n):] }

// pad fills up with blanks. It counts characters; escape sequences must not be in text yet.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

// right is pad with the blanks before the text.
func right(text string, width int) string {
	return strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text))) + text
}

// wrapText breaks text into lines between words.
func wrapText(text string, width int) []string {
	var lines []string
	line, length := "", 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case length == 0:
			line, length = word, n
		case length+1+n > width:
			lines = append(lines, line)
			line, length = word, n
		default:
			line, length = line+" "+word, length+1+n
		}
	}
	return append(lines, line)
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
		default:
			if shown == width {
				if strings.Contains(line, "\x1b") {
					return line[:i] + reset
				}
				return line[:i]
			}
			shown++
		}
	}
	return line
}

// style colours text, or doesn't.
type style struct{ color bool }

const reset = "\x1b[0m"

func (s style) wrap(code, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + reset
}

func (s style) bold(text string) string    { return s.wrap("1", text) }
func (s style) dim(text string) string     { return s.wrap("2", text) }
func (s style) inverse(text string) string { return s.wrap("7", text) }
func (s style) red(text string) string     { return s.wrap("1;31", text) }
func (s style) green(text string) string   { return s.wrap("32", text) }
func (s style) yellow(text string) string  { return s.wrap("33", text) }
func (s style) blue(text string) string    { return s.wrap("34", text) }

// verdict shows a count that must be 0.
func (s style) verdict(name string, n uint64) string {
	text := name + " " + number(n)
	if n == 0 {
		return s.wrap("1;32", text)
	}
	return s.red(text)
}

// tolerated shows a count that should be 0.
func (s style) tolerated(name string, n uint64) string {
	text := name + " " + number(n)
	if n == 0 {
		return s.wrap("1;32", text)
	}
	return s.yellow(text)
}
