package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// systemd is what supervises the process, nil if nothing does. (sd_notify(3))
type systemd struct{ *net.UnixConn }

// findSystemd reads $NOTIFY_SOCKET.
func findSystemd(env func(string) string) *systemd {
	address := env("NOTIFY_SOCKET")
	if address == "" {
		return nil
	}
	if address[0] == '@' { // an abstract socket
		address = "\x00" + address[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return nil // systemd ends the service when the word doesn't come
	}
	return &systemd{conn}
}

func (s *systemd) say(words string) { _, _ = s.Write([]byte(words)) }

// supervised tells systemd that the service has started, and until ctx ends that the process lives, at half of the
// interval of its watchdog; then that it ends. Without $NOTIFY_SOCKET it does nothing.
func supervised(ctx context.Context, env func(string) string) {
	s := findSystemd(env)
	if s == nil {
		return
	}
	defer s.Close()
	s.say("READY=1")
	defer s.say("STOPPING=1")
	var tick <-chan time.Time
	usec, err := strconv.ParseInt(env("WATCHDOG_USEC"), 10, 64)
	pid := env("WATCHDOG_PID")
	if err == nil && usec > 1 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		ticker := time.NewTicker(time.Duration(usec) * time.Microsecond / 2)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		select {
		case <-tick:
			s.say("WATCHDOG=1")
		case <-ctx.Done():
			return
		}
	}
}

// Reloading tells systemd that the configuration is read again: it waits for done, which says that this has ended and
// how. Without $NOTIFY_SOCKET both do nothing.
func Reloading(env func(string) string) (done func(error)) {
	s := findSystemd(env)
	if s == nil {
		return func(error) {}
	}
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // it has no error for this clock
	s.say(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000))
	return func(err error) {
		defer s.Close()
		status := "the configuration was read again"
		if err != nil {
			status = "the configuration on disk is at fault; all goes on as before: see the log"
		}
		s.say("READY=1\nSTATUS=" + status)
	}
}
