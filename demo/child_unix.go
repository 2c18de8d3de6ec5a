//go:build unix && !linux

package main

import (
	"strconv"
	"syscall"
)

// childAttributes puts a child into a process group of its own, out of reach of Ctrl-C.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// watchParent kills the child when this process dies.
func watchParent(pid int) (unwatch func(), err error) {
	return guard(`kill -9 "$1"`, strconv.Itoa(pid))
}
