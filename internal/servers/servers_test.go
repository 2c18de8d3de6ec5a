package servers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/child"
)

// envVictim makes this test binary start servers and wait to be killed.
const envVictim = "OUTBOX_SERVERS_TEST_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(envVictim) != "" {
		if err := victim(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	Main(m)
}

func exec1(t *testing.T, url, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](t *testing.T, url, sql string, args ...any) (v T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func majors() (all []string) {
	for _, version := range PostgresVersions() {
		all = append(all, majorOf(version))
	}
	return all
}

func TestEveryMajorStartsWithWhatTheTestsNeed(t *testing.T) {
	t.Parallel()
	for _, major := range majors() {
		t.Run(major, func(t *testing.T) {
			p := OwnPostgres(t, PostgresConfig{Major: major, TwoPhase: true, Settings: map[string]string{"application_name": "it's"}})
			if got := fmt.Sprint(p.Major()); got != major {
				t.Errorf("Major() = %s, want %s", got, major)
			}
			for name, want := range map[string]string{
				"wal_level":                 "logical",
				"max_connections":           "200",
				"max_prepared_transactions": "100",
				"fsync":                     "off",
				"listen_addresses":          "127.0.0.1",
				"server_encoding":           "UTF8",
			} {
				if got := value[string](t, p.URL("postgres"), "SELECT current_setting($1)", name); got != want {
					t.Errorf("%s = %s, want %s", name, got, want)
				}
			}
			if got := value[string](t, p.URL("postgres"),
				"SELECT reset_val FROM pg_settings WHERE name = 'application_name'"); got != "it's" {
				t.Errorf("the setting that was asked for is %q", got)
			}
			if !strings.HasPrefix(value[string](t, p.URL("postgres"), "SHOW server_version"), p.Version()) {
				t.Errorf("the server isn't of version %s", p.Version())
			}
		})
	}
}

func TestADatabaseIsFreshAndGoesWithItsSlotsAndPreparedTransactions(t *testing.T) {
	t.Parallel()
	config := PostgresConfig{TwoPhase: true}
	p := TestPostgres(t, config)
	var first string
	t.Run("use", func(t *testing.T) {
		url := TestDatabase(t, config)
		first = value[string](t, url, "SELECT current_database()::text")
		if other := value[string](t, TestDatabase(t, config), "SELECT current_database()::text"); other == first {
			t.Errorf("two databases are both called %s", other)
		}
		exec1(t, url, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", first)
		conn, err := pgx.Connect(t.Context(), url)
		must(t, err)
		t.Cleanup(func() { conn.Close(context.Background()) }) // runs before the database is dropped
		_, err = conn.Exec(t.Context(), "CREATE TABLE t (i int)")
		must(t, err)
		_, err = conn.Exec(t.Context(), "BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'it''s "+first+"'")
		must(t, err)

		// A connection that stays open.
		idle, err := pgx.Connect(context.Background(), url)
		must(t, err)
		_, err = idle.Exec(t.Context(), "BEGIN; INSERT INTO t VALUES (1)")
		must(t, err)
	})
	if n := value[int](t, p.URL("postgres"), "SELECT count(*) FROM pg_database WHERE datname = $1", first); n != 0 {
		t.Error("the database outlives its test")
	}
	if n := value[int](t, p.URL("postgres"), "SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1", first); n != 0 {
		t.Error("the slot outlives its test")
	}
}

func TestTestsThatWantTheSameShareACluster(t *testing.T) {
	t.Parallel()
	if TestPostgres(t) != TestPostgres(t, PostgresConfig{}) {
		t.Error("two clusters for one wish")
	}
}

func TestPostgresKeepsCommittedRowsThroughEveryEnd(t *testing.T) {
	t.Parallel()
	for _, major := range []string{majors()[0], ""} {
		p := OwnPostgres(t, PostgresConfig{Major: major})
		url := p.URL("postgres")
		exec1(t, url, "CREATE TABLE t (how text)")
		for how, end := range map[string]func() error{"stop": p.Stop, "crash": p.Crash, "kill": p.Kill9} {
			exec1(t, url, "INSERT INTO t VALUES ($1)", how)
			backends := tree(t, p.process.PID())
			must(t, end())
			if p.Running() {
				t.Fatalf("%s: it runs", how)
			}
			for _, pid := range backends {
				if child.Alive(pid) {
					t.Errorf("%s: process %d lives", how, pid)
				}
			}
			must(t, end()) // nothing to end is fine
			must(t, p.Restart(t.Context()))
			if n := value[int](t, url, "SELECT count(*) FROM t WHERE how = $1", how); n != 1 {
				t.Errorf("%s: the row is there %d times", how, n)
			}
		}
	}
}

func tree(t *testing.T, pid int) []int {
	t.Helper()
	below, err := child.Descendants(pid)
	must(t, err)
	if len(below) == 0 {
		t.Fatal("PostgreSQL has no child: the test looks at the wrong process")
	}
	return append(below, pid)
}

func TestAFrozenPostgresDoesNotAnswerAndGoesOnAfterThaw(t *testing.T) {
	t.Parallel()
	p := OwnPostgres(t)
	conn, err := pgx.Connect(t.Context(), p.URL("postgres"))
	must(t, err)
	defer conn.Close(context.Background())

	must(t, p.Freeze())
	must(t, p.Freeze())
	for _, pid := range tree(t, p.process.PID()) {
		// One that had just ended stays a zombie, since its parent is stopped too.
		await.Until(t, "every process is stopped", func() bool { s := state(t, pid); return s == "T" || s == "Z" })
	}
	answer := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT 1")
		answer <- err
	}()
	must(t, p.Thaw())
	if err := <-answer; err != nil {
		t.Errorf("the connection didn't survive: %v", err)
	}
	must(t, p.Freeze())
	must(t, p.Stop()) // a frozen one can be stopped
	must(t, p.Restart(t.Context()))
	must(t, p.Freeze())
	must(t, p.Kill9()) // and killed
	must(t, p.Restart(t.Context()))
	must(t, p.Freeze()) // and closed, by OwnPostgres
}

// state returns T for a stopped process.
func state(t *testing.T, pid int) string {
	t.Helper()
	out, err := exec.Command("ps", "-o", "stat=", "-p", fmt.Sprint(pid)).Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("ps of %d: %v", pid, err)
	}
	return string(out[:1])
}

