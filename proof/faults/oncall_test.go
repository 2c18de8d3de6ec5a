package faults

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig"
	"github.com/pgoutbox/outbox/proof/rig/rigtest"
)

// night is a world at three in the morning: a relay that serves its API, and the commands that a person types.
type night struct {
	*world
	nats    rig.NATSTopic
	listen  string
	config  string // of the relay, and of commands
	address string // of the database, for the relay
	began   time.Time
}

// newNight makes a relay that delivers to NATS. more is added to its destination; alter may change the address that
// the relay is given.
func newNight(t *testing.T, pg *servers.Postgres, more string, alter func(n *night)) *night {
	t.Helper()
	n := &night{listen: rigtest.Address(t)}
	if pg == nil {
		n.world = newWorld(t, onNATS)
	} else {
		n.world = &world{t: t, pg: pg, broker: onNATS(t)}
		rigtest.Binary(t)
	}
	n.nats = n.broker.Target.(rig.NATSTopic)
	n.address = n.pg.URL("postgres")
	n.prepare(5 * time.Millisecond)
	if alter != nil {
		alter(n)
	}
	n.config = fmt.Sprintf("name: relay-1\ndatabase: {url: %q}\nhttp: {listen: %q}\n"+
		"destinations:\n  - name: events\n    broker: %s\n    lease: %s\n%s",
		n.address, n.listen, n.broker.yaml, await.Expiry(2*time.Second), more)
	return n
}

// fall starts the relay and the load, waits until all is well, and breaks something.
func (n *night) fall(fault func()) {
	n.t.Helper()
	n.start("relay-1", n.config)
	n.load.Start()
	n.flowing()
	n.eventually("all is well before the fault", func() bool { return n.says().State.OK() })
	fault()
	n.began = time.Now()
}

