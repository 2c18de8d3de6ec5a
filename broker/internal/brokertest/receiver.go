package brokertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/child"
)

// receiverVariable makes a test program a receiver; its value is the address. The variable with _FILE appended has the
// file for what it receives.
const receiverVariable = "OUTBOX_TEST_RECEIVER"

// Receivers is for TestMain: it returns the exit code of the tests. If this process is to be a [Receiver], it runs no
// tests, but serve: what accept returns nil for is in the receiver's file, and serve answers that it was accepted.
func Receivers(m *testing.M, serve func(l net.Listener, accept func(context.Context, *outbox.Message) error) error) int {
	address := os.Getenv(receiverVariable)
	if address == "" {
		return Leaks(m.Run())
	}
	fmt.Fprintln(os.Stderr, receive(address, os.Getenv(receiverVariable+"_FILE"), serve))
	return 1
}

func receive(address, path string, serve func(net.Listener, func(context.Context, *outbox.Message) error) error) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	return serve(listener, func(_ context.Context, m *outbox.Message) error {
		line, err := json.Marshal(m)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		_, err = file.Write(append(line, '\n'))
		return err
	})
}

// Receiver is the test program in a process of its own, which can be killed and frozen. Not safe for concurrent use.
type Receiver struct {
	Address string
	file    string
	command child.Command
	now     *child.Process
}

// StartReceiver returns a receiver that listens, and kills it at the end of the test.
func StartReceiver(t *testing.T) *Receiver {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := &Receiver{Address: listener.Addr().String(), file: filepath.Join(dir, "received")}
	r.command = child.Command{
		Path:    os.Args[0],
		Env:     append(os.Environ(), receiverVariable+"="+r.Address, receiverVariable+"_FILE="+r.file),
		LogFile: filepath.Join(dir, "log"),
	}
	listener.Close()
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the receiver's log ends with:\n%s", r.now.Log())
		}
		_ = r.Kill() // the process may be dead already
	})
	return r
}

// Start starts the receiver at its address, again after Kill, and returns when it listens.
func (r *Receiver) Start() (err error) {
	const patience = 60 * time.Second
	if r.now, err = child.Start(r.command); err != nil {
		return err
	}
	deadline := time.Now().Add(patience)
	for {
		conn, err := net.Dial("tcp", r.Address)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Received returns all that the receiver has accepted in all its lives.
func (r *Receiver) Received(context.Context) (all []outbox.Message, err error) {
	data, err := os.ReadFile(r.file)
	if err != nil {
		return nil, err
	}
	for lines := json.NewDecoder(bytes.NewReader(data)); ; {
		var m outbox.Message
		switch err := lines.Decode(&m); err {
		case nil:
			all = append(all, m)
		case io.EOF:
			return all, nil
		default:
			return nil, err
		}
	}
}

// Kill ends it by SIGKILL.
func (r *Receiver) Kill() error { return r.now.Kill() }

// Freeze returns when the process has halted.
func (r *Receiver) Freeze() error { return r.now.Freeze() }

// Thaw resumes the process.
func (r *Receiver) Thaw() error { return r.now.Thaw() }

// Collected has the messages that a receiver in a test accepted. The zero value is empty. Safe for concurrent use.
type Collected struct {
	mu  sync.Mutex
	all []outbox.Message
}

// Accept returns what accepts the messages that check finds no fault with; nil finds none.
func (c *Collected) Accept(check func(*outbox.Message) error) func(context.Context, *outbox.Message) error {
	return func(_ context.Context, m *outbox.Message) error {
		if check != nil {
			if err := check(m); err != nil {
				return err
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all = append(c.all, *m)
		return nil
	}
}

// Messages returns the accepted messages, in that order.
func (c *Collected) Messages() []outbox.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}