func TestAStandbyOfEveryMajorStreamsAndTakesOver(t *testing.T) {
	t.Parallel()
	for _, major := range majors() {
		t.Run(major, func(t *testing.T) {
			primary := OwnPostgres(t, PostgresConfig{Major: major})
			exec1(t, primary.URL("postgres"), "CREATE TABLE t AS SELECT generate_series(1, 1000) i")
			exec1(t, primary.URL("postgres"), "SELECT pg_create_logical_replication_slot('not_copied', 'pgoutput')")

			standby := OwnStandby(t, primary, StandbyConfig{Name: "second"})
			if !value[bool](t, standby.URL("postgres"), "SELECT pg_is_in_recovery()") {
				t.Error("the standby isn't one")
			}
			exec1(t, primary.URL("postgres"), "INSERT INTO t VALUES (1001)")
			await.Until(t, "the standby has the row", func() bool {
				return value[int](t, standby.URL("postgres"), "SELECT count(*) FROM t") == 1001
			})
			name := value[string](t, primary.URL("postgres"),
				"SELECT r.application_name FROM pg_stat_replication r JOIN pg_replication_slots s ON "+
					"s.active_pid = r.pid WHERE s.slot_name = $1", standby.Slot())
			if name != "second" {
				t.Errorf("the standby is known as %q", name)
			}

			must(t, primary.Kill9())
			must(t, standby.Promote(t.Context()))
			exec1(t, standby.URL("postgres"), "INSERT INTO t VALUES (1002)")
			must(t, standby.Restart(t.Context()))
			if n := value[int](t, standby.URL("postgres"), "SELECT count(*) FROM t"); n != 1002 {
				t.Errorf("the new primary has %d rows, want 1002", n)
			}
			if err := primary.Promote(t.Context()); err == nil {
				t.Error("a primary was promoted")
			}
		})
	}
}

