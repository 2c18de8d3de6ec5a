package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/await"
)

func TestSystemdIsToldOfStartLifeAndEnd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := socket.SetReadDeadline(await.Deadline(t)); err != nil {
		t.Fatal(err)
	}
	heard := func() string {
		t.Helper()
		b := make([]byte, 100)
		n, err := socket.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	env := map[string]string{"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "2000"}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		supervised(ctx, func(name string) string { return env[name] })
	}()
	if word := heard(); word != "READY=1" {
		t.Errorf("the first word is %s", word)
	}
	for range 2 {
		if word := heard(); word != "WATCHDOG=1" {
			t.Errorf("then %s", word)
		}
	}
	stop()
	word := heard()
	for word == "WATCHDOG=1" {
		word = heard()
	}
	if word != "STOPPING=1" {
		t.Errorf("the last word is %s", word)
	}
	<-ended
	for _, fault := range []error{nil, errors.New("no such destination")} {
		done := Reloading(func(name string) string { return env[name] })
		if word := heard(); !strings.HasPrefix(word, "RELOADING=1\nMONOTONIC_USEC=") {
			t.Errorf("the beginning of a reload is %s", word)
		}
		done(fault)
		if word := heard(); !strings.HasPrefix(word, "READY=1\nSTATUS=") || strings.Contains(word, "at fault") != (fault != nil) {
			t.Errorf("its end is %s, the error was %v", word, fault)
		}
	}
	supervised(t.Context(), func(string) string { return "" }) // without systemd it returns
	Reloading(func(string) string { return "" })(nil)
}

// systemd-analyze ends with 0 although a value is unknown to it, so it must say nothing at all.
func TestTheUnitIsUnderstoodBySystemd(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd here")
	}
	unit, err := os.ReadFile("../../../deploy/systemd/outbox.service")
	if err != nil {
		t.Fatal(err)
	}
	here := filepath.Join(t.TempDir(), "outbox.service")
	// Programs must exist to be verified.
	text := strings.Replace(string(unit), "ExecStart=outbox", "ExecStart="+analyze, 1)
	if err := os.WriteFile(here, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", "--man=no", "--recursive-errors=no", here).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
