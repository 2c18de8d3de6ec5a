// Package relay delivers committed messages from a [Source] to a [Broker]: at least once, in order per
// key, never one that was rolled back.
//
// Its core is a state machine without I/O, clock or goroutines; a thin runner performs the actions that
// it asks for. docs/design.md follows one message through it.
package relay

import (
	"errors"
	"sync"
	"sync/atomic"
)

// Relay delivers from one source to one broker.
type Relay struct {
	source Source
	broker Broker
	cfg    Config

	active         atomic.Bool
	observerPanics sync.Once
}

// New returns a relay that is not running yet. It reports every fault of cfg at once. The broker remains
// the caller's to close, after Run has returned.
func New(source Source, broker Broker, cfg Config) (*Relay, error) {
	if source == nil || broker == nil {
		return nil, errors.New("relay: New needs a source and a broker")
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Relay{source: source, broker: broker, cfg: cfg}, nil
}

// observe has tell call the observer. Its first panic is logged.
func (r *Relay) observe(tell func()) {
	if err := try("Observer", tell); err != nil {
		r.observerPanics.Do(func() {
			r.cfg.Logger.Error("the observer has panicked; further panics of it are not logged",
				"destination", r.cfg.Name, "error", err)
		})
	}
}
