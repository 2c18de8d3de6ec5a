package rig

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/pgoutbox/outbox/internal/child"
)

// Relay is an "outbox relay" as a process of its own.
type Relay struct{ Child }

// StartRelay starts the binary with a configuration, which is kept with the relay's log in dir.
func StartRelay(binary, dir, name, config string) (*Relay, error) {
	path := filepath.Join(dir, name+".yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return nil, err
	}
	r := &Relay{Child{Name: name, Command: child.Command{Path: binary, Args: []string{"relay", "--config", path}, LogFile: path + ".log"}}}
	return r, r.Start()
}

// Up waits until a relay that was started says so. A relay that can't reach the database when it is
// started ends with an error: it is started again then, as a supervisor would.
func (r *Relay) Up(ctx context.Context, within time.Duration) error {
	for deadline := time.Now().Add(within); ; {
		if text, err := r.Life(); err != nil || bytes.Contains(text, []byte("relay started")) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("relay %s is not up after %v; its log ends with:\n%s", r.Name, within, r.Log())
		}
		if err := Pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
		if !r.Running() {
			if err := r.Start(); err != nil {
				return err
			}
		}
	}
}

// FreeAddress is one of loopback that a relay can listen on.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
