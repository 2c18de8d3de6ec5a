package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/servers"
)

// Drain loads an outbox once and lets each contender deliver it, in turn, Rounds times.
func Drain(ctx context.Context, cfg DrainConfig) ([]Result, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	say := func(format string, args ...any) { fmt.Fprintf(cfg.Progress, format+"\n", args...) }

	url := cfg.Postgres
	if url == "" {
		say("starting PostgreSQL")
		pg, err := servers.StartPostgres(ctx, servers.PostgresConfig{Fsync: true, Settings: map[string]string{
			"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "1h", "autovacuum": "off",
		}})
		if err != nil {
			return nil, err
		}
		defer pg.Close()
		url = pg.URL("postgres")
	}
	say("starting %s", cfg.Broker)
	to, err := openTarget(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer to.close()

	// One checker per run has to know what was committed; the load tells them all.
	runs := cfg.Rounds * len(cfg.Contenders)
	checkers := make([]*check.Checker, runs)
	for i := range checkers {
		checkers[i] = check.New(check.Config{})
	}
	say("writing %d messages of %d bytes over %d keys", cfg.Messages, cfg.Bytes, cfg.Keys)
	err = load(ctx, url, cfg, func(key uint32, seq uint64) {
		for _, c := range checkers {
			c.Committed(key, seq)
		}
	})
	if err != nil {
		return nil, err
	}

	var results []Result
	for round := range cfg.Rounds {
		floor := 0.0
		for _, name := range cfg.Contenders {
			checker := checkers[len(results)]
			r, err := drainOnce(ctx, cfg, to, url, name, checker)
			if err != nil {
				return results, fmt.Errorf("%s, round %d: %w", name, round+1, err)
			}
			r.Round = round + 1
			if name == Floor {
				floor = r.Rate
			}
			if floor > 0 {
				r.RatioToFloor = r.Rate / floor
			}
			say("round %d: %s %.0f messages/s", r.Round, name, r.Rate)
			results = append(results, r)
		}
	}
	return results, nil
}

// drainOnce runs one contender as a process of its own and checks what arrived.
func drainOnce(ctx context.Context, cfg DrainConfig, to target, url, name string, checker *check.Checker) (Result, error) {
	r := Result{Contender: name, Broker: cfg.Broker, Messages: cfg.Messages, Bytes: cfg.Bytes, Keys: cfg.Keys, Relays: 1, Go: runtime.Version()}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return r, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&r.Postgres); err != nil {
		return r, err
	}
	if _, err := conn.Exec(ctx, "DELETE FROM outbox.cursors"); err != nil {
		return r, err
	}
	if err := to.fresh(ctx); err != nil {
		return r, err
	}
	child, err := startContender(ctx, cfg, to, url, name)
	if err != nil {
		return r, err
	}
	defer child.end()
	started, err := child.started()
	if err != nil {
		return r, err
	}
	databaseBefore := databaseCPU(conn.PgConn().PID())
	for n := 0; n < cfg.Messages; time.Sleep(5 * time.Millisecond) {
		if n, err = to.count(ctx); err != nil {
			return r, err
		}
		if n < cfg.Messages && child.ended() && name == Relay {
			return r, fmt.Errorf("the process ended after %d messages:\n%s", n, child.tail())
		}
		if time.Since(started) > 10*time.Minute {
			return r, fmt.Errorf("only %d messages arrived in ten minutes:\n%s", n, child.tail())
		}
	}
	r.Seconds = time.Since(started).Seconds()
	r.Rate = float64(cfg.Messages) / r.Seconds
	r.DatabaseCPU = databaseCPU(conn.PgConn().PID()) - databaseBefore
	r.RSSMB = child.peakRSS()
	r.RelayCPU = child.end()
	n, err := to.count(ctx)
	if err != nil {
		return r, err
	}
	if err := checked(ctx, to, n, checker.Destination("default")); err != nil {
		return r, fmt.Errorf("read back: %w", err)
	}
	report := checker.Report()
	r.Lost, r.Phantom, r.Duplicated, r.Inverted = report.Lost, report.Phantom+report.Corrupted, report.Duplicated, report.Inverted
	return r, nil
}

