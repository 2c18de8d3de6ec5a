package main

import (
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

// Escape sequences. The alternate screen leaves the previous content of the terminal untouched.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[2J"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	clearScreen = "\x1b[2J"
	home        = "\x1b[H"
	clearLine   = "\x1b[2K"
)

// output shows the demo: drawn on a terminal, as a line per second, or as JSON. On a terminal it writes lines before
// and after it draws, so the setup stays readable above the verdict. Safe for concurrent use.
type output struct {
	cfg      Config
	style    style
	failed   func(error)
	progress io.Writer // gets lines while the demo is set up
	screen   *os.File  // nil if nothing is drawn
	started  time.Time

	mu            sync.Mutex
	events        []event // the latest, the last one at the end
	drawing       bool
	saved         *term.State // nil if there is no keyboard
	pressed       chan byte
	width, height int
}

func newOutput(cfg Config, failed func(error)) *output {
	o := &output{cfg: cfg, failed: failed, started: time.Now()}
	o.progress = o
	if cfg.JSON {
		o.progress = cfg.Stderr
	}
	stdout, ok := cfg.Stdout.(*os.File)
	if ok && !cfg.JSON && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(stdout.Fd())) {
		o.screen = stdout
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

// tell writes in one call, so that no frame is seen half drawn. The caller holds the lock.
func (o *output) tell(text string) {
	if _, err := io.WriteString(o.cfg.Stdout, text); err != nil && !errors.Is(err, os.ErrClosed) {
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

// running is called when the setup is complete: it takes over the terminal.
func (o *output) running() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.screen == nil {
		return nil
	}
	if keyboard := int(o.cfg.Stdin.Fd()); term.IsTerminal(keyboard) {
		saved, err := term.MakeRaw(keyboard)
		if err != nil {
			return fmt.Errorf("take over the terminal: %w", err)
		}
		o.saved = saved
		o.pressed = make(chan byte)
		// Nothing can interrupt a read from a terminal. This goroutine ends with the process, soon after close.
		go o.read()
	}
	o.drawing = true
	o.tell(enterScreen)
	return nil
}

// read sends the pressed keys. A chunk that begins with ESC is a key such as an arrow, and none of ours.
func (o *output) read() {
	buffer := make([]byte, 64)
	for {
		n, err := o.cfg.Stdin.Read(buffer)
		if err != nil {
			return
		}
		if buffer[0] == '\x1b' {
			continue
		}
		for _, key := range buffer[:n] {
			if key >= 'A' && key <= 'Z' {
				key += 'a' - 'A'
			}
			o.pressed <- key
		}
	}
}

// keys returns the channel of pressed keys; nil if there is no keyboard.
func (o *output) keys() <-chan byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pressed
}

// close restores the terminal. It may be called more than once.
func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.drawing {
		return
	}
	o.drawing = false
	o.tell(leaveScreen)
	if o.saved != nil {
		if err := term.Restore(int(o.cfg.Stdin.Fd()), o.saved); err != nil {
			o.failed(fmt.Errorf("give the terminal back: %w", err))
		}
	}
}

// event is something that happened.
type event struct {
	At   time.Duration `json:"-"`     // since the start
	Kind string        `json:"event"` // for machines: broker_down, relay_killed, ...
	Text string        `json:"text"`
	Bad  bool          `json:"bad,omitempty"` // a fault of the system under test
}

// remembered is how many events a frame may show.
const remembered = 200

// note shows an event, fault shows one that should not happen. While the screen is drawn, the next frame shows it.
func (o *output) note(kind, format string, args ...any)  { o.event(false, kind, format, args...) }
func (o *output) fault(kind, format string, args ...any) { o.event(true, kind, format, args...) }

func (o *output) event(bad bool, kind, format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	e := event{At: time.Since(o.started), Kind: kind, Text: fmt.Sprintf(format, args...), Bad: bad}
	o.events = append(o.events, e)
	o.events = o.events[max(0, len(o.events)-remembered):]
	switch {
	case o.cfg.JSON:
		o.tell(encode(struct {
			Type string  `json:"type"`
			At   seconds `json:"at_seconds"`
			event
		}{"event", seconds(e.At), e}))
	case !o.drawing:
		mark, text := "*", e.Text
		if e.Bad {
			mark, text = "!", o.style.paint(red, text)
		}
		o.tell(fmt.Sprintf("%6s  %s %s\n", clock(e.At), o.style.paint(bold, mark), text))
	}
}

// interval is how often sample is called.
func (o *output) interval() time.Duration {
	if o.screen != nil {
		return 200 * time.Millisecond
	}
	return time.Second
}

// sample shows the current state.
func (o *output) sample(v *view) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.cfg.JSON:
		o.tell(encode(v.json()))
	case o.drawing:
		o.draw(v)
	case o.screen == nil:
		o.tell(v.line(o.style))
	}
}

func (o *output) draw(v *view) {
	width, height, err := term.GetSize(int(o.screen.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	v.Keys, v.Events = o.saved != nil, o.events
	var b strings.Builder
	if width != o.width || height != o.height {
		b.WriteString(clearScreen) // the terminal may have rearranged the old frame
		o.width, o.height = width, height
	}
	b.WriteString(home + clearLine + strings.Join(v.frame(width, height, o.style), "\r\n"+clearLine))
	o.tell(b.String())
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
