package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "write the golden files anew")

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

// busy is a demo in which much has happened.
func busy() *sample {
	return &sample{
		At: seconds(83 * time.Second), Phase: phaseRunning, In: 498, Out: 499, BrokerUp: true,
		Committed: 41034, Delivered: 41029, UnderWay: 5, RolledBack: 1312, Dead: 1, Duplicated: 2,
		Latency: latencies{Count: 2400, P99: 38 * time.Millisecond},
		Relays:  map[string]relayState{"relay-1": {4242, standby}, "relay-2": {4243, leads}},
	}
}

func TestALineHasFirstWhatMustStayZero(t *testing.T) {
	t.Parallel()
	outage := busy()
	outage.BrokerUp, outage.Latency, outage.UnderWay, outage.Lost = false, latencies{}, 2512, 3
	outage.Relays = map[string]relayState{"relay-1": {0, down}, "relay-2": {4243, standby}}
	for _, test := range []struct{ got, want string }{
		{busy().line(style{}), "  1:23  lost 0, phantom 0, out of order 0; in 498/s, out 499/s, 5 under way, p99 38 ms, " +
			"relay-2 leads, broker up, duplicated 2"},
		{outage.line(style{}), "  1:23  lost 3, phantom 0, out of order 0; in 498/s, out 499/s, 2,512 under way, no event arrived, " +
			"no relay leads, broker down, duplicated 2"},
	} {
		if test.got != test.want {
			t.Errorf("got  %s\nwant %s", test.got, test.want)
		}
	}
	if line := outage.line(style{color: true}); !strings.Contains(line, style{color: true}.paint(red, "lost 3")) {
		t.Errorf("what is lost isn't red: %q", line)
	}
}

func TestKeysAndHelpNameEveryFaultAndFitATerminalOf80(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"keys": keys(style{color: true}), "help": help(style{color: true})} {
		for _, fault := range faultTable {
			if !strings.Contains(text, style{color: true}.paint(bold, string(fault.key))) {
				t.Errorf("%s don't have %s:\n%s", name, fault.name, text)
			}
		}
		for line := range strings.Lines(text) {
			if n := visible(strings.TrimRight(line, "\n")); n > 80 {
				t.Errorf("%d wide: %s", n, line)
			}
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

func TestFormatsOfTimes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ got, want string }{
		{duration(0), "0.0 ms"},
		{duration(2149 * time.Microsecond), "2.1 ms"},
		{duration(9960 * time.Microsecond), "10 ms"},
		{duration(999 * time.Millisecond), "999 ms"},
		{duration(999900 * time.Microsecond), "1.0 s"},
		{duration(75 * time.Second), "1:15 min"},
		{clock(7 * time.Second), "0:07"},
		{clock(2*time.Hour + 62*time.Second), "2:01:02"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}