func TestAFailoverSlotSurvivesThePromotionOfItsStandby(t *testing.T) {
	t.Parallel()
	primary := OwnPostgres(t, PostgresConfig{Major: "18"})
	url := primary.URL("postgres")
	standby := OwnStandby(t, primary, StandbyConfig{Settings: map[string]string{"sync_replication_slots": "on"}})
	exec1(t, url, "ALTER SYSTEM SET synchronized_standby_slots = '"+standby.Slot()+"'")
	exec1(t, url, "SELECT pg_reload_conf()")
	exec1(t, url, "SELECT pg_create_logical_replication_slot('kept', 'pgoutput', failover => true)")
	await.Until(t, "the slot is synchronized for good", func() bool {
		// A copy stays temporary until the original has advanced past the standby.
		exec1(t, url, "SELECT pg_logical_emit_message(false, 'test', 'x')")
		exec1(t, url, "SELECT pg_log_standby_snapshot()")
		exec1(t, url, "SELECT pg_replication_slot_advance('kept', pg_current_wal_lsn())")
		return value[bool](t, standby.URL("postgres"),
			"SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = 'kept' AND synced AND NOT temporary)")
	})
	must(t, primary.Kill9())
	must(t, standby.Promote(t.Context()))
	if n := value[int](t, standby.URL("postgres"), "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'kept'"); n != 1 {
		t.Error("the slot is lost")
	}
}

func TestAClosedStandbyLeavesNoSlotOnItsPrimary(t *testing.T) {
	t.Parallel()
	primary := OwnPostgres(t)
	standby, err := primary.Standby(t.Context(), StandbyConfig{})
	must(t, err)
	must(t, standby.Close())
	if n := value[int](t, primary.URL("postgres"), "SELECT count(*) FROM pg_replication_slots"); n != 0 {
		t.Errorf("%d slots are left", n)
	}
}

func TestAnOwnIdentityDiffersFromThatOfTheTemplate(t *testing.T) {
	t.Parallel()
	const sql = "SELECT system_identifier FROM pg_control_system()"
	copied := value[int64](t, OwnPostgres(t).URL("postgres"), sql)
	one := value[int64](t, OwnPostgres(t, PostgresConfig{OwnIdentity: true}).URL("postgres"), sql)
	other := value[int64](t, OwnPostgres(t, PostgresConfig{OwnIdentity: true}).URL("postgres"), sql)
	if one == other || one == copied || other == copied {
		t.Errorf("identities: %d of a copy, %d and %d of own ones", copied, one, other)
	}
}

func TestKafkaAnswersAndComesBack(t *testing.T) {
	t.Parallel()
	k := OwnKafka(t)
	versions := kafkaAPIVersions(t, k.Addr())
	if len(versions) == 0 || versions[0] == 0 {
		t.Errorf("no produce API among %v", versions)
	}
	for how, end := range map[string]func() error{"stop": k.Stop, "kill": k.Kill9} {
		must(t, end())
		if conn, err := net.Dial("tcp", k.Addr()); err == nil {
			conn.Close()
			t.Errorf("after %s it accepts connections", how)
		}
		must(t, k.Restart(t.Context()))
		must(t, kafkaAnswers(t.Context(), k.Addr()))
	}
	must(t, k.Freeze())
	await.Until(t, "it is stopped", func() bool { return state(t, k.process.PID()) == "T" })
	must(t, k.Thaw())
	must(t, kafkaAnswers(t.Context(), k.Addr()))
}

