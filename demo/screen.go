package main

import (
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

// What a terminal is told. The alternate screen leaves what was there before untouched.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[2J"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[2K"
)

// screen draws on a terminal. Before and after it is a lineOutput: what was set up stays readable above the verdict.
type screen struct {
	*lineOutput
	out *os.File
	in  *os.File

	mu      sync.Mutex
	drawing bool
	saved   *term.State // nil where there is no keyboard
	pressed chan byte
	width   int
	height  int
}

var (
	_ output = (*screen)(nil)
	_ output = (*lineOutput)(nil)
	_ output = (*jsonOutput)(nil)
)

func (s *screen) interval() time.Duration { return 200 * time.Millisecond }

// running takes the terminal over.
func (s *screen) running() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if term.IsTerminal(int(s.in.Fd())) {
		saved, err := term.MakeRaw(int(s.in.Fd()))
		if err != nil {
			return fmt.Errorf("take over the terminal: %w", err)
		}
		s.saved = saved
		s.pressed = make(chan byte)
		// Nothing can interrupt a read from a terminal: this goroutine ends with the process, which is soon after close.
		go s.read()
	}
	s.drawing = true
	s.tell(enterScreen)
	return nil
}

// read sends what is pressed. A chunk that begins with ESC is a key like an arrow, and none of ours.
func (s *screen) read() {
	buffer := make([]byte, 64)
	for {
		n, err := s.in.Read(buffer)
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
			s.pressed <- key
		}
	}
}

func (s *screen) keys() <-chan byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pressed
}

func (s *screen) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drawing {
		return
	}
	s.drawing = false
	s.tell(leaveScreen)
	if s.saved != nil {
		if err := term.Restore(int(s.in.Fd()), s.saved); err != nil {
			s.failed(fmt.Errorf("give the terminal back: %w", err))
		}
	}
}

// event shows by the next frame while the screen is drawn.
func (s *screen) event(e event) {
	s.mu.Lock()
	drawing := s.drawing
	s.mu.Unlock()
	if !drawing {
		s.lineOutput.event(e)
	}
}

func (s *screen) sample(v *view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.drawing {
		return
	}
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	v.Keys = s.saved != nil
	var b strings.Builder
	if width != s.width || height != s.height {
		b.WriteString("\x1b[2J") // what the terminal has made of the old frame
		s.width, s.height = width, height
	}
	b.WriteString(home)
	for i, line := range v.frame(width, height, s.style) {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(clearLine + line)
	}
	s.tell(b.String())
}

// tell writes to the terminal at once, so that no frame is seen half drawn. The caller holds the lock.
func (s *screen) tell(text string) {
	if _, err := io.WriteString(s.out, text); err != nil && !errors.Is(err, os.ErrClosed) {
		s.failed(fmt.Errorf("write to the terminal: %w", err))
	}
}
