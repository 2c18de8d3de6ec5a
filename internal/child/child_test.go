//go:build unix

package child

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// started starts a shell script, which is killed when the test ends.
func started(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Command{Path: "/bin/sh", Args: []string{"-c", script}, LogFile: filepath.Join(t.TempDir(), "log"), Piped: true})
	must(t, err)
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// says waits for a line.
func says(t *testing.T, p *Process, want string) {
	t.Helper()
	got := make([]byte, len(want)+1)
	if _, err := io.ReadFull(p.Out, got); err != nil || string(got) != want+"\n" {
		t.Fatalf("it says %q, %v; want %q", got, err, want)
	}
}

func TestAChildEndsByItsSignalThawedIfNeedBe(t *testing.T) {
	t.Parallel()
	p := started(t, `trap 'echo bye >&2; exit 3' TERM; echo up; while :; do sleep 0.01; done`)
	says(t, p, "up")
	must(t, p.Freeze())
	if !p.Running() || p.Err() != nil {
		t.Errorf("a frozen process runs: %v, %v", p.Running(), p.Err())
	}
	byItself, err := p.Stop(syscall.SIGTERM, time.Minute)
	if err != nil || !byItself {
		t.Fatalf("stopped by itself: %v, %v", byItself, err)
	}
	if p.Running() || p.Err() == nil || p.Err().Error() != "exit status 3" {
		t.Errorf("it runs: %v; it ended with %v", p.Running(), p.Err())
	}
	if text, err := p.Life(); err != nil || string(text) != "bye\n" || p.Log() != "bye\n" {
		t.Errorf("it wrote %q, %v; the log is %q", text, err, p.Log())
	}
	must(t, p.Signal(syscall.SIGTERM)) // nothing to signal is fine
	must(t, p.Kill())
}

func TestAChildThatDoesNotStopIsKilledWithItsChildren(t *testing.T) {
	t.Parallel()
	p := started(t, `trap '' TERM; sh -c 'echo $$; exec sleep 1000' & wait; sleep 1000`)
	var line []byte
	for one := make([]byte, 1); len(line) == 0 || one[0] != '\n'; {
		_, err := io.ReadFull(p.Out, one)
		must(t, err)
		line = append(line, one...)
	}
	below, err := strconv.Atoi(strings.TrimSpace(string(line)))
	must(t, err)
	if byItself, err := p.Stop(syscall.SIGTERM, 0); err != nil || byItself {
		t.Fatalf("stopped by itself: %v, %v", byItself, err)
	}
	if Alive(p.PID()) || Alive(below) {
		t.Errorf("alive: %v, its child %v", Alive(p.PID()), Alive(below))
	}
}

func TestTheErrorOfACommandThatFailsHoldsWhatItWrote(t *testing.T) {
	t.Parallel()
	err := Run(t.Context(), Command{Path: "/bin/sh", Args: []string{"-c", "echo no; exit 2"}})
	if err == nil || !strings.Contains(err.Error(), "exit status 2: no") {
		t.Errorf("%v", err)
	}
	if p, err := Start(Command{Path: "/nowhere/at/all", LogFile: filepath.Join(t.TempDir(), "log")}); err == nil {
		t.Errorf("started: %v", p.PID())
	}
}

func TestTheGuardRunsItsScriptWhenItsPipeCloses(t *testing.T) {
	t.Parallel()
	guarded := exec.Command("sleep", "1000")
	must(t, guarded.Start())
	pid := strconv.Itoa(guarded.Process.Pid)
	cancel, err := OnDeath(signalScript, "15", pid)
	must(t, err)
	cancel()
	if !Alive(guarded.Process.Pid) {
		t.Fatal("the guard acted after it was cancelled")
	}

	// This process's end of the pipe closes when this process dies. Here another process holds that end.
	holder := exec.Command("sleep", "1000")
	in, out, err := os.Pipe()
	must(t, err)
	holder.ExtraFiles = []*os.File{out}
	must(t, holder.Start())
	must(t, out.Close())
	shell, err := startGuard(in, signalScript, "15", pid)
	must(t, err)
	must(t, in.Close())
	must(t, holder.Process.Kill())
	_ = holder.Wait()
	if err := guarded.Wait(); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("it ended with %v, want terminated", err)
	}
	_ = shell.Wait()
}

func TestAFolderOfADeadProcessIsSwept(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	dead := exec.Command("true")
	must(t, dead.Run())
	left := filepath.Join(base, "test-"+strconv.Itoa(dead.Process.Pid)+"-x")
	must(t, os.Mkdir(left, 0o700))
	mine, err := Folder(base, "test-", "some-")
	must(t, err)
	again, err := Folder(base, "test-", "some-")
	must(t, err)
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", left, err)
	}
	for _, folder := range []string{mine, again} {
		if _, err := os.Stat(folder); err != nil {
			t.Error(err)
		}
	}
}
