package main

import (
	"sync"
	"time"
)

// story is what has happened so far.
type story struct {
	started time.Time
	// tell is told of each event as it happens, one at a time. It may be nil.
	tell func(event)

	mu     sync.Mutex
	events []event
}

// remembered is how many events the screen may show.
const remembered = 200

func (s *story) add(kind, text string) { s.append(event{Kind: kind, Text: text}) }

// fault is add for what shouldn't have happened.
func (s *story) fault(kind, text string) { s.append(event{Kind: kind, Text: text, Bad: true}) }

func (s *story) append(e event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.At = time.Since(s.started)
	s.events = append(s.events, e)
	if len(s.events) > remembered {
		s.events = append(s.events[:0], s.events[1:]...)
	}
	if s.tell != nil {
		s.tell(e)
	}
}

func (s *story) latest() []event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]event(nil), s.events...)
}
