package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
)

// printedLine is any line of a demo's JSON.
type printedLine struct {
	Type      string
	Event     string
	Text      string
	Committed uint64
	Relays    map[string]struct{ Role string }
	OK        bool
	Reasons   []string
	Report    check.Report
	Faults    []struct {
		Fault   string
		Outcome string
		Done    bool
	}
	Dead []struct {
		Order    string
		Reason   string
		Error    string
		Expected bool
	} `json:"dead_letters"`
	Broker string
}

// lines reads a demo's JSON.
func lines(t *testing.T, text string) (all []printedLine) {
	t.Helper()
	for line := range strings.Lines(text) {
		var one printedLine
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v in the line %s", err, line)
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		t.Fatal("the demo printed nothing")
	}
	return all
}

// checkRun checks what a run with all the faults has printed.
func checkRun(t *testing.T, err error, out, progress string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, progress, out)
	}
	all := lines(t, out)
	v := all[len(all)-1]
	if v.Type != "verdict" || !v.OK || !v.Report.OK() || v.Report.Delivered == 0 || v.Report.RolledBack == 0 {
		t.Errorf("the last line isn't a good verdict: %+v\n%s", v, out)
	}
	if v.Report.Delivered+v.Report.DeadLettered != v.Report.Committed {
		t.Errorf("%d delivered and %d dead letters are not the %d committed", v.Report.Delivered, v.Report.DeadLettered, v.Report.Committed)
	}
	var done []string
	for _, f := range v.Faults {
		if !f.Done || f.Outcome == "" {
			t.Errorf("fault not done: %+v", f)
		}
		if f.Fault == "broker" && !regexp.MustCompile(`^[1-9].* events waited`).MatchString(f.Outcome) {
			t.Errorf("while the broker was down, relays delivered: %s", f.Outcome)
		}
		done = append(done, f.Fault)
	}
	if got := strings.Join(done, " "); got != "rollbacks poison kill long broker" {
		t.Errorf("performed %s", got)
	}
	if len(v.Dead) != 1 || !v.Dead[0].Expected || v.Dead[0].Reason != "refused" || v.Dead[0].Error == "" {
		t.Errorf("the poison should be the only dead letter: %+v", v.Dead)
	}
	happened := map[string]int{}
	for i, line := range all {
		happened[line.Event]++
		if line.Type == "verdict" && i != len(all)-1 {
			t.Error("the verdict isn't the last line")
		}
	}
	for _, wanted := range []string{"first_delivered", "relay_killed",
		"takeover", "broker_down", "broker_up", "order_goes_on", "long_end", "drain"} {
		if happened[wanted] != 1 {
			t.Errorf("%s happened %d times", wanted, happened[wanted])
		}
	}
	if happened["database_error"]+happened["relay_ended"] > 0 {
		t.Errorf("something went wrong on the way:\n%s", out)
	}
}

func TestTwoDemosThatBreakEverythingAtOnceBothEndWell(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	for name, database := range map[string]string{
		"own PostgreSQL":   "",
		"given PostgreSQL": servers.TestDatabase(t),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, progress await.Buffer
			err := Run(t.Context(), Config{DatabaseURL: database, For: MinFor, JSON: true, Rate: 200, Stdout: &out, Stderr: &progress})
			checkRun(t, err, out.String(), progress.String())
		})
	}
}

func TestWhatNobodyWroteIsFound(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	needPostgres(t)
	var out, progress await.Buffer
	var intruding sync.WaitGroup
	defer intruding.Wait()
	intruding.Go(func() {
		var address string
		await.Until(t, "the demo delivers", func() bool {
			_, text, found := strings.Cut(out.String(), "is ready: nats://")
			address, _, _ = strings.Cut(text, `"`)
			return found && strings.Contains(out.String(), "first_delivered")
		})
		conn, err := nats.Connect("nats://" + address)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		stream, err := jetstream.New(conn)
		if err != nil {
			t.Error(err)
			return
		}
		for _, payload := range [][]byte{
			check.Encode(nil, 3, 1_000_000, 40),
			check.Encode(nil, 4_000_000, 1, 40),
			[]byte("nothing of the demo's"),
		} {
			if _, err := stream.Publish(t.Context(), topic, payload); err != nil {
				t.Error(err)
			}
		}
	})
	err := Run(t.Context(), Config{For: MinFor, JSON: true, Rate: 50, Stdout: &out, Stderr: &progress})
	if !errors.Is(err, ErrNotOK) {
		t.Fatalf("got %v\n%s\n%s", err, progress.String(), out.String())
	}
	all := lines(t, out.String())
	v := all[len(all)-1]
	if v.OK || v.Report.Phantom != 2 || v.Report.Corrupted != 1 || v.Report.Lost != 0 {
		t.Errorf("the verdict: %+v", v)
	}
	// The invented event is the latest of its order, so the order's real ones come after it.
	if reasons := strings.Join(v.Reasons, "\n"); !strings.Contains(reasons, "2 events phantom") ||
		!strings.Contains(reasons, "1 event corrupted") || v.Report.Inverted == 0 {
		t.Errorf("the reasons: %s", reasons)
	}
}

