package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

const ctrlC = 3

// eraseLine goes to the line's beginning and erases it.
const eraseLine = "\r\x1b[K"

// output shows the demo as lines: events, and samples. On a terminal there is one sample, which stays the last line.
// With JSON each is an object. Safe for concurrent use.
type output struct {
	cfg      Config
	style    style
	failed   func(error)
	progress io.Writer // gets lines while the demo is set up
	terminal *os.File  // nil if the output goes elsewhere
	started  time.Time

	mu    sync.Mutex
	live  bool        // the terminal's last line is the latest sample
	last  string      // that line
	saved *term.State // nil if there is no keyboard
}

func newOutput(cfg Config, failed func(error)) *output {
	o := &output{cfg: cfg, failed: failed, started: time.Now()}
	o.progress = o
	if cfg.JSON {
		o.progress = cfg.Stderr
	}
	stdout, ok := cfg.Stdout.(*os.File)
	if ok && !cfg.JSON && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(stdout.Fd())) {
		o.terminal = stdout
		o.style.color = os.Getenv("NO_COLOR") == ""
	}
	return o
}

// Write writes lines of progress.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tell(string(p))
	return len(p), nil
}

// tell writes lines in one call, above the sample. The caller holds the lock.
func (o *output) tell(lines string) {
	if o.live {
		lines = eraseLine + lines + o.last
	}
	if o.saved != nil {
		lines = strings.ReplaceAll(lines, "\n", "\r\n") // the terminal takes them as they are
	}
	if _, err := io.WriteString(o.cfg.Stdout, lines); err != nil && !errors.Is(err, os.ErrClosed) {
		o.failed(fmt.Errorf("write to standard output: %w", err))
	}
}

// encode returns an object as a line: its "type" is event, sample or verdict.
func encode(object any) string {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // only for types of the demo
	}
	return string(text) + "\n"
}

// running is called when the setup is complete: on a terminal, pressed gets the keys from here on.
func (o *output) running(pressed chan<- byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.terminal == nil {
		return nil
	}
	o.live = true
	keyboard := int(o.cfg.Stdin.Fd())
	if !term.IsTerminal(keyboard) {
		return nil
	}
	saved, err := term.MakeRaw(keyboard)
	if err != nil {
		return fmt.Errorf("take over the keyboard: %w", err)
	}
	o.saved = saved
	o.tell("\n" + keys(o.style) + "\n")
	// Nothing can interrupt a read from a terminal. This goroutine ends with the process, soon after close.
	go o.read(pressed)
	return nil
}

// read sends the pressed keys. A chunk that begins with ESC is a key such as an arrow, and none of ours.
func (o *output) read(pressed chan<- byte) {
	buffer := make([]byte, 64)
	for {
		n, err := o.cfg.Stdin.Read(buffer)
		if err != nil {
			return
		}
		if buffer[0] == '\x1b' {
			continue
		}
		for _, key := range bytes.ToLower(buffer[:n]) {
			pressed <- key
		}
	}
}

// close restores the terminal. It may be called more than once.
func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.live {
		return
	}
	o.last = ""
	o.tell("")
	o.live = false
	if o.saved != nil {
		if err := term.Restore(int(o.cfg.Stdin.Fd()), o.saved); err != nil {
			o.failed(fmt.Errorf("give the terminal back: %w", err))
		}
		o.saved = nil
	}
}

// event is something that happened.
type event struct {
	Type string  `json:"type"`
	At   seconds `json:"at_seconds"` // since the start
	Kind string  `json:"event"`      // for machines: broker_down, relay_killed, ...
	Text string  `json:"text"`
	Bad  bool    `json:"bad,omitempty"` // a fault of the system under test
}

// note shows an event, fault shows one that should not happen.
func (o *output) note(kind, format string, args ...any)  { o.event(false, kind, format, args...) }
func (o *output) fault(kind, format string, args ...any) { o.event(true, kind, format, args...) }

func (o *output) event(bad bool, kind, format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := event{"event", seconds(time.Since(o.started)), kind, fmt.Sprintf(format, args...), bad}
	if o.cfg.JSON {
		o.tell(encode(e))
		return
	}
	mark, text := "*", e.Text
	if bad {
		mark, text = "!", o.style.paint(red, text)
	}
	o.tell(fmt.Sprintf("%6s  %s %s\n", clock(time.Duration(e.At)), o.style.paint(bold, mark), text))
}

// interval is how often sample is called.
func (o *output) interval() time.Duration {
	if o.terminal != nil {
		return 200 * time.Millisecond
	}
	return time.Second
}

// sample shows the current state.
func (o *output) sample(s *sample) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.cfg.JSON:
		o.tell(encode(s))
	case o.terminal == nil:
		o.tell(s.line(o.style) + "\n")
	case o.live:
		width, _, err := term.GetSize(int(o.terminal.Fd()))
		if err != nil || width <= 0 {
			width = 80
		}
		o.last = cut(s.line(o.style), width-1)
		o.tell("")
	}
}

// verdict shows the verdict, after close.
func (o *output) verdict(v verdict) error {
	text := v.text(o.style) + next(o.style)
	if o.cfg.JSON {
		text = encode(v.json())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	_, err := io.WriteString(o.cfg.Stdout, text)
	return err
}

// seconds is a duration in JSON.
type seconds time.Duration

func (s seconds) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", time.Duration(s).Seconds()), nil
}
