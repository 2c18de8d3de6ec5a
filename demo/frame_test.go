package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pgoutbox/outbox/internal/check"
)

var update = flag.Bool("update", false, "write the golden frames anew")

// busyView is a demo in which much has happened.
func busyView() *view {
	v := &view{
		Elapsed: 83 * time.Second, Phase: phaseRunning,
		Postgres: "PostgreSQL 18.6", Broker: "NATS JetStream 2.15.2", Address: "nats://127.0.0.1:21286", BrokerUp: true, Page: "http://127.0.0.1:21287/",
		Wanted: 500,
		Counts: check.Counts{Committed: 41034, Delivered: 41029, Outstanding: 5, RolledBack: 1312, DeadLettered: 1, Duplicated: 2},
		Latency: latencies{Count: 2400, P50: 2100 * time.Microsecond,
			P95: 4 * time.Millisecond, P99: 38 * time.Millisecond, Max: time.Second},
		Relays: []relayView{{Name: "relay-1", PID: 4242, Role: standby}, {Name: "relay-2", PID: 4243, Role: leads}},
		Keys:   true,
		Events: []event{
			{At: 1200 * time.Millisecond, Kind: "leader", Text: "relay-1 has the lease and delivers, the other one stands by"},
			{At: 1400 * time.Millisecond, Kind: "first_delivered", Text: "first event delivered 1.4 s after the start"},
			{At: 12 * time.Second, Kind: "relay_killed", Text: "relay-1 killed (SIGKILL, process 4241): its lease must run out first"},
			{At: 15 * time.Second, Kind: "takeover", Text: "relay-2 took over after 3.1 s; 1,541 events have waited"},
			{At: 16 * time.Second, Kind: "relay_started", Text: "relay-1 is back as process 4242 and stands by"},
			{At: 31 * time.Second, Kind: "dead_letter", Text: "the poison of order-0 is a dead letter (refused): nats: " +
				"stream \"ORDERS\": message size exceeds maximum allowed (error 10054)"},
			{At: 31 * time.Second, Kind: "order_goes_on", Text: "order-0 goes on: its next event has arrived"},
		},
	}
	for i := range 90 {
		v.In.History = append(v.In.History, 480+i%7*5)
		v.Out.History = append(v.Out.History, 480+i%5*8)
	}
	v.Out.History[80], v.Out.History[81], v.Out.History[82] = 0, 0, 1900
	v.In.Now, v.Out.Now = 498, 499
	return v
}