// needPostgres skips, or fails where servers are required, if there is no PostgreSQL: the demo would download one.
func needPostgres(t *testing.T) {
	t.Helper()
	servers.TestPostgres(t)
}

// startDemo runs a demo as a process of its own, until its first event has been delivered.
func startDemo(t *testing.T, cfg Config) (process *exec.Cmd, rest func() string) {
	t.Helper()
	needPostgres(t)
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), runMe+"="+string(text))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errors await.Buffer
	cmd.Stderr = &errors
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	reader := bufio.NewReader(stdout)
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			t.Fatalf("the demo ended before its first event: %v\n%s", err, errors.String())
		}
		if strings.Contains(line, "first event delivered") {
			break
		}
	}
	return cmd, func() string {
		out, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(errors.String(), "DATA RACE") {
			t.Error(errors.String())
		}
		return string(out)
	}
}

// nothingLeft waits until nothing is there of a demo that was that process.
func nothingLeft(t *testing.T, pid int) {
	t.Helper()
	await.Until(t, "no folder is left", func() bool { return len(leftovers(pid)) == 0 })
	await.Until(t, "no process is left", func() bool { return !strings.Contains(commandLines(t), "-"+strconv.Itoa(pid)+"-") })
}

// commandLines are those of all processes. Linux has them where there is no ps.
func commandLines(t *testing.T) (all string) {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, _ := os.ReadFile(file) // the process may have ended
		all += strings.ReplaceAll(string(line), "\x00", " ") + "\n"
	}
	if files == nil {
		out, err := exec.Command("ps", "-A", "-o", "args=").Output()
		if err != nil {
			t.Fatal(err)
		}
		all = string(out)
	}
	return all
}

func TestADemoThatIsKilledLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	demo, rest := startDemo(t, Config{JSON: true})
	if err := demo.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	rest()
	demo.Wait()
	nothingLeft(t, demo.Process.Pid)
}

func TestSIGTERMEndsADemoWithoutAVerdict(t *testing.T) {
	t.Parallel()
	demo, rest := startDemo(t, Config{})
	if err := demo.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if out := rest(); strings.Contains(out, "outbox migrate up") {
		t.Errorf("there is a verdict:\n%s", out)
	}
	if err := demo.Wait(); err == nil {
		t.Error("the exit code is 0")
	}
	nothingLeft(t, demo.Process.Pid)
}

func TestCtrlCAsksForTheVerdictWhereThereIsNoTerminal(t *testing.T) {
	t.Parallel()
	demo, rest := startDemo(t, Config{})
	if err := demo.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	out := rest()
	if !strings.Contains(out, "OK: all that was committed arrived") || !strings.Contains(out, "outbox migrate up") {
		t.Errorf("there is no verdict, or not what comes next:\n%s", out)
	}
	if err := demo.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	nothingLeft(t, demo.Process.Pid)
}

func TestAReaderWhoGoesAwayEndsTheDemo(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	err := Run(t.Context(), Config{JSON: true, Stdout: brokenPipe{}, Stderr: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "write to standard output") {
		t.Errorf("got %v", err)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestARelayThatCantRunEndsTheDemoWithItsLog(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	var out await.Buffer
	err := Run(t.Context(), Config{Relay: []string{"/bin/sh", "-c", "echo no space left on the moon; exit 3"}, Stdout: &out})
	if err == nil || !strings.Contains(err.Error(), "no space left on the moon") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v\n%s", err, out.String())
	}
}

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	err := Run(t.Context(), Config{Rate: -1, Keys: MaxKeys + 1, For: time.Second, Stdout: io.Discard})
	for _, wanted := range []string{"--rate: -1", "--keys: 100001", "--for: 1s"} {
		if err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%v doesn't say %q", err, wanted)
		}
	}
}

