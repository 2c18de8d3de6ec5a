package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// members starts relays that are a fleet, whose home is the first database, by their names.
func members(t *testing.T, databases []*database, names ...string) map[string]*process {
	t.Helper()
	all := make(map[string]*process)
	for _, name := range names {
		all[name] = memberOf(t, databases, name)
	}
	return all
}

func memberOf(t *testing.T, databases []*database, name string) *process {
	t.Helper()
	yaml := fmt.Sprintf("name: %s\nhttp: {listen: \"\"}\nfleet: {home: {url: %q}, settle: 1s}\n"+
		"destinations: [{name: all, broker: {stdout: {}}}]\ndatabases:\n", name, databases[0].url)
	for i, d := range databases {
		yaml += fmt.Sprintf("  - {name: db%d, database: {url: %q}}\n", i, d.url)
	}
	file := filepath.Join(t.TempDir(), "outbox.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return databases[0].starts(nil, nil, "relay", "--config", file)
}

// owners are the members that have the databases' cursors, by database.
func owners(t *testing.T, databases []*database) (list []string) {
	t.Helper()
	for _, d := range databases {
		var owner string
		if err := d.QueryRow(t.Context(), `SELECT coalesce((SELECT owner FROM outbox.cursors WHERE lease_until > clock_timestamp()), '')`).
			Scan(&owner); err != nil {
			t.Fatal(err)
		}
		list = append(list, owner)
	}
	return list
}

// sharedBy waits until each of the members owns some, and others none.
func sharedBy(t *testing.T, databases []*database, names ...string) (now []string) {
	t.Helper()
	until(t, "shared by "+strings.Join(names, ", "), func() bool {
		now = owners(t, databases)
		each := make(map[string]int)
		for _, o := range now {
			each[o]++
		}
		for _, name := range names {
			if each[name] == 0 {
				return false
			}
		}
		return len(each) == len(names)
	})
	return now
}

// The databases of a process that is killed are delivered from by the others at once, and each message comes.
func TestWhatAKilledMemberHadTheOthersHaveAtOnce(t *testing.T) {
	t.Parallel()
	var databases []*database
	for range 6 {
		databases = append(databases, setup(t))
	}
	all := members(t, databases, "one", "two", "three")
	sharedBy(t, databases, "one", "two", "three")
	time.Sleep(6 * time.Second) // fleet.Config.Return: the members believe in each other's sessions until then
	var slowest time.Duration
	for round := range 3 {
		before := sharedBy(t, databases, "one", "two", "three")
		killed := all["two"]
		if err := killed.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-killed.ended
		began := time.Now()
		came := func(topic string) bool {
			for _, p := range all {
				if strings.Contains(p.stdout.String(), `"`+topic+`"`) {
					return true
				}
			}
			return false
		}
		for i, d := range databases {
			d.exec(`INSERT INTO outbox.messages (topic, payload) VALUES ($1, '{}')`, fmt.Sprintf("round-%d-%d", round, i))
		}
		for i := range databases {
			topic := fmt.Sprintf("round-%d-%d", round, i)
			until(t, topic+" comes", func() bool { return came(topic) })
			if before[i] == "two" {
				slowest = max(slowest, time.Since(began))
			}
		}
		sharedBy(t, databases, "one", "three")
		all[fmt.Sprintf("killed %d", round)] = killed
		all["two"] = memberOf(t, databases, "two")
	}
	sharedBy(t, databases, "one", "two", "three")
	t.Logf("the first message of a database of the killed one came after at most %v", slowest)
	var cause string
	if err := databases[0].QueryRow(t.Context(), `SELECT string_agg(DISTINCT split_part(cause, ':', 1), ' ') FROM outbox.moves`).Scan(&cause); err != nil ||
		!strings.Contains(cause, "join") {
		t.Errorf("the moves have the causes %q: %v", cause, err)
	}
	for _, name := range []string{"one", "three", "two"} {
		if code := all[name].stop(); code != exitOK {
			t.Errorf("%s ended with %d:\n%s", name, code, all[name].stderr.String())
		}
	}
}
