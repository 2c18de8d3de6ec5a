package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// outbox fleet says who has what, by the home and by a member: while all is well, and when a member is gone.
func TestAFleetIsShownWithItsMembersPartsAndMoves(t *testing.T) {
	t.Parallel()
	home := setup(t)
	yaml := fmt.Sprintf("fleet: {home: {url: %q}, settle: 1s, reserve: 10m}\n"+
		"destinations: [{name: kafka, broker: {stdout: {}}}]\ndatabases:\n", home.url)
	for i := range 4 {
		yaml += fmt.Sprintf("  - {name: db-%d, database: {url: %q}}\n", i, setup(t).url)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "outbox.yaml"), []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, folder, nil, "fleet", "--exit-code").want(exitError, "fleet default: 0 members, 4 parts of 4 databases", "no member runs",
		"4 databases have no member: db-0, db-1, db-2, db-3")
	command(t, several(t, "a", home.url), nil, "fleet").want(exitUsage, "the configuration has no fleet")

	addresses := []string{freeAddress(t), freeAddress(t)}
	var relays []*process
	for i, address := range addresses {
		relays = append(relays, home.starts(nil, nil, "relay", "--config", folder+"/outbox.yaml", "--name", fmt.Sprint("relay-", i),
			"--set", "http.listen="+address))
	}
	var f struct {
		Members []struct {
			Name, State string
			Ordinal     *int
			First       int
		}
		Parts []struct {
			Database, First, Has string
			Moving               bool
		}
		Nobody []string
	}
	read := func(args ...string) {
		t.Helper()
		r := command(t, folder, nil, append([]string{"fleet", "-o", "json"}, args...)...)
		f.Members, f.Parts = nil, nil
		if err := json.Unmarshal([]byte(r.stdout), &f); err != nil && r.code == exitOK {
			t.Fatal(err)
		}
	}
	settled := func() bool {
		read()
		for _, p := range f.Parts {
			if p.Moving {
				return false
			}
		}
		return len(f.Members) == 2 && f.Members[0].First == 2 && f.Members[1].First == 2 && len(f.Parts) == 4 && len(f.Nobody) == 0
	}
	until(t, "both have two parts", settled)
	for _, server := range []string{"", "http://" + addresses[0]} {
		var more []string
		if server != "" {
			more = []string{"--server", server}
		}
		show := func(args ...string) result { t.Helper(); return command(t, folder, nil, append(args, more...)...) }
		show("fleet", "--exit-code").want(exitOK, "fleet default: 2 members, 4 parts of 4 databases", "nothing moves", "relay-0", "relay-1",
			"runs", "100 %  ##########", "last moves:")
		r := show("fleet", "parts", "--member", "relay-1").want(exitOK, "stays")
		if n := strings.Count(r.stdout, "\n"); n != 3 {
			t.Errorf("relay-1 has\n%s", r.stdout)
		}
		show("fleet", "parts", "--of", "db-2").want(exitOK, "db-2").never("db-1")
		show("fleet", "parts", "--of", "none").want(exitNotFound, "no part is like this")
		show("fleet", "moves", "--limit", "2").want(exitOK, "WHY", "relay-")
	}
	status := command(t, folder, nil, "status", "--server", "http://"+addresses[0]).want(exitOK, "2 with other members of the fleet")
	if !strings.Contains(status.stdout, "\ndb-") {
		t.Errorf("%s", status.stdout)
	}
	command(t, folder, nil, "check", "--server", "http://"+addresses[1]).want(0, "2 databases: 2 OK, 2 with other members of the fleet")

	if err := relays[1].cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	until(t, "the other one has all", func() bool {
		read()
		n := 0
		for _, p := range f.Parts {
			if p.Has == "relay-0" && p.First == "relay-0" {
				n++
			}
		}
		return n == 4
	})
	command(t, folder, nil, "fleet", "--exit-code").want(exitError, "member relay-1 is gone", "gone")
	command(t, folder, nil, "fleet", "moves").want(exitOK, "relay-1", "relay-0", "death of relay-1")
	if code := relays[0].stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
