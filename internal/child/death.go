package child

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// OnDeath has a shell script run when this process dies without having called cancel. args are the script's $1 and so
// on. The shell reads from a pipe whose other end only this process has, and which the system closes. Where there is no
// shell, nothing will run.
func OnDeath(script string, args ...string) (cancel func(), err error) {
	if !Signals {
		return func() {}, nil
	}
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	shell, err := startGuard(in, script, args...)
	if err != nil {
		out.Close()
		return nil, err
	}
	return func() {
		_ = shell.Process.Kill() // before the pipe closes
		_ = shell.Wait()
		out.Close()
	}, nil
}

// signalScript sends the signal $1 to the process $2, and SIGCONT, for a frozen process takes no other signal but
// SIGKILL. It stands in for the parent-death signal where there is none.
const signalScript = `kill "-$1" "$2"; kill -CONT "$2"`

func startGuard(in *os.File, script string, args ...string) (*exec.Cmd, error) {
	shell := exec.Command("/bin/sh", append([]string{"-c", "read -r _; " + script, "sh"}, args...)...)
	shell.Stdin = in
	shell.Dir = "/"
	shell.SysProcAttr = attributes(Command{}, 0) // it outlives this process
	return shell, shell.Start()
}

// Folder makes a temporary folder in base, "" for the system's place, and removes those of processes that have died.
// Its name is made of prefix, this process's id, a hyphen, name and a random number.
func Folder(base, prefix, name string) (string, error) {
	if base == "" {
		base = os.TempDir()
	}
	Sweep(base, prefix)
	return os.MkdirTemp(base, prefix+strconv.Itoa(os.Getpid())+"-"+name)
}

// Sweep removes the folders of dead processes that [Folder] has made.
func Sweep(base, prefix string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, entry := range entries {
		rest, ours := strings.CutPrefix(entry.Name(), prefix)
		if !ours {
			continue
		}
		owner, _, _ := strings.Cut(rest, "-")
		if pid, err := strconv.Atoi(owner); err == nil && !Alive(pid) {
			os.RemoveAll(filepath.Join(base, entry.Name()))
		}
	}
}