func TestAClusterOfKafkaGoesOnWithoutOneOfItsBrokers(t *testing.T) {
	t.Parallel()
	c := OwnKafkaCluster(t)
	await.Until(t, "it has all brokers", func() bool { return len(c.counted(t, 0)) == clusterBrokers })
	must(t, c.Brokers[1].Kill9())
	await.Until(t, "the others miss it", func() bool { return len(c.counted(t, 0)) == clusterBrokers-1 })
	must(t, c.Brokers[1].Restart(t.Context()))
	if ids := c.counted(t, 1); !slices.Contains(ids, 2) {
		t.Errorf("after its return the brokers are %d", ids)
	}
	if n := len(strings.Split(c.Addr(), ",")); n != clusterBrokers {
		t.Errorf("%d addresses: %s", n, c.Addr())
	}
}

// counted returns the brokers that one of them knows of.
func (c *KafkaCluster) counted(t *testing.T, asked int) []int32 {
	t.Helper()
	ids, err := kafkaBrokers(t.Context(), c.Brokers[asked].Addr())
	must(t, err)
	return ids
}

// kafkaAPIVersions returns the highest version of each API, by key.
func kafkaAPIVersions(t *testing.T, addr string) map[int]int {
	t.Helper()
	response, err := kafkaCall(t.Context(), addr, []byte{0, 18, 0, 0, 0, 0, 0, 7, 0, 1, 'x'})
	must(t, err)
	if len(response) < 10 || response[3] != 7 || response[4] != 0 || response[5] != 0 {
		t.Fatalf("ApiVersions answers %x", response)
	}
	versions := map[int]int{}
	for rest := response[10:]; len(rest) >= 6; rest = rest[6:] {
		versions[int(rest[1])] = int(rest[5])
	}
	return versions
}

func TestNATSAnswersAndComesBack(t *testing.T) {
	t.Parallel()
	n := OwnNATS(t)
	if got := natsCall(t, n.Addr(), "$JS.API.STREAM.CREATE.kept", `{"name":"kept","subjects":["kept"]}`); !strings.Contains(got, `"kept"`) {
		t.Fatalf("stream create answers %s", got)
	}
	for _, end := range []func() error{n.Stop, n.Kill9} {
		must(t, end())
		must(t, n.Restart(t.Context()))
		await.Until(t, "the stream is back", func() bool {
			return strings.Contains(natsCall(t, n.Addr(), "$JS.API.STREAM.INFO.kept", ""), `"created"`)
		})
	}
	must(t, n.Freeze())
	must(t, n.Thaw())
	must(t, natsAnswers(t.Context(), n.Addr()))
	if got := n.URL(); got != "nats://"+n.Addr() {
		t.Errorf("URL() = %s", got)
	}
}

// natsCall sends one request and returns the payload of the answer.
func natsCall(t *testing.T, addr, subject, payload string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(await.Deadline(t)))
	fmt.Fprintf(conn, "CONNECT {\"verbose\":false}\r\nSUB inbox 1\r\nPUB %s inbox %d\r\n%s\r\n", subject, len(payload), payload)
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadString('\n')
		must(t, err)
		if strings.HasPrefix(line, "MSG ") {
			line, err = lines.ReadString('\n')
			must(t, err)
			return line
		}
	}
}

// report is what a victim says before it waits.
type report struct {
	Servers []int // process ids
	Below   []int // of their children
	Folders []string
}

