package polling

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// exactTimer returns a timer of the kernel's, which Go's poller waits for as it does for a socket. It calls ring.
func exactTimer(ring func()) (set func(time.Duration), end func(), err error) {
	const monotonic = 1
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, monotonic, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if errno != 0 {
		return nil, nil, errno
	}
	file := os.NewFile(fd, "timer")
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	go func() {
		var expirations [8]byte
		for {
			if _, err := file.Read(expirations[:]); err != nil {
				return // it is closed
			}
			ring()
		}
	}()
	set = func(d time.Duration) {
		spec := struct{ every, in syscall.Timespec }{in: syscall.NsecToTimespec(int64(d))}
		var errno syscall.Errno
		err := raw.Control(func(fd uintptr) {
			_, _, errno = syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
		})
		if err != nil || errno != 0 {
			time.AfterFunc(d, ring)
		}
	}
	return set, func() { _ = file.Close() }, nil
}
