package main

import (
	"slices"
	"sync"
	"time"
)

// event is something that happened.
type event struct {
	At   time.Duration `json:"-"`
	Kind string        `json:"event"` // for machines: broker_down, relay_killed, ...
	Text string        `json:"text"`
	Bad  bool          `json:"bad,omitempty"` // it shouldn't have happened
}

// story is what has happened so far.
type story struct {
	started time.Time
	tell    func(event) // is told of each event as it happens, one at a time

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
	s.events = s.events[max(0, len(s.events)-remembered):]
	s.tell(e)
}

func (s *story) latest() []event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}