// victim starts servers, one of them frozen, and waits until it is killed or its standard input ends.
func victim() error {
	ctx := context.Background()
	var r report
	for _, frozen := range []bool{false, true} {
		p, err := StartPostgres(ctx, PostgresConfig{})
		if err != nil {
			return err
		}
		below, err := child.Descendants(p.process.PID())
		if err != nil {
			return err
		}
		r.Servers = append(r.Servers, p.process.PID())
		r.Below = append(r.Below, below...)
		r.Folders = append(r.Folders, p.folder)
		if frozen {
			if err := p.Freeze(); err != nil {
				return err
			}
		}
	}
	n, err := StartNATS(ctx, NATSConfig{})
	if err != nil {
		return err
	}
	k, err := StartKafka(ctx, KafkaConfig{})
	if err != nil {
		return err
	}
	r.Servers = append(r.Servers, n.process.PID(), k.process.PID())
	r.Folders = append(r.Folders, n.folder, k.folder)
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func TestNothingOutlivesAKilledTest(t *testing.T) {
	t.Parallel()
	// What the victim needs, or the test ends here.
	own := OwnPostgres(t)
	for _, find := range []func() error{
		func() error { _, err := FindNATS(); return err },
		func() error { _, _, err := FindKafka(); return err },
	} {
		if err := find(); err != nil {
			missing(t, err)
		}
	}

	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envVictim+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var r report
	if err := json.NewDecoder(out).Decode(&r); err != nil {
		cmd.Wait()
		t.Fatalf("the victim reports nothing: %v", err)
	}
	if len(r.Below) < 10 {
		t.Errorf("the victim's PostgreSQL servers have only the children %v", r.Below)
	}
	for _, pid := range r.Servers {
		if !child.Alive(pid) {
			t.Errorf("process %d was never there", pid)
		}
	}
	must(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Error("the victim wasn't killed")
	}

	for _, pid := range append(r.Servers, r.Below...) {
		await.Until(t, fmt.Sprintf("process %d is gone", pid), func() bool { return !child.Alive(pid) })
	}
	child.Sweep(os.TempDir(), folderPrefix)
	for _, folder := range r.Folders {
		if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left", folder)
		}
	}
	if _, err := os.Stat(own.DataDir()); err != nil {
		t.Errorf("the data of a living process was removed: %v", err)
	}
}

func TestAKilledClusterLeavesNoSharedMemoryOnceClosed(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("shared memory is listed in /proc of Linux")
	}
	primary := OwnPostgres(t)
	standby := OwnStandby(t, primary)
	for _, p := range []*Postgres{standby, primary} {
		segments := sharedMemory(t, p.process.PID())
		must(t, p.Kill9())
		for _, segment := range segments {
			if !segment.exists(t) {
				t.Errorf("%s: %s went with the killed server: the test looks at the wrong place", p.name, segment)
			}
		}
		must(t, p.Close())
		for _, segment := range segments {
			if segment.exists(t) {
				t.Errorf("%s: %s is left", p.name, segment)
			}
		}
	}
}

// segment is a piece of shared memory: a path of /dev/shm, or a line of System V's table without its counters.
type segment string

// sharedMemory lists what a postmaster has made: one piece of each kind at least.
func sharedMemory(t *testing.T, pid int) (all []segment) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	must(t, err)
	for line := range strings.Lines(string(maps)) {
		if _, name, found := strings.Cut(strings.TrimSpace(line), "/dev/shm/"); found {
			all = append(all, segment("/dev/shm/"+name))
		}
	}
	posix := len(all)
	for id, creator := range systemV(t) {
		if creator == fmt.Sprint(pid) {
			all = append(all, segment(id))
		}
	}
	if posix == 0 || len(all) == posix {
		t.Fatalf("PostgreSQL uses the shared memory %v, want some of both kinds", all)
	}
	return all
}

func (s segment) exists(t *testing.T) bool {
	t.Helper()
	if strings.HasPrefix(string(s), "/") {
		_, err := os.Stat(string(s))
		return err == nil
	}
	_, there := systemV(t)[string(s)]
	return there
}

// systemV maps the ids of System V's segments to the processes that made them.
func systemV(t *testing.T) map[string]string {
	t.Helper()
	table, err := os.ReadFile("/proc/sysvipc/shm")
	must(t, err)
	creators := map[string]string{}
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			creators[fields[1]] = fields[4] // shmid, cpid
		}
	}
	return creators
}

