package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// destination is the name of the relays' only destination.
const destination = "demo"

// relays are two relays of one destination, as processes of their own: one delivers, the other stands by.
type relays struct {
	command []string // without the file of its settings
	story   *story
	// failed is told when the relays can't work at all.
	failed func(error)

	mu       sync.Mutex
	stopping bool
	members  []*member
	restarts sync.WaitGroup
	quit     chan struct{} // closed when stopping
}

type member struct {
	name    string
	config  string // file
	log     string // file
	child   *child
	started time.Time
	killed  bool // by the demo
	quick   int  // ends soon after the start, in a row
}

// startRelays writes a configuration for each relay into dir and starts them.
func startRelays(r *relays, dir, databaseURL string, b broker) error {
	r.quit = make(chan struct{})
	for _, name := range []string{"relay-1", "relay-2"} {
		m := &member{name: name, config: filepath.Join(dir, name+".json"), log: filepath.Join(dir, name+".log")}
		text, err := json.Marshal(relaySettings{Name: name, Database: databaseURL, Broker: b.target()})
		if err != nil {
			return fmt.Errorf("configure %s: %w", name, err)
		}
		if err := os.WriteFile(m.config, text, 0o600); err != nil {
			return err
		}
		r.members = append(r.members, m)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		if err := r.start(m); err != nil {
			return err
		}
	}
	return nil
}

// start starts a relay and watches over it. The caller holds the lock.
func (r *relays) start(m *member) error {
	c, err := startChild(append(r.command[:len(r.command):len(r.command)], m.config), m.log)
	if err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	m.child, m.started, m.killed = c, time.Now(), false
	r.restarts.Go(func() { r.watch(m, c) })
	return nil
}

// restartPause is how long a relay stays away: as long as a supervisor would need to bring it back.
const restartPause = 4 * time.Second

// watch starts a relay again when it has ended.
func (r *relays) watch(m *member, c *child) {
	select {
	case <-c.exited:
	case <-r.quit:
		return
	}
	r.mu.Lock()
	pause := restartPause
	if !m.killed && !r.stopping {
		pause = time.Second
		if m.quick++; time.Since(m.started) > 10*time.Second {
			m.quick = 0
		}
		if m.quick >= 3 {
			r.mu.Unlock()
			r.failed(fmt.Errorf("%s ends each time it is started (%v); its log ends with:\n%s", m.name, c.err, lastLines(m.log, 12)))
			return
		}
		r.story.fault("relay_ended", fmt.Sprintf("%s ended by itself (%v): %s", m.name, c.err, lastLines(m.log, 1)))
	}
	r.mu.Unlock()

	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.quit:
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return
	}
	if err := r.start(m); err != nil {
		r.failed(err)
		return
	}
	r.story.add("relay_started", fmt.Sprintf("%s is back as process %d and stands by", m.name, m.child.pid))
}

// kill sends SIGKILL to the named relay and returns its process id, 0 if it doesn't run.
func (r *relays) kill(name string) (pid int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		if m.name == name && m.child.running() && !m.killed {
			m.killed = true
			return m.child.pid, m.child.kill()
		}
	}
	return 0, nil
}

// relayState is what a person wants to know about a relay.
type relayState struct {
	Name    string
	PID     int // 0 while it doesn't run
	Started time.Time
}

func (r *relays) states() []relayState {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []relayState
	for _, m := range r.members {
		s := relayState{Name: m.name}
		if m.child.running() {
			s.PID, s.Started = m.child.pid, m.started
		}
		all = append(all, s)
	}
	return all
}

// logs returns the ends of the relays' logs.
func (r *relays) logs() string {
	var b strings.Builder
	for _, m := range r.members {
		fmt.Fprintf(&b, "%s:\n%s\n", m.name, lastLines(m.log, 5))
	}
	return strings.TrimSpace(b.String())
}

// stop ends the relays: in an orderly way, unless ctx has ended or they take long. When it returns, none runs.
func (r *relays) stop(ctx context.Context) error {
	r.mu.Lock()
	if r.stopping || r.quit == nil {
		r.mu.Unlock()
		return nil
	}
	r.stopping = true
	close(r.quit)
	r.mu.Unlock()
	r.restarts.Wait()

	patience := 15 * time.Second
	if ctx.Err() != nil {
		patience = 0
	}
	var wait sync.WaitGroup
	errs := make([]error, len(r.members))
	for i, m := range r.members {
		if m.child == nil || !m.child.running() {
			continue
		}
		wait.Go(func() {
			orderly, err := m.child.stop(patience)
			if !orderly && patience > 0 {
				err = errors.Join(fmt.Errorf("%s did not end within %v of SIGTERM", m.name, patience), err)
			}
			errs[i] = err
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
