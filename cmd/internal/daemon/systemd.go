package daemon

import (
	"context"
	"net"
	"os"
	"strconv"
	"time"
)

// supervised tells systemd that the service has started, and until ctx ends that the process lives, at half of the
// interval of its watchdog; then that it ends. Without $NOTIFY_SOCKET it does nothing. (sd_notify(3))
func supervised(ctx context.Context, env func(string) string) {
	address := env("NOTIFY_SOCKET")
	if address == "" {
		return
	}
	if address[0] == '@' { // an abstract socket
		address = "\x00" + address[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return // systemd ends the service when the word doesn't come
	}
	defer conn.Close()
	say := func(word string) { _, _ = conn.Write([]byte(word)) }
	say("READY=1")
	defer say("STOPPING=1")
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
			say("WATCHDOG=1")
		case <-ctx.Done():
			return
		}
	}
}