// contender is a child process that drains.
type contender struct {
	cmd   *exec.Cmd
	dir   string
	first chan time.Time
	done  chan struct{}
	once  sync.Once
	cpu   float64
	peak  float64

	mu    sync.Mutex
	lines []string
}

func startContender(ctx context.Context, cfg DrainConfig, to target, url, name string) (*contender, error) {
	dir, err := os.MkdirTemp("", "outbox-bench-")
	if err != nil {
		return nil, err
	}
	c := &contender{dir: dir, first: make(chan time.Time, 1), done: make(chan struct{})}
	switch name {
	case Floor:
		c.cmd = exec.CommandContext(ctx, cfg.Binary, "bench", "floor", "--broker", cfg.Broker, "--address", to.address())
	default:
		// Everything is left at its default but where to read and write.
		config := filepath.Join(dir, "outbox.yaml")
		text := fmt.Sprintf("http: {listen: \"\"}\nlog: {format: json}\ndestinations:\n  - {name: bench, broker: %s}\n", to.yaml())
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			return nil, err
		}
		c.cmd = exec.CommandContext(ctx, cfg.Binary, "relay", "--config", config)
	}
	c.cmd.Env = append(os.Environ(), "OUTBOX_DATABASE_URL="+url)
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go c.read(bufio.NewScanner(stderr))
	return c, nil
}

// read watches the log for the line that says when reading began.
func (c *contender) read(lines *bufio.Scanner) {
	defer close(c.done)
	for lines.Scan() {
		var line struct {
			Msg  string    `json:"msg"`
			Time time.Time `json:"time"`
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && (line.Msg == "started" || line.Msg == "lease acquired") {
			select {
			case c.first <- line.Time:
			default:
			}
		}
		c.mu.Lock()
		if c.lines = append(c.lines, lines.Text()); len(c.lines) > 20 {
			c.lines = c.lines[1:]
		}
		c.mu.Unlock()
	}
}

func (c *contender) started() (time.Time, error) {
	select {
	case at := <-c.first:
		return at, nil
	case <-c.done:
	case <-time.After(30 * time.Second):
	}
	select {
	case at := <-c.first:
		return at, nil
	default:
		return time.Time{}, fmt.Errorf("the process did not begin:\n%s", c.tail())
	}
}

func (c *contender) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (c *contender) tail() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.lines, "\n")
}

// peakRSS is the most memory that the process had, in MB, as the kernel counts it.
func (c *contender) peakRSS() float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		return 0 // it has ended: end reads the same from its usage
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			c.peak = kb / 1024
		}
	}
	return c.peak
}

// end stops the process, removes what it used and returns its CPU seconds.
func (c *contender) end() float64 {
	c.once.Do(func() {
		_ = c.cmd.Process.Signal(syscall.SIGTERM)
		stop := time.AfterFunc(20*time.Second, func() { _ = c.cmd.Process.Kill() })
		<-c.done
		_ = c.cmd.Wait() // its outcome shows in what arrived
		stop.Stop()
		if state := c.cmd.ProcessState; state != nil {
			c.cpu = (state.UserTime() + state.SystemTime()).Seconds()
		}
		_ = os.RemoveAll(c.dir)
	})
	return c.cpu
}

// databaseCPU is what the postmaster that owns a backend and all its children have used, in seconds; 0
// where there is no /proc or the server is elsewhere.
func databaseCPU(backend uint32) float64 {
	parent, _ := processStat(int(backend))
	if parent <= 1 {
		return 0
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	total := 0.0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if ppid, cpu := processStat(pid); pid == parent || ppid == parent {
			total += cpu
		}
	}
	return total
}

// processStat reads a process's parent and CPU seconds; those of its ended children are included.
func processStat(pid int) (parent int, seconds float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	parent, _ = strconv.Atoi(fields[1])
	const ticks = 100 // USER_HZ, fixed in Linux's interface
	for _, f := range fields[11:15] {
		n, _ := strconv.ParseFloat(f, 64)
		seconds += n / ticks
	}
	return parent, seconds
}

func isUnknownTopic(err error) bool { return errors.Is(err, kerr.UnknownTopicOrPartition) }
func isTopicExists(err error) bool  { return errors.Is(err, kerr.TopicAlreadyExists) }