// undoAfter undoes at the end of the test what hasn't been undone.
func undoAfter(t *testing.T) *undo {
	undo := &undo{}
	t.Cleanup(func() {
		if err := undo.do(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return undo
}

func TestAGivenServerGetsADatabaseOfTheDemosOwn(t *testing.T) {
	t.Parallel()
	given := servers.TestDatabase(t)
	undo := undoAfter(t)
	d, err := openDatabase(t.Context(), undo, given, 10, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	name := d.name
	if got := one[string](t, given, `SELECT current_database()`); got == name {
		t.Errorf("the demo uses the given database %s", got)
	}
	if !strings.HasPrefix(name, "outbox_demo_") || !strings.Contains(d.note, name) {
		t.Errorf("the database is %q, the note says %q", name, d.note)
	}
	if n := one[int](t, given, `SELECT count(*) FROM pg_namespace WHERE nspname IN ('outbox', 'outbox_demo')`); n != 0 {
		t.Error("the given database was changed")
	}
	if err := undo.do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, given, `SELECT count(*) FROM pg_database WHERE datname = '`+name+`'`); n != 0 {
		t.Error("the demo's database is still there")
	}
}

// one runs a statement and returns the only value of its only row.
func one[T any](t *testing.T, databaseURL, sql string) (value T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatal(err)
	}
	return value
}

// asOwner returns the address of a database for a role that owns it and may not create another one.
func asOwner(t *testing.T, given string) string {
	t.Helper()
	role := "demo_" + randomHex()
	u, err := url.Parse(given)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, given, `CREATE ROLE `+role+` LOGIN PASSWORD 'secret'; ALTER DATABASE `+strings.TrimPrefix(u.Path, "/")+` OWNER TO `+role)
	t.Cleanup(func() {
		execute(t, given, `REASSIGN OWNED BY `+role+` TO CURRENT_USER; DROP ROLE `+role)
	})
	u.User = url.UserPassword(role, "secret")
	return u.String()
}

func execute(t *testing.T, databaseURL, sql string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestARoleThatMayCreateNothingLendsItsDatabase(t *testing.T) {
	t.Parallel()
	given := asOwner(t, servers.TestDatabase(t))

	undo := undoAfter(t)
	if _, err := openDatabase(t.Context(), undo, given, 10, io.Discard); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, given, `SELECT count(*) FROM outbox_demo.orders`); n != 10 {
		t.Errorf("%d orders", n)
	}
	if _, err := openDatabase(t.Context(), undoAfter(t), given, 10, io.Discard); err == nil ||
		!strings.Contains(err.Error(), "another demo runs") {
		t.Errorf("a second demo in the database: %v", err)
	}
	if err := undo.do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, given, `SELECT count(*) FROM pg_namespace WHERE nspname IN ('outbox', 'outbox_demo')`); n != 0 {
		t.Error("something of the demo is left in the database")
	}
}

func TestAnOutboxInUseIsLeftAlone(t *testing.T) {
	t.Parallel()
	given := asOwner(t, servers.TestDatabase(t))
	undo := undoAfter(t)
	d := &database{url: given, name: one[string](t, given, `SELECT current_database()`), undo: undo}
	if err := d.install(t.Context(), 1); err != nil {
		t.Fatal(err)
	}

	// An empty one will do, and is empty afterwards.
	execute(t, given, `DROP TABLE orders`)
	d, err := openDatabase(t.Context(), undo, given, 10, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.pool.Exec(t.Context(), `INSERT INTO outbox.messages (topic) VALUES ('orders')`); err != nil {
		t.Fatal(err)
	}
	if err := undo.do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, given, `SELECT count(*) FROM outbox.messages`); n != 0 {
		t.Errorf("%d messages are left", n)
	}

	execute(t, given, `INSERT INTO outbox.messages (topic) VALUES ('invoices')`)
	if _, err := openDatabase(t.Context(), undoAfter(t), given, 10, io.Discard); err == nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("an outbox in use: %v", err)
	}
	if n := one[int](t, given, `SELECT count(*) FROM outbox.messages`); n != 1 {
		t.Errorf("%d messages instead of 1", n)
	}
}

func TestAServerThatDoesntAnswerIsNamedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	err := Run(t.Context(), Config{DatabaseURL: "postgres://me:hunter2@127.0.0.1:1/orders", Relay: []string{"unused"}, Stdout: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "--database-url") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}
