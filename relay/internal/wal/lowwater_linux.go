package wal

import (
	"net"
	"syscall"
)

// lowWater sets how many bytes must have arrived before a sleeping reader is woken up.
//
// The server sends each message separately, and each would wake the reader: under load that is most of the reader's
// cost. The mark only affects sleeping; bytes that have arrived can always be read.
type lowWater struct {
	raw  syscall.RawConn
	mark int
}

func newLowWater(conn net.Conn) lowWater {
	tcp, ok := conn.(*net.TCPConn) // a Unix socket has no such mark
	if !ok {
		return lowWater{}
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return lowWater{}
	}
	return lowWater{raw: raw, mark: 1}
}

// set reports whether the mark is in force.
func (l *lowWater) set(mark int) bool {
	if l.raw == nil {
		return false
	}
	if l.mark == mark {
		return true
	}
	var failed error
	err := l.raw.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVLOWAT, mark)
	})
	if err != nil || failed != nil {
		l.raw = nil // without a mark the reader wakes up more often, nothing else
		return false
	}
	l.mark = mark
	return true
}
