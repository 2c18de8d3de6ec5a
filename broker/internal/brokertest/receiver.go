package brokertest

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/child"
)

// receiverVariable makes a test program a receiver, at the address that is its value; with _FILE, the file for what it
// receives.
const receiverVariable = "OUTBOX_TEST_RECEIVER"

// AsReceiver is for TestMain: it says where to listen and into which file to write what comes, if this process is to be a
// [Receiver] and runs no tests.
func AsReceiver() (address, file string, is bool) {
	address = os.Getenv(receiverVariable)
	return address, os.Getenv(receiverVariable + "_FILE"), address != ""
}

// Receiver is the test program in a process of its own, which can be killed and frozen. One goroutine at a time.
type Receiver struct {
	Address string
	File    string
	command child.Command
	now     *child.Process
}

// StartReceiver returns a receiver that listens. It is killed at the end of the test.
func StartReceiver(t *testing.T) *Receiver {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := &Receiver{Address: listener.Addr().String(), File: filepath.Join(dir, "received")}
	r.command = child.Command{
		Path:    os.Args[0],
		Env:     append(os.Environ(), receiverVariable+"="+r.Address, receiverVariable+"_FILE="+r.File),
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
		_ = r.Kill() // it may be dead already
	})
	return r
}

// Start starts it at its address, after Kill once more, and returns when it listens.
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

// Kill ends it by SIGKILL.
func (r *Receiver) Kill() error { return r.now.Kill() }

// Freeze returns when the process has halted.
func (r *Receiver) Freeze() error { return r.now.Freeze() }

// Thaw lets it go on.
func (r *Receiver) Thaw() error { return r.now.Thaw() }