func TestCloseRemovesEverythingAndMayBeRepeated(t *testing.T) {
	t.Parallel()
	need(t, "postgres")
	p, err := StartPostgres(t.Context(), PostgresConfig{})
	if err != nil {
		missing(t, err)
	}
	must(t, p.Kill9())
	must(t, p.Close())
	must(t, p.Close())
	if _, err := os.Stat(p.folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", p.folder, err)
	}
	for verb, do := range map[string]func() error{
		"stop": p.Stop, "crash": p.Crash, "kill": p.Kill9, "freeze": p.Freeze, "thaw": p.Thaw,
		"restart": func() error { return p.Restart(t.Context()) },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), "has been closed") {
			t.Errorf("%s after Close: %v", verb, err)
		}
	}
}

func TestTheClustersOfTestsAreInMemoryUnlessTMPDIRNamesAFolder(t *testing.T) {
	named := t.TempDir()
	must(t, os.Chmod(filepath.Dir(named), 0o755)) // for the user that runs root's PostgreSQL
	t.Setenv("TMPDIR", named)
	if p := OwnPostgres(t); !strings.HasPrefix(p.DataDir(), named) {
		t.Errorf("the data is in %s and not in %s", p.DataDir(), named)
	}
	t.Setenv("TMPDIR", "")
	where := memory()
	if where == "" {
		t.Skip("the clusters are on the disk here: less than 4 GiB are free in /dev/shm, or of memory")
	}
	if p := OwnPostgres(t); !strings.HasPrefix(p.DataDir(), where) {
		t.Errorf("the data is in %s and not in memory", p.DataDir())
	}
	if p := OwnPostgres(t, PostgresConfig{Fsync: true}); strings.HasPrefix(p.DataDir(), where) {
		t.Error("commits that wait for the disk don't reach one")
	}
}

func TestAFaultySettingFailsWithTheLogOfTheServer(t *testing.T) {
	t.Parallel()
	need(t, "postgres")
	if _, _, err := FindPostgres(""); err != nil {
		missing(t, err)
	}
	_, err := StartPostgres(t.Context(), PostgresConfig{Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("the error doesn't say why: %v", err)
	}
}

func TestAnAddressFromTheEnvironmentIsUsedAndNotKilled(t *testing.T) {
	p := OwnPostgres(t)
	t.Setenv(envPostgres, p.URL("postgres"))
	given, err := givenPostgres(t.Context())
	must(t, err)
	if given.Version() != p.Version() || given.Addr() != p.Addr() || given.URL("x") != p.URL("x") {
		t.Errorf("given %s at %s, want %s at %s", given.Version(), given.Addr(), p.Version(), p.Addr())
	}
	for verb, do := range map[string]func() error{
		"stop": given.Stop, "crash": given.Crash, "kill": given.Kill9, "freeze": given.Freeze, "thaw": given.Thaw,
		"restart": func() error { return given.Restart(t.Context()) },
		"standby": func() error { _, err := given.Standby(t.Context(), StandbyConfig{}); return err },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), envPostgres) {
			t.Errorf("%s: %v, want an error that names %s", verb, err, envPostgres)
		}
	}
	must(t, given.Close())
	if !p.Running() {
		t.Error("Close of the given server ended it")
	}

	t.Setenv(envPostgres, "host=127.0.0.1")
	if _, err := givenPostgres(t.Context()); err == nil || !strings.Contains(err.Error(), envPostgres) {
		t.Errorf("an address that is no URL: %v", err)
	}
}

