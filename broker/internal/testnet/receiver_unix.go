//go:build unix

package testnet

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
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
	cmd     *exec.Cmd
}

// StartReceiver returns a receiver that listens. It is killed at the end of the test.
func StartReceiver(t *testing.T) *Receiver {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Receiver{Address: listener.Addr().String(), File: filepath.Join(t.TempDir(), "received")}
	listener.Close()
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Kill() })
	return r
}

// Start starts it at its address, after Kill once more, and returns when it listens.
func (r *Receiver) Start() error {
	const patience = 60 * time.Second
	r.cmd = exec.Command(os.Args[0])
	r.cmd.Env = append(os.Environ(), receiverVariable+"="+r.Address, receiverVariable+"_FILE="+r.File)
	r.cmd.Stderr = os.Stderr
	if err := r.cmd.Start(); err != nil {
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
func (r *Receiver) Kill() error {
	_ = r.cmd.Process.Kill() // it may be dead already
	_ = r.cmd.Wait()
	return nil
}

// Freeze returns when the process has stopped: it runs for a while after the signal was sent.
func (r *Receiver) Freeze() error {
	if err := r.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(r.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return err
		case !status.Stopped():
			return fmt.Errorf("the receiver ended instead of stopping: %v", status)
		default:
			return nil
		}
	}
}

// Thaw lets it go on.
func (r *Receiver) Thaw() error { return r.cmd.Process.Signal(syscall.SIGCONT) }
