package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pgoutbox/outbox/internal/child"
)

// destination is the name of the relays' only destination.
const destination = "demo"

// relays are two relays of one destination, as processes of their own: one delivers, the other stands by.
type relays struct {
	demo *demo
	quit chan struct{} // closed when no relay may be restarted

	mu      sync.Mutex
	members []*member
	keepers sync.WaitGroup
}

type member struct {
	name    string
	command child.Command
	process *child.Process // the latest process
	killed  bool           // by the demo
}

// start writes the settings of each relay into a file and starts them.
func (r *relays) start() error {
	dir, command := r.demo.folder, r.demo.cfg.Relay
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range []string{"relay-1", "relay-2"} {
		file := filepath.Join(dir, name+".json")
		db := r.demo.db
		text, err := json.Marshal(relaySettings{Name: name, DatabaseURL: db.url, Database: db.name, NATS: r.demo.broker.address()})
		if err = errors.Join(err, os.WriteFile(file, text, 0o600)); err != nil {
			return fmt.Errorf("configure %s: %w", name, err)
		}
		args := append(slices.Clone(command[1:]), file)
		m := &member{name: name, command: child.Command{Path: command[0], Args: args, LogFile: filepath.Join(dir, name+".log")}}
		if m.process, err = child.Start(m.command); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r.members = append(r.members, m)
		r.keepers.Go(func() { r.keep(m) })
	}
	return nil
}

// keep restarts a relay each time it ends.
func (r *relays) keep(m *member) {
	process, quick := m.process, 0 // how often in a row it ended soon after its start
	for started := time.Now(); ; started = time.Now() {
		select {
		case <-process.Exited():
		case <-r.quit:
			return
		}
		r.mu.Lock()
		killed := m.killed
		r.mu.Unlock()
		pause := 4 * time.Second // about the time in which a supervisor would restart it
		if !killed {
			pause = time.Second
			if quick++; time.Since(started) > 10*time.Second {
				quick = 0
			}
			if quick >= 3 {
				r.demo.fail(fmt.Errorf("%s ends each time it is started (%v); its log ends with:\n%s", m.name, process.Err(), m.log(12)))
				return
			}
			r.demo.out.fault("relay_ended", "%s ended by itself (%v): %s", m.name, process.Err(), m.log(1))
		}
		select {
		case <-time.After(pause):
		case <-r.quit:
			return
		}
		var err error
		if process, err = child.Start(m.command); err != nil {
			r.demo.fail(err)
			return
		}
		r.mu.Lock()
		m.process, m.killed = process, false
		r.mu.Unlock()
		r.demo.out.note("relay_started", "%s is back as process %d and stands by", m.name, process.PID())
	}
}

// kill sends SIGKILL to the named relay and returns its process id, or 0 if it isn't running.
func (r *relays) kill(name string) (pid int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		if m.name == name && m.process.Running() && !m.killed {
			m.killed = true
			return m.process.PID(), m.process.Kill()
		}
	}
	return 0, nil
}

// states returns the relays' states by name; leader is the name of the leading one.
func (r *relays) states(leader string) map[string]relayState {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[string]relayState)
	for _, m := range r.members {
		switch {
		case !m.process.Running():
			all[m.name] = relayState{0, down}
		case m.name == leader:
			all[m.name] = relayState{m.process.PID(), leads}
		default:
			all[m.name] = relayState{m.process.PID(), standby}
		}
	}
	return all
}

// log returns the last lines of a relay's log.
func (m *member) log(n int) string {
	lines := strings.Split(strings.TrimSpace(child.Tail(m.command.LogFile)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// logs returns the ends of the relays' logs.
func (r *relays) logs() string {
	var logs []string
	for _, m := range r.members {
		logs = append(logs, m.name+":\n"+m.log(5))
	}
	return strings.Join(logs, "\n")
}

// stop ends the relays: regularly, unless that takes longer than patience. When it returns, none runs. A second call
// does nothing.
func (r *relays) stop(patience time.Duration) error {
	if closed(r.quit) {
		return nil
	}
	close(r.quit)
	r.keepers.Wait()
	var stopping sync.WaitGroup
	errs := make([]error, len(r.members))
	for i, m := range r.members {
		stopping.Go(func() {
			orderly, err := m.process.Stop(syscall.SIGTERM, patience)
			if !orderly && patience > 0 && child.Signals {
				err = errors.Join(fmt.Errorf("%s did not end within %v of SIGTERM", m.name, patience), err)
			}
			errs[i] = err
		})
	}
	stopping.Wait()
	return errors.Join(errs...)
}
