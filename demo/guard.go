package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// guard runs a shell command, with args as its parameters, when this process dies without having called unguard: the shell
// reads from a pipe whose other end only this process has, and which the system closes.
func guard(command string, args ...string) (unguard func(), err error) {
	if runtime.GOOS == "windows" {
		return func() {}, nil
	}
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	shell := exec.Command("/bin/sh", append([]string{"-c", "read -r _; " + command, "sh"}, args...)...)
	shell.Stdin = in
	shell.Dir = "/"
	shell.SysProcAttr = guardAttributes()
	if err := shell.Start(); err != nil {
		out.Close()
		return nil, err
	}
	return func() {
		_ = shell.Process.Kill() // before the pipe closes
		_ = shell.Wait()
		out.Close()
	}, nil
}

// removeOnDeath has folders removed when this process is killed. The servers in them need a moment to die as well.
func removeOnDeath(folders ...string) (unguard func(), err error) {
	return guard(`for i in 1 2 3 4 5; do sleep 1; rm -rf -- "$@" && break; done`, folders...)
}

const folderPrefix = "pgoutbox-demo-"

// newFolder makes the demo's temporary folder, which only its owner may enter: there is a database's address in it. It
// removes those of demos that have died where there was no shell to do so.
func newFolder() (string, error) {
	base := os.TempDir()
	old, _ := filepath.Glob(filepath.Join(base, folderPrefix+"*"))
	for _, folder := range old {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), folderPrefix), "-")
		if pid, err := strconv.Atoi(owner); err == nil && gone(pid) {
			os.RemoveAll(folder)
		}
	}
	return os.MkdirTemp(base, folderPrefix+strconv.Itoa(os.Getpid())+"-")
}
