package seeds

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
)

var program struct {
	sync.Once
	folder string
	err    error
}

func TestMain(m *testing.M) {
	code := servers.Run(m)
	if program.folder != "" {
		_ = os.RemoveAll(program.folder)
	}
	os.Exit(code)
}

// outboxProgram builds the binary, once.
func outboxProgram(t *testing.T) string {
	t.Helper()
	program.Do(func() {
		if program.folder, program.err = os.MkdirTemp("", "outbox-seeds"); program.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-o", filepath.Join(program.folder, "outbox"), "github.com/pgoutbox/outbox/cmd/outbox").CombinedOutput()
		if err != nil {
			program.err = fmt.Errorf("build outbox: %w\n%s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return filepath.Join(program.folder, "outbox")
}

// seed is a table, its writer and what is expected of the relay.
type seed struct {
	ddl      string
	table    string
	presets  []string // any of which the doctor may take the table for
	source   string   // the section of the configuration
	groups   int      // shard groups; 0: one
	write    func(ctx context.Context, tx pgx.Tx, n int) error
	unmarked string // counts rows that are not as the author's code would leave them
	topic    string
	header   string // that every message carries

	unsettledOnly bool // a crash repeats what was not settled; otherwise what its open transactions hold as well
}

const (
	rows      = 600
	batch     = 50
	inFlight  = 2 * batch
	perSecond = 400
)

// run writes rows beside rollbacks and has two relays deliver them, which repeat nothing; writes as many,
// kills a relay in the middle and starts it again, which repeats at most what was in flight.
func (s seed) run(t *testing.T) {
	b := bed{T: t, seed: s, url: servers.TestDatabase(t), program: outboxProgram(t), folder: t.TempDir()}
	conn := b.connect()
	if _, err := conn.Exec(t.Context(), s.ddl); err != nil {
		t.Fatal(err)
	}
	b.examine()
	one, two := b.start("one", "1", 0), b.start("two", "2", 0)
	b.writeAll(0)
	b.untilMarked(conn)
	one.stop()
	two.stop()
	first := append(b.read("1"), b.read("2")...)
	b.check(first, 0, 0)

	killed := b.start("one", "3", perSecond)
	b.writeAll(rows)
	b.until("some messages are delivered", func() bool { return len(b.read("3")) >= rows/4 })
	killed.kill()
	if before := len(b.read("3")); before >= rows {
		t.Fatalf("the relay had delivered all %d messages before it was killed", before)
	}
	again, beside := b.start("one", "4", 0), b.start("two", "5", 0)
	b.untilMarked(conn)
	again.stop()
	beside.stop()
	bound := inFlight
	if !s.unsettledOnly {
		bound = 4 * 200 // four transactions of a page each
	}
	b.check(append(append(b.read("3"), b.read("4")...), b.read("5")...), rows, bound)
}

// examine has the doctor look at the table: it knows whose it is.
func (b *bed) examine() {
	b.Helper()
	out, err := exec.Command(b.program, "doctor", "--database-url", b.url, "--table", b.table, "-o", "json").CombinedOutput()
	if err != nil {
		b.Fatalf("doctor: %v: %s", err, out)
	}
	var report struct {
		Preset string `json:"preset"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		b.Fatalf("doctor: %v: %s", err, out)
	}
	if !slices.Contains(b.presets, report.Preset) {
		b.Errorf("the doctor takes table %s for %q, want one of %q", b.table, report.Preset, b.presets)
	}
}

type bed struct {
	*testing.T
	seed
	url, program, folder string

	broker string // section of the configuration; empty: a file
}

func (b *bed) connect() *pgx.Conn {
	b.Helper()
	conn, err := pgx.Connect(b.Context(), b.url)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// writeAll commits rows that begin at from, by several writers; now and then one rolls back, and writes again.
func (b *bed) writeAll(from int) {
	b.Helper()
	const writers = 3
	var wg sync.WaitGroup
	for w := range writers {
		conn := b.connect()
		wg.Go(func() {
			for n := from + w; n < from+rows; n += writers {
				for rolledBack := rand.IntN(10) == 0; ; rolledBack = false {
					tx, err := conn.Begin(b.Context())
					if err == nil {
						err = b.write(b.Context(), tx, n)
					}
					if err == nil && rolledBack {
						if err = tx.Rollback(b.Context()); err == nil {
							continue
						}
					}
					if err == nil {
						err = tx.Commit(b.Context())
					}
					if err != nil {
						b.Errorf("write %d: %v", n, err)
						return
					}
					break
				}
			}
		})
	}
	wg.Wait()
}

func (b *bed) untilMarked(conn *pgx.Conn) {
	b.Helper()
	left := -1
	b.until("every row is marked", func() bool {
		if err := conn.QueryRow(b.Context(), b.unmarked).Scan(&left); err != nil {
			b.Fatal(err)
		}
		return left == 0
	})
}

func (b *bed) until(what string, done func() bool) {
	b.Helper()
	deadline := time.Now().Add(time.Minute)
	for !done() {
		if time.Now().After(deadline) {
			for _, log := range []string{"1", "2", "3", "4", "5"} {
				text, _ := os.ReadFile(filepath.Join(b.folder, log+".log"))
				b.Logf("relay %s: %s", log, text)
			}
			b.Fatalf("waited for a minute, and not: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// relayProcess is a running "outbox relay".
type relayProcess struct {
	b   *bed
	cmd *exec.Cmd
	log *os.File
}

// start runs a relay that delivers to the file of that number; at most rate messages a second, if that is
// not 0.
func (b *bed) start(name, file string, rate int) *relayProcess {
	b.Helper()
	config := filepath.Join(b.folder, file+".yaml")
	broker := b.broker
	if broker == "" {
		broker = fmt.Sprintf("{file: {path: %q}}", filepath.Join(b.folder, file+".jsonl"))
	}
	text := fmt.Sprintf(`
name: %s
database: {url: %q}
http: {listen: ""}
destinations:
  - name: events
    source: %s
    shard_groups: %d
    rate: %d
    lease: 2s
    delivery: {batch: %d}
    broker: %s
`, name, b.url, b.source, max(b.groups, 1), rate, batch, broker)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	log, err := os.Create(filepath.Join(b.folder, file+".log"))
	if err != nil {
		b.Fatal(err)
	}
	p := &relayProcess{b: b, cmd: exec.Command(b.program, "relay", "--config", config), log: log}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		_ = log.Close()
	})
	return p
}

func (p *relayProcess) kill() {
	p.b.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.b.Fatal(err)
	}
	_ = p.cmd.Wait() // it was killed
}

func (p *relayProcess) stop() {
	p.b.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.b.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		text, _ := os.ReadFile(p.log.Name())
		p.b.Fatalf("the relay ended with %v: %s", err, text)
	}
}

// line is a delivered message.
type line struct {
	ID      string            `json:"id"`
	Topic   string            `json:"topic"`
	Key     string            `json:"key"`
	Headers map[string]string `json:"headers"`
	Payload payload           `json:"payload"`
}

type payload struct {
	N int `json:"n"`
}

// UnmarshalJSON reads a payload that is JSON, or the text of it where the table doesn't say so.
func (p *payload) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) == nil {
		b = []byte(text)
	}
	type plain payload
	return json.Unmarshal(b, (*plain)(p))
}

// read returns what was delivered to a file; of a process that was killed, without a line that is cut.
func (b *bed) read(file string) (all []line) {
	b.Helper()
	text, err := os.ReadFile(filepath.Join(b.folder, file+".jsonl"))
	if err != nil && !os.IsNotExist(err) {
		b.Fatal(err)
	}
	if end := bytes.LastIndexByte(text, '\n'); end >= 0 {
		text = text[:end]
	}
	scanner := bufio.NewScanner(bytes.NewReader(text))
	for scanner.Scan() {
		var l line
		if err := json.Unmarshal(scanner.Bytes(), &l); err != nil {
			b.Fatalf("%s: %v", scanner.Text(), err)
		}
		all = append(all, l)
	}
	return all
}

// check compares what was delivered with what was committed.
func (b *bed) check(all []line, from, repeats int) {
	b.Helper()
	seen := make(map[int]int)
	ids := make(map[int]string)
	for _, l := range all {
		seen[l.Payload.N]++
		if l.Topic != b.topic || l.Key == "" {
			b.Errorf("message %d has topic %q and key %q, want topic %q", l.Payload.N, l.Topic, l.Key, b.topic)
		}
		if b.header != "" && l.Headers[b.header] == "" {
			b.Errorf("message %d has no header %q: %v", l.Payload.N, b.header, l.Headers)
		}
		if id := ids[l.Payload.N]; id != "" && id != l.ID {
			b.Errorf("message %d came as %s and as %s", l.Payload.N, id, l.ID)
		}
		ids[l.Payload.N] = l.ID
	}
	for n := from; n < from+rows; n++ {
		if seen[n] == 0 {
			b.Errorf("message %d was not delivered", n)
		}
	}
	if twice := len(all) - len(seen); twice > repeats {
		b.Errorf("%d messages came again, at most %d may", twice, repeats)
	}
}
