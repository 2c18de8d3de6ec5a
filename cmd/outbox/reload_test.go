package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// SIGHUP takes over the level of the log and the destinations, names what it can't, and refuses a file that is at
// fault.
func TestSIGHUPReadsTheConfigurationAgain(t *testing.T) {
	t.Parallel()
	d := setup(t)
	yaml := d.fileYAML("")
	file := filepath.Join(d.folder, "outbox.yaml")
	second := filepath.Join(d.folder, "second.jsonl")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(strings.Replace(yaml, "level: debug", "level: warn", 1))
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
	write("destinations: [{name: file, brokre: {}}]\n")
	hangUp()
	until(t, "the file is refused", func() bool {
		return strings.Contains(p.stderr.String(), "is not taken over") && strings.Contains(p.stderr.String(), "brokre")
	})
	d.publish("orders", 1)
	until(t, "it goes on as before", func() bool { return d.count() == 20 })

	write("name: another\n" + strings.Replace(yaml, "listen: ''", "listen: '127.0.0.1:1'", 1) +
		"  - name: second\n    lease: 1s\n    broker: {file: {path: " + second + "}}\n")
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
