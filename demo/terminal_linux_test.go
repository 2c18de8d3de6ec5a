package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pgoutbox/outbox/internal/await"
)

// terminal is a pseudo terminal: the demo has one end, the test reads what it shows at the other.
type terminal struct {
	*os.File // the demo's end
	person   *os.File

	mu    sync.Mutex
	shown strings.Builder
}

func newTerminal(t *testing.T, width, height uint16) *terminal {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	demo, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { demo.Close() })
	term := &terminal{File: demo, person: person}
	term.resize(t, width, height)
	go func() { // it ends when the test closes the terminal
		buffer := make([]byte, 4096)
		for {
			n, err := person.Read(buffer)
			if err != nil {
				return
			}
			term.mu.Lock()
			term.shown.Write(buffer[:n])
			term.mu.Unlock()
		}
	}()
	return term
}

func (term *terminal) resize(t *testing.T, width, height uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(term.person.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}); err != nil {
		t.Fatal(err)
	}
}

// shows waits until the terminal has shown text, and returns all of it.
func (term *terminal) shows(t *testing.T, text string) (all string) {
	t.Helper()
	await.Until(t, fmt.Sprintf("%q on the terminal", text), func() bool {
		term.mu.Lock()
		defer term.mu.Unlock()
		all = term.shown.String()
		return strings.Contains(all, text)
	})
	return all
}

func (term *terminal) forget() {
	term.mu.Lock()
	defer term.mu.Unlock()
	term.shown.Reset()
}

// raw tells whether keys come one by one.
func (term *terminal) raw(t *testing.T) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(term.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return state.Lflag&unix.ICANON == 0
}

func newOutputOn(t *testing.T, term *terminal) *output {
	t.Helper()
	o := newOutput(Config{Stdout: term.File, Stdin: term.File}, func(err error) { t.Error(err) })
	if o.terminal == nil {
		t.Fatal("a terminal isn't recognised")
	}
	return o
}

func TestTheLatestSampleStaysTheLastLineOfATerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	term := newTerminal(t, 80, 24)
	o := newOutputOn(t, term)
	o.note("note", "before")
	term.shows(t, "before")

	pressed := make(chan byte)
	if err := o.running(pressed); err != nil {
		t.Fatal(err)
	}
	term.shows(t, "b broker down")
	if !term.raw(t) {
		t.Error("keys wait for the end of a line")
	}
	line := busy().line(style{})
	o.sample(busy())
	term.shows(t, line[:79])
	term.forget()
	o.note("note", "meanwhile")
	if all := term.shows(t, line[:79]); !strings.HasPrefix(all, eraseLine) || !strings.Contains(all, "meanwhile\r\n") {
		t.Errorf("a note isn't above the sample: %q", all)
	}
	term.forget()
	term.resize(t, 40, 30)
	o.sample(busy())
	if all := term.shows(t, line[:39]); all != eraseLine+line[:39] {
		t.Errorf("40 columns show %q", all)
	}

	press := func(keys string) {
		if _, err := term.person.WriteString(keys); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ keys, want string }{{"k", "k"}, {"B", "b"}, {"\x03", "\x03"}} {
		press(test.keys)
		if got := <-pressed; string(got) != test.want {
			t.Errorf("pressed %q, got %q", test.keys, got)
		}
	}
	press("\x1b[B") // an arrow is no key of ours
	for got := byte(0); got == 0; {
		press("+") // this one may be read together with the arrow, and is then passed over with it
		select {
		case got = <-pressed:
			if got != '+' {
				t.Errorf("pressed an arrow and +, got %q", got)
			}
		case <-time.After(100 * time.Millisecond):
		}
	}

	o.close()
	o.close()
	if term.raw(t) {
		t.Error("the terminal wasn't given back")
	}
	term.forget()
	o.sample(busy())
	o.note("note", "after")
	if all := term.shows(t, "after"); strings.Contains(all, "lost") {
		t.Errorf("a sample is shown after the end: %q", all)
	}
}

func TestAPanicGivesTheTerminalBack(t *testing.T) {
	t.Setenv("TERM", "xterm")
	term := newTerminal(t, 80, 24)
	d := &demo{out: newOutputOn(t, term)}
	if err := d.out.running(make(chan byte)); err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if r := recover(); r != "on purpose" {
				t.Errorf("recovered %v", r)
			}
		}()
		defer d.onPanic()
		panic("on purpose")
	}()
	if term.raw(t) {
		t.Error("the terminal wasn't given back")
	}
}

func TestADumbTerminalGetsLines(t *testing.T) {
	t.Setenv("TERM", "dumb")
	term := newTerminal(t, 80, 24)
	o := newOutput(Config{Stdout: term.File, Stdin: term.File}, func(err error) { t.Error(err) })
	if o.terminal != nil {
		t.Fatal("the output would have a last line that changes")
	}
	o.sample(busy())
	if all := term.shows(t, "duplicated 2\r\n"); strings.Contains(all, "\x1b") {
		t.Errorf("escape sequences: %q", all)
	}
}
