package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/internal/servers"
)

// archiveYAML is the least configuration that archives, in two shard groups and small files.
func (d *database) archiveYAML() string {
	dir := filepath.Join(d.folder, "archive")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		d.t.Fatal(err)
	}
	return "http: {listen: ''}\nretention: {interval: 100ms}\ndestinations:\n  - name: archive\n    lease: 30s\n    shard_groups: 2\n" +
		"    broker: {archive: {directory: " + dir + ", size: 2kB}}\n"
}

func TestAnArchiveKeepsWhatTheTableForgetsThroughKills(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	yaml := strings.Replace(d.archiveYAML(), "30s", "1s", 1) // waited for after each kill
	d.exec(`INSERT INTO outbox.messages (topic, key, payload, segment)
		SELECT 'old', 'old', 'x', (date_part('epoch', clock_timestamp())::bigint / 600 + 4) % 8 FROM generate_series(1, 100)`)
	archived := func() int64 {
		files, err := jsonl.Files(filepath.Join(d.folder, "archive"))
		if err != nil {
			t.Fatal(err)
		}
		var n int64
		for _, f := range files {
			n += f.Count
		}
		return n
	}
	for i := range 3 {
		relay := d.relay(yaml)
		before := archived()
		d.publish("orders", 20)
		until(t, "some are archived", func() bool { return archived() > before })
		if err := relay.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if relay.wait(); i == 0 {
			d.exec(`SELECT outbox.publish('raw', decode('00ff0a', 'hex'), key => 'raw', headers => '{"z":"1","a":"<2>"}')`)
		}
	}
	relay := d.relay(yaml)
	until(t, "all is archived", func() bool { return d.int(`SELECT sum(delivered) FROM outbox.cursors`) == 701 })
	until(t, "the old segment is empty", func() bool { return d.int(`SELECT count(*) FROM outbox.messages WHERE topic = 'old'`) == 0 })
	d.outbox("retention").want(exitOK, "messages_7", "it is written to until")
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}

	// Read by programs that aren't ours.
	script := `import sys, json
seen, last = set(), {}
for line in sys.stdin:
    m = json.loads(line)
    if m["id"] in seen: continue
    seen.add(m["id"])
    assert last.get(m["key"], 0) < m["position"], m
    last[m["key"]] = m["position"]
print(len(seen))`
	if _, err := exec.LookPath("python3"); err == nil {
		out, err := exec.Command("sh", "-c", `cd "$0/archive" && for f in *; do case $f in *.gz) zcat "$f";; *) cat "$f";; esac; done | python3 -c "$1"`,
			d.folder, script).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "701" {
			t.Errorf("read by python: %v: %s, want 701", err, out)
		}
	}

	var ls []jsonl.ArchiveFile
	if err := json.Unmarshal([]byte(d.outbox("archive", "ls", "archive", "-o", "json").want(exitOK).stdout),
		&ls); err != nil || len(ls) < 4 {
		t.Errorf("%d files, %v", len(ls), err)
	}
	d.outbox("archive", "ls", "archive").want(exitOK, "POSITIONS", ls[0].Path)
	d.outbox("archive", "verify", "archive").want(exitOK, fmt.Sprintf("%d files, ", len(ls)), " 0 are late")
	d.outbox("archive", "show", "archive", "--topic", "raw").want(exitOK, `"headers":{`, `"payload_base64":"AP8K"`)
	if lines := strings.Lines(d.outbox("archive", "show", "archive", "--key", "key-3", "--limit",
		"5").want(exitOK).stdout); len(slices.Collect(lines)) != 5 {
		t.Error("--limit 5 prints another number of lines")
	}
	d.outbox("archive", "show", "archive", "--until", "2020-01-01T00:00:00Z").want(exitOK).never("{")
	d.outbox("archive", "show", "archive", "--since", "yesterday").want(exitUsage, "--since")
	d.outbox("archive", "verify", "none").want(exitError, "no such file")

	file := ls[slices.IndexFunc(ls, func(f jsonl.ArchiveFile) bool { return !f.Open })].Path
	text, err := os.ReadFile(filepath.Join(d.folder, file))
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)-6] ^= 1
	if err := os.WriteFile(filepath.Join(d.folder, file), text, 0o600); err != nil {
		t.Fatal(err)
	}
	d.outbox("archive", "verify", "archive").want(exitError, file, "checksum", "1 faults")
}

