//go:build !linux

package bench

import "syscall"

func attributes() *syscall.SysProcAttr { return nil }