func TestFramesLookAsTheyShould(t *testing.T) {
	t.Parallel()
	outage := busyView()
	outage.BrokerUp = false
	outage.Long = 4200 * time.Millisecond
	outage.Left = 12 * time.Second
	outage.Latency = latencies{}
	outage.Relays[0] = relayView{Name: "relay-1", Role: down}
	outage.Counts.Outstanding = 2512

	broken := busyView()
	broken.Lost, broken.Counts.Phantom, broken.Counts.Inverted = 3, 1, 2
	broken.Events = append(broken.Events,
		event{At: 80 * time.Second, Text: "relay-2 ended by itself (exit status 1): no space left", Bad: true})

	help := busyView()
	help.Help = true

	starting := &view{Phase: phaseStarting, Postgres: "PostgreSQL 18.6",
		Broker: "Kafka 4.1", Address: "127.0.0.1:9092, topic outbox-demo-0a1b2c3d",
		BrokerUp: true, Wanted: 500, Relays: []relayView{{Name: "relay-1", PID: 7, Role: standby},
			{Name: "relay-2", PID: 8, Role: standby}}}

	draining := busyView()
	draining.Phase = phaseDraining
	draining.Keys = false

	for _, test := range []struct {
		name          string
		view          *view
		width, height int
		style         style
	}{
		{"busy-80x24", busyView(), 80, 24, style{}},
		{"busy-120x40", busyView(), 120, 40, style{}},
		{"busy-120x40-colour", busyView(), 120, 40, style{color: true}},
		{"outage-80x24", outage, 80, 24, style{}},
		{"broken-120x40-colour", broken, 120, 40, style{color: true}},
		{"help-80x24", help, 80, 24, style{}},
		{"starting-80x24", starting, 80, 24, style{}},
		{"draining-80x24", draining, 80, 24, style{}},
		{"low-60x14", busyView(), 60, 14, style{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			lines := test.view.frame(test.width, test.height, test.style)
			checkSize(t, lines, test.width, test.height)
			var got strings.Builder
			for _, line := range lines {
				got.WriteString(strings.TrimRight(line, " ") + "\n")
			}
			golden(t, test.name, got.String())
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; run go test -update and look at the difference. Now it is:\n%s", path, got)
	}
}

func checkSize(t *testing.T, lines []string, width, height int) {
	t.Helper()
	if len(lines) != height {
		t.Errorf("%d lines for a terminal of %d", len(lines), height)
	}
	for i, line := range lines {
		if n := visible(line); n > width {
			t.Errorf("line %d is %d wide, the terminal %d: %q", i, n, width, line)
		}
	}
}

// visible counts the characters that a terminal shows.
func visible(line string) int {
	n := 0
	for {
		before, after, found := strings.Cut(line, "\x1b[")
		n += utf8.RuneCountInString(before)
		if !found {
			return n
		}
		_, line, _ = strings.Cut(after, "m")
	}
}

func TestFramesFitEveryTerminal(t *testing.T) {
	t.Parallel()
	for _, help := range []bool{false, true} {
		v := busyView()
		v.Help = help
		for width := 1; width < 200; width += 7 {
			for height := 1; height < 60; height++ {
				checkSize(t, v.frame(width, height, style{color: true}), width, height)
			}
		}
	}
}

func TestTheKeysStayVisibleOnALowTerminal(t *testing.T) {
	t.Parallel()
	frame := strings.Join(busyView().frame(80, 15, style{}), "\n")
	for _, wanted := range []string{"b broker down", "q quit", "lost 0", "delivered"} {
		if !strings.Contains(frame, wanted) {
			t.Errorf("80×15 doesn't show %q:\n%s", wanted, frame)
		}
	}
}

func TestCutKeepsEscapeSequencesWhole(t *testing.T) {
	t.Parallel()
	line := style{color: true}.paint(red, "0123456789") + "abc"
	for width := range 15 {
		got := cut(line, width)
		if n := visible(got); n != min(width, 13) {
			t.Errorf("cut to %d shows %d characters: %q", width, n, got)
		}
		if strings.Contains(got, "\x1b[1") && !strings.Contains(got, reset) {
			t.Errorf("cut to %d leaves the terminal red: %q", width, got)
		}
	}
}

func TestFormatsOfNumbersAndTimes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ got, want string }{
		{number(0), "0"},
		{number(999), "999"},
		{number(1000), "1,000"},
		{number(uint64(1234567)), "1,234,567"},
		{number(-1234), "-1,234"},
		{duration(0), "0.0 ms"},
		{duration(2149 * time.Microsecond), "2.1 ms"},
		{duration(9960 * time.Microsecond), "10 ms"},
		{duration(999 * time.Millisecond), "999 ms"},
		{duration(999900 * time.Microsecond), "1.0 s"},
		{duration(75 * time.Second), "1:15 min"},
		{clock(7 * time.Second), "0:07"},
		{clock(2*time.Hour + 62*time.Second), "2:01:02"},
		{plural(1, "event"), "1 event"},
		{plural(2500, "event"), "2,500 events"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

func TestSparklinesShareOneScale(t *testing.T) {
	t.Parallel()
	in, out := rates{History: []int{0, 50, 100}}, rates{History: []int{0, 100, 800}}
	if got := fmt.Sprintf("%s|%s", sparkline(in, out, 3), sparkline(out, in, 3)); got != "▁▁▁|▁▁█" {
		t.Errorf("got %s", got)
	}
	if got := sparkline(out, in, 5); got != "▁▁█  " {
		t.Errorf("a short history isn't filled up: %q", got)
	}
}