// command runs the program as a person would, with the relay's configuration.
func (n *night) command(args ...string) (stdout, stderr string, code int) {
	n.t.Helper()
	file := filepath.Join(n.t.TempDir(), "outbox.yaml")
	n.must(os.WriteFile(file, []byte(n.config), 0o600))
	cmd := exec.CommandContext(n.t.Context(), rigtest.Binary(n.t), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "OUTBOX_CONFIG=" + file, "OUTBOX_DATABASE_URL=" + n.pg.URL("postgres")}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		n.t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// says is the verdict of "outbox status"; without a state if that fails.
func (n *night) says() health.Verdict {
	n.t.Helper()
	out, _, _ := n.command("status", "-o", "json")
	var report health.Report
	_ = json.Unmarshal([]byte(out), &report) // of a command that failed nothing is there
	return report.Verdict
}

// voices asks everything else that tells of the state, and returns what disagrees, or that status does; "" for nothing.
func (n *night) voices(status health.Verdict, state health.State, cause, remedy *regexp.Regexp, relay bool) string {
	n.t.Helper()
	fits := func(who string, v health.Verdict) string {
		if v.State != state || !cause.MatchString(v.Sentence()) || !remedy.MatchString(v.Remedy()) {
			return fmt.Sprintf("%s: %q", who, v)
		}
		return ""
	}
	if odd := fits("status", status); odd != "" {
		return odd
	}
	out, _, code := n.command("check", "-o", "json")
	var checked health.Checked
	if err := json.Unmarshal([]byte(out), &checked); err != nil || code != int(state.Result()) {
		return fmt.Sprintf("check: code %d, %q, %v", code, out, err)
	}
	if odd := fits("check", checked.Report.Verdict); odd != "" {
		return odd
	}
	if !relay {
		return ""
	}
	var report health.Report
	if err := json.Unmarshal([]byte(n.get("/api/v1/status")), &report); err != nil {
		return "API: " + err.Error()
	}
	if odd := fits("API", report.Verdict); odd != "" {
		return odd
	}
	var verdict health.Verdict
	if err := json.Unmarshal([]byte(n.get("/healthz/destinations")), &verdict); err != nil {
		return "/healthz/destinations: " + err.Error()
	}
	if odd := fits("/healthz/destinations", verdict); odd != "" {
		return odd
	}
	line := fmt.Sprintf("outbox_destination_state{database=\"default\",destination=\"events\",state=%q} 1", state)
	if !strings.Contains(n.get("/metrics"), line) {
		return "metrics: not " + line
	}
	return ""
}

func (n *night) get(path string) string {
	n.t.Helper()
	body, err := get(n.listen, path)
	if err != nil {
		return err.Error()
	}
	return body
}

// get asks a relay.
func get(listen, path string) (string, error) {
	response, err := http.Get("http://" + listen + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// agree waits until status, check and, if the relay runs, its API, health and metrics agree on state, cause and remedy.
// What the remedy's groups match is returned, with the whole first.
func (n *night) agree(state health.State, cause, remedy string, relay bool) []string {
	n.t.Helper()
	wantCause, wantRemedy := regexp.MustCompile(cause), regexp.MustCompile(remedy)
	odd := "nothing was asked"
	defer func() {
		if n.t.Failed() {
			n.t.Logf("at last: %s", odd)
		}
	}()
	var v health.Verdict
	n.eventually(fmt.Sprintf("all say %s", state), func() bool {
		v = n.says()
		odd = n.voices(v, state, wantCause, wantRemedy, relay)
		return odd == ""
	})
	n.t.Logf("all agreed after %.1f s: %s", time.Since(n.began).Seconds(), v)
	return wantRemedy.FindStringSubmatch(v.Remedy())
}

// well waits until messages flow again and the verdict says so.
func (n *night) well() {
	n.t.Helper()
	n.flowing()
	n.eventually("all is well again", func() bool { return n.says().State.OK() })
}

// run runs a command as it was printed.
func (n *night) run(line string, more ...string) {
	n.t.Helper()
	args := strings.Fields(line)
	if args[0] != "outbox" {
		n.t.Fatalf("%q is no command of this program", line)
	}
	if out, errs, code := n.command(append(args[1:], more...)...); code != 0 {
		n.t.Fatalf("%s: exit code %d\n%s%s", line, code, out, errs)
	}
}

// sql runs a statement as it was printed.
func (n *night) sql(text string) {
	n.t.Helper()
	_, err := n.load.Pool().Exec(n.t.Context(), text)
	n.must(err)
}

// other is a session of somebody else, that lasts as long as the test.
func (n *night) other(sql string) {
	n.t.Helper()
	conn, err := n.load.Pool().Acquire(n.t.Context())
	n.must(err)
	session := conn.Hijack()
	n.t.Cleanup(func() { _ = session.Close(n.t.Context()) })
	n.must(session.PgConn().Exec(n.t.Context(), "SET application_name = 'psql'; BEGIN; "+sql).Close())
}

// Twelve faults, one by one: everything that tells of the state names the same cause, and what is printed repairs it.

func TestOnCallTheBrokerIsDead(t *testing.T) {
	n := newNight(t, nil, "", nil)
	n.fall(func() { n.must(n.broker.server.Kill9()) })
	n.agree(health.StateStalled, `the broker does not answer: .+`, `check the broker`, true)
	n.must(n.broker.server.Restart(t.Context()))
	n.well()
}

func TestOnCallATopicIsMissing(t *testing.T) {
	n := newNight(t, nil, "", nil)
	n.fall(func() { n.must(n.nats.Forbid(t.Context())) })
	n.agree(health.StateFailing, `no stream .*events`, `what waits is delivered by itself`, true)
	n.must(n.nats.Permit(t.Context()))
	n.well()
}

func TestOnCallEveryMessageIsPoison(t *testing.T) {
	n := newNight(t, nil, "", nil)
	limit := func(size int) {
		n.must(n.nats.With(t.Context(), func(js jetstream.JetStream) error {
			cfg := n.nats.Config()
			cfg.MaxMsgSize = int32(size)
			_, err := js.UpdateStream(t.Context(), cfg)
			return err
		}))
	}
	n.fall(func() { limit(20) })
	const requeue = `(outbox dead requeue --destination events.*)$`
	n.agree(health.StateDead, `\d+ new dead letters; last error: .+`, requeue, true)
	limit(1 << 20)
	n.flowing()
	n.run(n.agree(health.StateDead, `\d+ new dead letters; last error: .+`, requeue, false)[1], "--yes")
	n.well()
}

func TestOnCallATransactionHasLockedTheTables(t *testing.T) {
	for _, locks := range []string{"LOCK TABLE outbox.cursors", "SELECT FROM outbox.cursors FOR UPDATE"} {
		t.Run(locks, func(t *testing.T) {
			n := newNight(t, nil, "", nil)
			n.fall(func() { n.other(locks) })
			end := n.agree(health.StateBroken, `application psql, idle in transaction, open for .*`+regexp.QuoteMeta(locks)+`\) has locked`,
				`undoes what it did: (SELECT pg_terminate_backend\(\d+\))$`, true)
			n.sql(end[1])
			n.well()
		})
	}
}

func TestOnCallTheSlotIsLost(t *testing.T) {
	n := newNight(t, nil, "    replication: {slot: night}\n", nil)
	n.fall(func() {
		n.eventually("the log is read", func() bool { return n.count("FROM outbox.slots WHERE position IS NOT NULL") == 1 })
		n.must(n.relays[0].Stop(await.Patience))
		n.eventually("the server has seen its reader go", func() bool { return n.count("FROM pg_replication_slots WHERE NOT active") == 1 })
		n.sql("SELECT pg_drop_replication_slot('night')")
	})
	n.agree(health.StateNoRelay, `, also broken`, `outbox relay$`, false)
	n.start("relay-1", n.config)
	n.well()
	n.eventually("the log is read again", func() bool {
		return n.count("FROM outbox.slots JOIN pg_replication_slots ON slot = slot_name WHERE position IS NOT NULL AND active") == 1
	})
}

func TestOnCallAPauseIsForgotten(t *testing.T) {
	n := newNight(t, nil, "", nil)
	n.fall(func() { n.run("outbox pause events --reason migration --yes") })
	command := n.agree(health.StatePaused, `paused by .* until it is ended \(migration\)`, `(outbox resume events)$`, true)
	n.run(command[1], "--yes")
	n.well()
}

func TestOnCallARightIsRevoked(t *testing.T) {
	for _, right := range []string{"SELECT ON outbox.messages", "UPDATE ON outbox.cursors", "USAGE ON schema outbox"} {
		t.Run(right, func(t *testing.T) {
			n := newNight(t, nil, "", func(n *night) {
				n.sql("CREATE ROLE carrier LOGIN")
				n.run("outbox migrate grants --apply --relay carrier")
				u, err := url.Parse(n.address)
				n.must(err)
				u.User = url.User("carrier")
				n.address = u.String()
			})
			n.fall(func() { n.sql("REVOKE " + right + " FROM carrier") })
			command := n.agree(health.StateBroken, "the role carrier of relay-1 lacks "+strings.Replace(right, " ON ", " on ", 1),
				`(outbox migrate grants --apply --relay carrier)$`, true)
			n.run(command[1])
			n.well()
		})
	}
}

func TestOnCallTheDiskIsFull(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("a small file system has to be mounted, which takes Linux and root")
	}
	folder := filepath.Join(openFolder(t), "small")
	n := newNight(t, nil, "", func(n *night) {
		n.must(os.Mkdir(folder, 0o777))
		if err := syscall.Mount("outbox-oncall", folder, "tmpfs", 0, "size=64m,mode=777"); err != nil {
			t.Skipf("a small file system can't be mounted: %v", err)
		}
		t.Cleanup(func() {
			n.must(n.pg.Close())
			n.must(syscall.Unmount(folder, syscall.MNT_DETACH))
		})
		// Holds are on the small disk, and the server's log isn't: a server that can't write its log ends.
		space := filepath.Join(folder, "space")
		n.must(os.Mkdir(space, 0o700))
		info, err := os.Stat(n.pg.DataDir())
		n.must(err)
		owner := info.Sys().(*syscall.Stat_t)
		n.must(os.Chown(space, int(owner.Uid), int(owner.Gid)))
		n.sql("CREATE TABLESPACE small LOCATION '" + space + "'")
		n.sql("ALTER TABLE outbox.holds SET TABLESPACE small")
	})
	filler := filepath.Join(folder, "filler")
	n.fall(func() {
		_ = os.WriteFile(filler, make([]byte, 64<<20), 0o600) // until nothing fits any more
		n.must(n.nats.Forbid(t.Context()))                    // what can't be sent is to be set aside
	})
	n.agree(health.StateBroken, `No space left on device|53100`, `make room on the database's disk`, true)
	n.must(os.Remove(filler))
	n.must(n.nats.Permit(t.Context()))
	n.well()
}

func TestOnCallTwoRelaysHaveOneName(t *testing.T) {
	n := newNight(t, nil, "", nil)
	n.fall(func() {})
	twin := strings.Replace(n.config, n.listen, rigtest.Address(t), 1)
	second := n.start("twin", twin)
	n.eventually("the second ends", func() bool { return !second.Running() })
	if log := second.Log(); !strings.Contains(log, "another relay has this name") || !strings.Contains(log, "--name") {
		t.Errorf("the second relay ends with:\n%s", log)
	}
	anything, nothing := regexp.MustCompile(``), regexp.MustCompile(`^$`)
	n.eventually("all say that the first goes on", func() bool {
		v := n.says() // each time: it may flow, be idle, or have a lease that busy cores renew too late
		return v.State.OK() && n.voices(v, v.State, anything, nothing, true) == ""
	})
	n.start("other", strings.Replace(twin, "name: relay-1", "name: other", 1))
	n.eventually("both run", func() bool { return n.count("FROM outbox.relays") == 2 })
	n.well()
}

func TestOnCallAPoolerIsInTheWay(t *testing.T) {
	var pooler *servers.PgBouncer
	n := newNight(t, nil, "", func(n *night) { pooler = servers.OwnPgBouncer(t, servers.PgBouncerConfig{Server: n.pg.Addr()}) })
	n.fall(func() { n.must(n.relays[0].Stop(await.Patience)) })
	config := n.config
	n.config = strings.Replace(config, n.pg.Addr(), pooler.Addr(), 1)
	relay := n.start("pooled", n.config)
	n.eventually("the relay ends", func() bool { return !relay.Running() })
	if log := relay.Log(); !strings.Contains(log, "a pooler in transaction mode stands before the server") ||
		!strings.Contains(log, "the address of PostgreSQL itself") {
		t.Errorf("the relay ends with:\n%s", log)
	}
	n.agree(health.StateNoRelay, `relay-1 ended`, `outbox relay$`, false)
	n.config = config
	n.start("relay-1", config)
	n.well()
}

func TestOnCallAnIndexIsMissing(t *testing.T) {
	n := newNight(t, nil, "", nil)
	n.fall(func() { n.sql("DROP INDEX outbox.messages_xid_id") })
	sql := n.agree(health.StateAtRisk, `an index of the outbox is missing`, `run: (CREATE INDEX .*); writers wait`, true)
	n.sql(sql[1])
	n.well()
}

// openFolder is one that the server's user can enter.
func openFolder(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "outbox-oncall-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	return folder
}

// skewC shifts the wall clock of a program by the seconds that a file has.
const skewC = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <time.h>
#include <sys/time.h>
static long skew(void) {
	long s = 0;
	FILE *f = fopen(SKEW_FILE, "r");
	if (f) { if (fscanf(f, "%ld", &s) != 1) s = 0; fclose(f); }
	return s;
}
int gettimeofday(struct timeval *tv, void *tz) {
	static int (*real)(struct timeval *, void *);
	if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
	int r = real(tv, tz);
	tv->tv_sec += skew();
	return r;
}
int clock_gettime(clockid_t id, struct timespec *ts) {
	static int (*real)(clockid_t, struct timespec *);
	if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
	int r = real(id, ts);
	if (id == CLOCK_REALTIME) ts->tv_sec += skew();
	return r;
}
`

func TestOnCallAClockIsAnHourOff(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("a server's clock is shifted by LD_PRELOAD, which Linux has")
	}
	servers.Long(t)
	folder := openFolder(t)
	source, library, file := filepath.Join(folder, "skew.c"), filepath.Join(folder, "skew.so"), filepath.Join(folder, "seconds")
	set := func(seconds string) {
		for path, text := range map[string]string{source: skewC, file + ".new": seconds} {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	set("0")
	// The race detector of "make test-all" needs a C compiler as well.
	build := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-DSKEW_FILE=\""+file+"\"", "-o", library, source, "-ldl")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n := newNight(t, servers.OwnPostgres(t, servers.PostgresConfig{Preload: library}), "", nil)
	n.fall(func() { set("-3600") })
	n.agree(health.StateAtRisk, `the clock of relay-1 on host .* is (1h0m\d+s|59m59s) ahead of the database's`, `(timedatectl set-ntp true)$`, true)
	set("0") // what a time service does
	n.well()
}
