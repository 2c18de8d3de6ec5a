package brokertest

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/child"
)

// receiverVariable makes a test program a receiver; its value is the address. The variable with _FILE appended has the
// file for what it receives.
const receiverVariable = "OUTBOX_TEST_RECEIVER"

// AsReceiver is for TestMain: if this process is to be a [Receiver] and run no tests, it returns the address to listen
// on and the file to write to.
func AsReceiver() (address, file string, is bool) {
	address = os.Getenv(receiverVariable)
	return address, os.Getenv(receiverVariable + "_FILE"), address != ""
}

// Receiver is the test program in a process of its own, which can be killed and frozen. Not safe for concurrent use.
type Receiver struct {
	Address string
	File    string
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

// Kill ends it by SIGKILL.
func (r *Receiver) Kill() error { return r.now.Kill() }

// Freeze returns when the process has halted.
func (r *Receiver) Freeze() error { return r.now.Freeze() }

// Thaw resumes the process.
func (r *Receiver) Thaw() error { return r.now.Thaw() }
