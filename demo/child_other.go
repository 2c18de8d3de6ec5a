//go:build !unix

package main

import (
	"os"
	"syscall"
)

func childAttributes() *syscall.SysProcAttr { return nil }
func guardAttributes() *syscall.SysProcAttr { return nil }

func watchParent(int) (unwatch func(), err error) { return func() {}, nil }

func terminate(p *os.Process) error { return p.Kill() } // there is no gentler way

func gone(int) bool { return false } // so that nothing is removed that is in use