func TestWhatTheTableHasForgottenIsReplayedFromAnArchive(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	yaml := d.archiveYAML() + "  - name: file\n    lease: 30s\n    broker: {file: {path: " + d.file() + "}}\n"
	relay := d.relay(yaml)
	d.publish("orders", 30)
	d.exec(`SELECT outbox.publish('raw', decode('00ff0a', 'hex'), key => 'raw', headers => '{"z":"1","a":"<2>"}',
		aggregate_id => 'a', event_type => 'e')`)
	delivered := func(n int) func() bool {
		return func() bool {
			return d.int(`SELECT count(*) FROM (SELECT FROM outbox.cursors GROUP BY destination HAVING sum(delivered) = $1) c`, n) == 2
		}
	}
	until(t, "both have got all", delivered(301))
	d.outbox("replay", "--destination", "file", "--archive", "archive").want(exitUsage, "nothing is selected")
	d.outbox("replay", "--destination", "file", "--archive", "none", "--all").want(exitError, "no such file")
	d.outbox("replay", "--destination", "file", "--archive", "archive", "--all", "--server", "http://127.0.0.1:1").want(exitUsage, "--server")
	d.outbox("replay", "--destination", "file", "--archive", "archive", "--transaction", "7").want(exitError, "transaction")

	// What file has not got is in the archive already.
	relay.stop()
	relay = d.relay(d.archiveYAML())
	d.publish("late", 1)
	until(t, "the archive has it", func() bool {
		return strings.Count(d.outbox("archive", "show", "archive", "--topic", "late").want(exitOK).stdout, "\n") == 10
	})
	d.outbox("replay", "--destination", "file", "--archive", "archive", "--topic", "late", "--yes").want(exitNotFound, "10 match")
	relay.stop()
	relay = d.relay(yaml)
	until(t, "both have got that, too", delivered(311))
	d.exec(`TRUNCATE outbox.messages`)
	d.outbox("replay", "--destination", "file", "--all", "--yes").want(exitNotFound, "the segments are empty")

	d.outbox("replay", "--destination", "file", "--archive", "archive", "--topic", "raw", "--dry-run").want(exitOK, "raw", "passed")
	until(t, "the dry run has sent nothing", func() bool { return d.int(`SELECT count(*) FROM outbox.holds`) == 0 && d.count() == 311 })
	d.outbox("replay", "--destination", "file", "--archive", "archive", "--topic", "raw", "--yes").want(exitOK, "1")
	d.outbox("replay", "--destination", "file", "--archive", "archive", "--topic", "orders", "--reason", "lost", "--yes").
		want(exitOK, "300")
	until(t, "they are sent", func() bool { return d.int(`SELECT count(*) FROM outbox.holds`) == 0 && d.count() == 612 })
	if n := d.int(`SELECT count(*) FROM outbox.jobs WHERE verb = 'replay' AND state = 'done' AND done = total AND done IN (1, 300)`); n != 2 {
		t.Errorf("%d jobs are done", n)
	}
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	for key, got := range d.delivered() {
		if half := 30; strings.HasPrefix(key, "key-") && !slices.Equal(got[:half], got[half+1:]) {
			t.Errorf("%s: first %v, then %v", key, got[:half], got[half+1:])
		}
	}
	text, err := os.ReadFile(d.file())
	if err != nil {
		t.Fatal(err)
	}
	var raw []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, `"topic":"raw"`) {
			raw = append(raw, line)
		}
	}
	if len(raw) != 2 || raw[0] != raw[1] {
		t.Errorf("sent %q", raw)
	}
}

func TestAReplayFromAnArchiveGoesOnWhereItsCommandWasKilled(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	d := setup(t)
	relay := d.relay(d.archiveYAML() + "  - name: file\n    lease: 30s\n    broker: {file: {path: " + d.file() + "}}\n")
	d.publish("orders", 30)
	until(t, "both have got all", func() bool { return d.int(`SELECT coalesce(sum(delivered), 0) FROM outbox.cursors`) == 600 })
	replay := []string{"replay", "--destination", "file", "--archive", filepath.Join(d.folder, "archive"), "--yes"}
	feeding := d.start(nil, append(replay, "--all", "--rate", "50")...)
	until(t, "a part is sent", func() bool { return d.int(`SELECT coalesce(sum(position), 0) FROM outbox.jobs`) >= 50 })
	_ = feeding.cmd.Process.Kill()
	feeding.wait()
	job := fmt.Sprint(d.int(`SELECT id FROM outbox.jobs`))
	if n := d.int(`SELECT position FROM outbox.jobs`); n >= 300 {
		t.Fatalf("%d were sent before the command was killed", n)
	}
	d.exec(`UPDATE outbox.jobs SET fed_at = fed_at - interval '1 minute'`)
	d.outbox("jobs", "show", job).want(exitOK, "running", "to go on: outbox "+strings.Join(replay[:5], " "), "--job "+job)
	d.outbox("jobs", "run", job).want(exitOK, "running") // it ends, and does nothing

	d.outbox("replay", "--destination", "file", "--job", job, "--yes").want(exitError, "of an archive", "--job "+job)
	d.outbox("replay", "--destination", "file", "--archive", ".", "--job", job, "--yes").want(exitError, "of an archive", "--job "+job)
	d.outbox(append(replay, "--job", job)...).want(exitOK, "replayed 300 messages")
	d.outbox(append(replay, "--job", job)...).want(exitOK, "replayed 300 messages") // it has ended
	until(t, "they are sent", func() bool { return d.int(`SELECT count(*) FROM outbox.holds`) == 0 && d.count() == 600 })
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	for key, got := range d.delivered() {
		if half := len(got) / 2; half != 30 || !slices.Equal(got[:half], got[half:]) {
			t.Errorf("%s: %v", key, got)
		}
	}
}
