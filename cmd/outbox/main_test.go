package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
)

// Exit codes, a contract for scripts.
const (
	exitOK       = 0
	exitError    = 1
	exitUsage    = 2
	exitConfig   = 3
	exitNotFound = 4
	exitNothing  = 5
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "outbox-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(folder, "outbox")
	build := exec.Command("go", "build", "-o", binary, ".")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s", err, out)
		os.Exit(1)
	}
	code := servers.Run(m)
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// database is a fresh one; folder is where commands run.
type database struct {
	t      *testing.T
	url    string
	folder string
	*pgx.Conn
}

func emptyDatabase(t *testing.T) *database { return newDatabase(t, servers.TestDatabase(t)) }

func newDatabase(t *testing.T, url string) *database {
	t.Helper()
	d := &database{t: t, url: url, folder: t.TempDir()}
	conn, err := pgx.Connect(t.Context(), d.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	d.Conn = conn
	return d
}

// setup has all tables published, as with a well-known tool for change data capture.
func setup(t *testing.T) *database { return newDatabase(t, testdb.Published(t).URL) }

func (d *database) exec(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.Exec(d.t.Context(), sql, args...); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
}

func (d *database) int(sql string, args ...any) (n int) {
	d.t.Helper()
	if err := d.QueryRow(d.t.Context(), sql, args...).Scan(&n); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// outbox runs a command on the database, in its folder.
func (d *database) outbox(args ...string) result {
	d.t.Helper()
	return command(d.t, d.folder, []string{"OUTBOX_DATABASE_URL=" + d.url}, args...)
}

// result is what a command left.
type result struct {
	t              *testing.T
	line           string
	code           int
	stdout, stderr string
}

// command runs one to its end, with no other environment than env.
func command(t *testing.T, folder string, env []string, args ...string) result {
	t.Helper()
	cmd := exec.CommandContext(await.Context(t), binary, args...)
	cmd.Dir, cmd.Env = folder, append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + folder}, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run the program: %v", err)
	}
	return result{t, "outbox " + strings.Join(args, " "), cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// want checks the exit code, and that each text is somewhere in the output.
func (r result) want(code int, texts ...string) result {
	r.t.Helper()
	if r.code != code {
		r.t.Errorf("%s: exit code %d, want %d\n%s%s", r.line, r.code, code, r.stdout, r.stderr)
	}
	for _, text := range texts {
		if !strings.Contains(r.stdout+r.stderr, text) {
			r.t.Errorf("%s: no %q in\n%s%s", r.line, text, r.stdout, r.stderr)
		}
	}
	return r
}

func (r result) never(texts ...string) result {
	r.t.Helper()
	for _, text := range texts {
		if strings.Contains(r.stdout+r.stderr, text) {
			r.t.Errorf("%s: prints %q:\n%s%s", r.line, text, r.stdout, r.stderr)
		}
	}
	return r
}

// process is a relay that runs beside the test.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout await.Buffer
	stderr await.Buffer
	ended  chan struct{}
}

// relay starts one with the given outbox.yaml; it is killed at the end of the test if it still runs.
func (d *database) relay(yaml string, args ...string) *process {
	d.t.Helper()
	return d.relayTo(nil, yaml, args...)
}

// relayTo is relay with another standard output than the process's buffer.
func (d *database) relayTo(stdout *os.File, yaml string, args ...string) *process {
	d.t.Helper()
	file := filepath.Join(d.t.TempDir(), "outbox.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		d.t.Fatal(err)
	}
	return d.start(stdout, append([]string{"relay", "--config", file}, args...)...)
}

// start starts any command.
func (d *database) start(stdout *os.File, args ...string) *process {
	d.t.Helper()
	return d.starts(stdout, []string{"OUTBOX_DATABASE_URL=" + d.url}, args...)
}

// starts is start with another environment.
func (d *database) starts(stdout *os.File, env []string, args ...string) *process {
	d.t.Helper()
	p := &process{t: d.t, ended: make(chan struct{})}
	p.cmd = exec.Command(binary, args...)
	p.cmd.Dir, p.cmd.Env = d.folder, append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + d.folder}, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	if err := p.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	d.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if d.t.Failed() {
			d.t.Logf("the relay's log:\n%s", p.stderr.String())
		}
	})
	return p
}

// stop sends SIGTERM and returns the exit code.
func (p *process) stop() int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	return p.wait()
}

func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-await.Context(p.t).Done():
		p.t.Fatalf("the relay does not end:\n%s", p.stderr.String())
	}
	return p.cmd.ProcessState.ExitCode()
}

// until polls a condition.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	await.Until(t, what, condition)
}
