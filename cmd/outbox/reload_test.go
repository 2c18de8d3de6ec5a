package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/servers"
)

// write puts a file into the folder of the test, and returns its path.
func (d *database) write(name, text string) string {
	d.t.Helper()
	path := filepath.Join(d.folder, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
	return path
}

// SIGHUP takes over the level of the log and the destinations, names what it can't, and refuses a file that is at
// fault.
func TestSIGHUPReadsTheConfigurationAgain(t *testing.T) {
	t.Parallel()
	d := setup(t)
	yaml := d.fileYAML("")
	file := filepath.Join(d.folder, "outbox.yaml")
	second := filepath.Join(d.folder, "second.jsonl")
	d.write("outbox.yaml", strings.Replace(yaml, "level: debug", "level: warn", 1))
	p := d.start(nil, "relay", "--config", file)
	d.publish("orders", 1)
	until(t, "the messages are delivered", func() bool { return d.count() == 10 })

	hangUp := func() {
		t.Helper()
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(p.stderr.String(), `"level":"INFO"`) {
		t.Error("the level of the start is warn")
	}
	d.write("outbox.yaml", "destinations: [{name: file, brokre: {}}]\n")
	hangUp()
	until(t, "the file is refused", func() bool {
		return strings.Contains(p.stderr.String(), "is not taken over") && strings.Contains(p.stderr.String(), "brokre")
	})
	d.publish("orders", 1)
	until(t, "it goes on as before", func() bool { return d.count() == 20 })

	d.write("outbox.yaml", "name: another\n"+strings.Replace(yaml, "listen: ''", "listen: '127.0.0.1:1'", 1)+
		"  - name: second\n    lease: 30s\n    broker: {file: {path: "+second+"}}\n")
	hangUp()
	until(t, "the second destination has all", func() bool {
		text, err := os.ReadFile(second)
		return err == nil && strings.Count(string(text), "\n") == 20
	})
	// Level warn, that of the start, would leave out what is said of the end of the reload.
	for _, part := range []string{`"level":"INFO"`, "configuration read again", `"settings":"name, http"`} {
		if !strings.Contains(p.stderr.String(), part) {
			t.Errorf("the log has no %s", part)
		}
	}
	if n := d.count(); n != 20 {
		t.Errorf("the first destination has %d messages, want 20", n)
	}
	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// Many signals in a row don't keep a destination from delivering, and the last configuration counts.
func TestManyReloadsLeaveTimeToDeliver(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	file := filepath.Join(d.folder, "outbox.yaml")
	second := filepath.Join(d.folder, "second.jsonl")
	yaml := d.fileYAML("")
	d.write("outbox.yaml", yaml)
	p := d.start(nil, "relay", "--config", file)
	d.publish("orders", 1)
	until(t, "the messages are delivered", func() bool { return d.count() == 10 })
	begun := time.Now()
	for i := range 40 {
		yaml = strings.Replace(d.fileYAML(""), "lease: 30s", fmt.Sprintf("lease: %dms", 30000+i), 1)
		d.write("outbox.yaml", yaml)
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	d.write("outbox.yaml", yaml+"  - name: second\n    broker: {file: {path: "+second+"}}\n")
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	until(t, "the last configuration counts", func() bool {
		text, err := os.ReadFile(second)
		return err == nil && strings.Count(string(text), "\n") == 10
	})
	most := 2 + int(time.Since(begun)/(2*time.Second))
	if n := strings.Count(p.stderr.String(), "draining"); n < 1 || n > most {
		t.Errorf("the database began again %d times in %s, want at most %d", n, time.Since(begun), most)
	}
	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// --database names one of several, of the configuration as well as of a server.
func TestACommandNamesADatabase(t *testing.T) {
	t.Parallel()
	d := setup(t)
	address := freeAddress(t)
	file := filepath.Join(d.folder, "many.yaml")
	text := "http: {listen: '" + address + "', users: [{name: oscar, role: operator, token: " + oscarsToken + "}]}\n" +
		"destinations: [{name: file, broker: {file: {path: " + d.file() + "}}}]\n" +
		"databases:\n  - {name: away, database: {url: 'postgres://nobody@127.0.0.1:1/none'}, destinations: [{name: out, broker: {stdout: {}}}]}\n" +
		"  - {name: here, database: {url: '" + d.url + "'}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(d.folder, "token")
	if err := os.WriteFile(token, []byte(oscarsToken), 0o600); err != nil {
		t.Fatal(err)
	}
	one := func(args ...string) result { return command(t, d.folder, nil, append(args, "--config", file)...) }
	one("relays").want(exitUsage, "--database", "away, here")
	one("relays", "--database", "gone").want(exitUsage, `no database "gone"`)
	one("relays", "--database", "here", "--database-url", d.url).want(exitUsage, "exclude each other")
	one("relays", "--database", "here").want(exitOK)

	served := d.starts(nil, []string{}, "relay", "--config", file)
	until(t, "it delivers", func() bool { return strings.Contains(served.stderr.String(), "relay started") })
	until(t, "the server answers for the database that is named", func() bool {
		r := command(t, d.folder, nil, "relays", "--server", "http://"+address, "--server-token-file", token, "--database", "here")
		return r.code == exitOK && r.stdout != ""
	})
	command(t, d.folder, nil, "relays", "--server", "http://"+address, "--server-token-file", token, "--database", "away").want(exitError, "127.0.0.1")
	if code := served.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// SIGHUP takes over secrets from files, who may use the API, and that a destination is gone.
func TestSIGHUPTakesOverSecretsUsersAndDestinationsThatAreGone(t *testing.T) {
	t.Parallel()
	d := setup(t)
	var wanted atomic.Value
	var came atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+wanted.Load().(string) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.Header.Get("Webhook-Id") != "" { // and not only the question whether it is there
			came.Add(1)
		}
	}))
	defer receiver.Close()
	address := freeAddress(t)
	wanted.Store("first")
	web := fmt.Sprintf(`http: {listen: '%s', users: [{name: oscar, role: operator, token_file: %s}]}
destinations:
  - name: web
    lease: 30s
    delivery: {backoff: {initial: 10ms, max: 100ms}}
    broker: {http: {url: '%s', bearer_token_file: %s, allow_networks: [127.0.0.0/8]}}
`, address, d.write("user", oscarsToken), receiver.URL, d.write("bearer", "first"))
	file := d.write("outbox.yaml", web+"  - {name: file, lease: 30s, broker: {file: {path: "+d.file()+"}}}\n")
	p := d.start(nil, "relay", "--config", file)
	d.publish("orders", 1)
	until(t, "both have the messages", func() bool { return came.Load() == 10 && d.count() == 10 })

	const next = "fedcba9876543210fedcba9876543210-oscar"
	wanted.Store("second")
	d.publish("orders", 1)
	d.write("bearer", "second")
	d.write("user", next)
	d.write("outbox.yaml", web)
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	until(t, "the new token is sent", func() bool { return came.Load() == 20 })
	asked := func(token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/api/v1/status", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		return answer.StatusCode
	}
	until(t, "the user's new token is good", func() bool { return asked(next) == http.StatusOK })
	if code := asked(oscarsToken); code != http.StatusUnauthorized {
		t.Errorf("the user's old token is answered with %d", code)
	}
	before := d.count() // it may have had the second messages while it was there
	d.publish("orders", 1)
	until(t, "messages go on", func() bool { return came.Load() == 30 })
	if n := d.count(); n != before {
		t.Errorf("the destination that is gone has %d messages more", n-before)
	}
	if code := p.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