func TestBrokersFromTheEnvironmentAreUsedAndNotKilled(t *testing.T) {
	k, n := OwnKafka(t, KafkaConfig{Bench: true, Settings: map[string]string{"num.partitions": "3"}}), OwnNATS(t)
	t.Setenv(envKafka, k.Addr())
	t.Setenv(envNATS, n.URL())
	givenK, givenN := &Kafka{}, &NATS{}
	for s, from := range map[*Server]given{&givenK.Server: givenKafka, &givenN.Server: givenNATS} {
		is, err := from.take(t.Context(), s)
		must(t, err)
		if !is {
			t.Fatalf("%s isn't there", from.what)
		}
	}
	if givenK.Addr() != k.Addr() || givenN.URL() != n.URL() || givenN.Port() != n.Port() {
		t.Errorf("given %s and %s, want %s and %s", givenK.Addr(), givenN.URL(), k.Addr(), n.URL())
	}
	if err := givenK.Kill9(); err == nil || !strings.Contains(err.Error(), envKafka) {
		t.Errorf("kill of the given Kafka: %v", err)
	}
	if err := givenN.Kill9(); err == nil || !strings.Contains(err.Error(), envNATS) {
		t.Errorf("kill of the given NATS: %v", err)
	}
	must(t, errors.Join(givenK.Close(), givenN.Close()))
	if !k.Running() || !n.Running() {
		t.Error("Close of a given server ended it")
	}

	t.Setenv(envKafka, n.Addr()) // something answers, but not Kafka
	if _, err := givenKafka.take(t.Context(), &Server{}); err == nil || !strings.Contains(err.Error(), envKafka) {
		t.Errorf("NATS taken for Kafka: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := givenNATS.take(ctx, &Server{}); err == nil || !strings.Contains(err.Error(), envNATS) {
		t.Errorf("NATS that can't be reached: %v", err)
	}
}

func TestAServerThatIsNotInstalledIsNotFound(t *testing.T) {
	t.Setenv(envCache, t.TempDir())
	t.Setenv("PATH", "")
	t.Setenv("JAVA_HOME", "")
	if _, _, err := FindPostgres("9"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "PostgreSQL 9") {
		t.Errorf("PostgreSQL 9: %v", err)
	}
	if _, err := StartKafka(t.Context(), KafkaConfig{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("Kafka: %v", err)
	}
	if _, err := StartNATS(t.Context(), NATSConfig{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("NATS: %v", err)
	}
	if _, err := FindJava(); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "17") {
		t.Errorf("Java: %v", err)
	}
}

func TestWhereAServerIsRequiredATestFailsInsteadOfBeingSkipped(t *testing.T) {
	for _, c := range []struct {
		ci, list  string
		may, must bool
	}{
		{"", "", true, false}, {"true", "", true, true}, {"", "all", true, true}, {"", "postgres,kafka", true, true},
		{"", "postgres", false, true}, {"true", "postgres", false, true},
	} {
		t.Setenv("CI", c.ci)
		t.Setenv(envServers, c.list)
		if may, must := Wanted(part[*KafkaCluster]()), Required(); may != c.may || must != c.must {
			t.Errorf("CI=%q %s=%q: Kafka may be used %v, and must %v", c.ci, envServers, c.list, may, must)
		}
	}
}

func TestTheNewestVersionWins(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"18.6", "9.6.24", 1}, {"18.6", "18.10", -1}, {"15.13", "15.13", 0}, {"18", "18.1", -1}, {"17beta1", "16.1", -1},
	} {
		if got := compareVersions(c.a, c.b); got != c.want {
			t.Errorf("compareVersions(%s, %s) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestFreePortsAreBelowThoseOfTheSystemAndDiffer(t *testing.T) {
	t.Parallel()
	ports, err := freePorts(20)
	must(t, err)
	seen := map[int]bool{}
	for _, port := range ports {
		if port >= 32768 || seen[port] {
			t.Errorf("port %d in %v", port, ports)
		}
		seen[port] = true
	}
}

func TestRootIsToldWhichFolderNobodyMayEnter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	inner := filepath.Join(dir, "inner")
	must(t, os.Mkdir(inner, 0o755))
	must(t, os.Chmod(dir, 0o700))
	if err := enterable(inner); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("enterable below %s: %v", dir, err)
	}
}

func BenchmarkStartPostgres(b *testing.B) {
	for b.Loop() {
		p, err := StartPostgres(b.Context(), PostgresConfig{})
		if err != nil {
			missing(b, err)
		}
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDatabase(b *testing.B) {
	p := TestPostgres(b)
	for b.Loop() {
		name, err := p.CreateDatabase(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if err := p.DropDatabase(b.Context(), name); err != nil {
			b.Fatal(err)
		}
	}
}
