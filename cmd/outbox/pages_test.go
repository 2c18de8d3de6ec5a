package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/session"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/pages"
	"github.com/pgoutbox/outbox/internal/servers"
)

const repository = "../.."

func documentation(t *testing.T) []pages.Page {
	t.Helper()
	all, err := pages.Read(repository)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// eachBlock visits the blocks of a language; most is how few there can't be.
func eachBlock(t *testing.T, lang string, few int, visit func(p pages.Page, b pages.Block)) {
	t.Helper()
	found := 0
	for _, p := range documentation(t) {
		for _, b := range p.Blocks {
			if b.Lang == lang {
				found++
			}
			if b.Lang == lang && b.Options["unchecked"] == "" {
				visit(p, b)
			}
		}
	}
	if found < few {
		t.Errorf("only %d blocks of %s were found", found, lang)
	}
}

func TestEveryBlockOfThePagesIsOfALanguageThatATestReads(t *testing.T) {
	t.Parallel()
	for _, p := range documentation(t) {
		for _, b := range p.Blocks {
			switch b.Lang {
			case "", "text", "sh", "yaml", "sql", "go", "json", "js", "python", "java", "properties":
			default:
				t.Errorf("%s: no test reads %s", b.Position, b.Lang)
			}
		}
	}
}

var (
	quoted  = regexp.MustCompile(`"[^"]*"|'[^']*'|\[[^\]]*\]`)
	chained = regexp.MustCompile(`(?s)[|;&<>#…].*$`)
)

// understood says what is wrong with a command of the program, of make, or of go run.
func understood(t *testing.T, args []string) error {
	t.Helper()
	switch {
	case args[0] == "make":
		makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range args[1:] {
			if !strings.Contains(target, "=") && !strings.Contains(string(makefile), "\n"+target+":") {
				return fmt.Errorf("there is no target %s", target)
			}
		}
		return nil
	case args[0] == "go":
		if args[1] != "run" || !strings.HasPrefix(args[2], "./") {
			return nil
		}
		_, err := os.Stat(filepath.Join(repository, args[2]))
		return err
	}
	root := (&app{Session: &session.Session{}}).root()
	root.InitDefaultCompletionCmd(args[1:]...)
	cmd, rest, err := root.Find(args[1:])
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil && cmd.HasSubCommands() && len(cmd.Flags().Args()) > 0 {
		err = fmt.Errorf("%s has no %s", cmd.CommandPath(), cmd.Flags().Arg(0))
	}
	return err
}

// TestEveryCommandOnThePagesIsOne looks at each command, in blocks and in sentences: there is such a command, with
// such flags.
func TestEveryCommandOnThePagesIsOne(t *testing.T) {
	t.Parallel()
	found := 0
	check := func(place, line string) {
		line = quoted.ReplaceAllString(strings.TrimPrefix(line, "$ "), "x")
		args := strings.Fields(chained.ReplaceAllString(line, ""))
		if len(args) < 2 || !slices.Contains([]string{"outbox", "make", "go"}, args[0]) {
			return
		}
		found++
		if err := understood(t, args); err != nil {
			t.Errorf("%s: %s: %v", place, line, err)
		}
	}
	for _, p := range documentation(t) {
		for _, s := range p.Spans {
			check(s.Position, s.Text)
		}
		for _, b := range p.Blocks {
			for line := range strings.Lines(strings.ReplaceAll(b.Text, "\\\n", " ")) {
				if b.Lang == "" || b.Lang == "sh" || b.Lang == "text" && strings.HasPrefix(line, "$ ") {
					check(b.Position, line)
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d commands were found", found)
	}
}

// completed makes a configuration of a part of one: of some destinations, or of keys of one.
func completed(t *testing.T, text string) string {
	t.Helper()
	if strings.HasPrefix(strings.TrimSpace(text), "- name:") {
		return "destinations:\n" + text
	}
	var keys map[string]any
	if err := yaml.Unmarshal([]byte(text), &keys); err != nil {
		t.Error(err)
	}
	has := func(of reflect.Type) bool {
		for i := range of.NumField() {
			if _, found := keys[of.Field(i).Tag.Get("json")]; found {
				return true
			}
		}
		return false
	}
	const name, broker = "destinations:\n  - name: page\n", "    broker: {kafka: {brokers: [localhost:9092]}}\n"
	switch _, destinations := keys["destinations"]; {
	case !has(reflect.TypeFor[config.Config]()) && has(reflect.TypeFor[config.Destination]()):
		text = name + regexp.MustCompile("(?m)^").ReplaceAllString(text, "    ")
		if keys["broker"] == nil {
			text += "\n" + broker
		}
	case !destinations && keys["databases"] == nil:
		text += name + broker
	}
	return text
}

func TestEveryConfigurationOnThePagesIsValid(t *testing.T) {
	t.Parallel()
	eachBlock(t, "yaml", 10, func(_ pages.Page, b pages.Block) {
		t.Run(b.Position, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "outbox.yaml")
			if err := os.WriteFile(file, []byte(completed(t, b.Text)), 0o600); err != nil {
				t.Fatal(err)
			}
			environ := []string{"DATABASE_URL=postgres://localhost/x"}
			if !strings.Contains(b.Text, "databases:") && !strings.Contains(b.Text, "discover:") {
				environ = append(environ, "OUTBOX_DATABASE_URL=postgres://localhost/x")
			}
			_, err := load.Config(load.Input{File: file, Environ: environ})
			var faults findings.Faults
			if err != nil && !errors.As(err, &faults) {
				t.Fatal(err)
			}
			for _, f := range faults {
				if !strings.Contains(f.Message, "no such file") { // the secrets' files are not there
					t.Error(f)
				}
			}
		})
	})
}

// TestEveryStatementOnThePagesRuns runs the statements of a page one after the other, in a database with the outbox
// and with the tables that the pages speak of.
func TestEveryStatementOnThePagesRuns(t *testing.T) {
	t.Parallel()
	databases := make(map[string]*database)
	eachBlock(t, "sql", 5, func(p pages.Page, b pages.Block) {
		if databases[p.Path] == nil {
			databases[p.Path] = setup(t)
			databases[p.Path].exec("CREATE TABLE orders (id text PRIMARY KEY, paid boolean); INSERT INTO orders VALUES ('4711', false)")
		}
		if _, err := databases[p.Path].Exec(t.Context(), b.Text); err != nil {
			t.Errorf("%s: %v", b.Position, err)
		}
	})
}

// What the pages' Go takes for granted. The packages are those that are meant where a name has several.
const surroundings = `package page

import (
	"context"; "crypto/tls"; "encoding/json"; "fmt"; "log"; "log/slog"; "net/http"; "os"; "os/signal"; "testing"; "time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/broker/consume"
	"github.com/pgoutbox/outbox/broker/grpc"
	"github.com/pgoutbox/outbox/broker/grpc/outboxpb"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/broker/pubsub"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/broker/sns"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/console"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/inbox"
	"github.com/pgoutbox/outbox/oteloutbox"
	"github.com/pgoutbox/outbox/outboxtest"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/around"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/route"
	"github.com/pgoutbox/outbox/webhook"
	googlegrpc "google.golang.org/grpc"
)

var (
	ctx       context.Context
	pool      *pgxpool.Pool
	conn      *pgx.ConnConfig
	mux       *http.ServeMux
	server    *googlegrpc.Server
	logger    *slog.Logger
	password  string
	brokers   []string
	broker    relay.Broker
	source    relay.Source
	box       *inbox.Inbox
	keys      []webhook.Key
	whoAsks   func(*http.Request) (rest.Caller, error)
	handle    func(context.Context, *outbox.Message) error
	apply     func(context.Context, pgx.Tx, *outbox.Message) error
	ack       func()
	versionOf func([]byte) (int64, error)
	batch     []*outbox.Message
	msg       outbox.Message
	msgs      []*outbox.Message
)
`

// TestEveryGoBlockOnThePagesCompiles checks the types of whole programs, and of statements with what surrounds them.
// What Go minds in programs alone is allowed: variables and imports without use, and a second := of the same names.
func TestEveryGoBlockOnThePagesCompiles(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export", "./...", "../broker/...",
		"../oteloutbox/...", "../...")
	list.Dir = ".."
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	exports := make(map[string]string)
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
	}
	files := token.NewFileSet()
	imports := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	eachBlock(t, "go", 20, func(_ pages.Page, b pages.Block) {
		text := strings.ReplaceAll(b.Text, "{ … }", `{ panic("…") }`)
		if !regexp.MustCompile(`(?m)^package `).MatchString(text) {
			text = surroundings + "\nfunc _() {\n//line :1\n" + text + "\n}\n"
		}
		file, err := parser.ParseFile(files, b.Position, text, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%s: %v", b.Position, err)
			return
		}
		check := types.Config{Importer: imports, Error: func(err error) {
			if fault := (types.Error{}); !errors.As(err, &fault) || !fault.Soft {
				t.Errorf("%s: %v", b.Position, err)
			}
		}}
		_, _ = check.Check(b.Position, files, []*ast.File{file}, nil)
	})
}

func TestOtherLanguagesOnThePagesCanBeParsed(t *testing.T) {
	t.Parallel()
	eachBlock(t, "json", 1, func(_ pages.Page, b pages.Block) {
		if !json.Valid([]byte(b.Text)) {
			t.Errorf("%s is no JSON", b.Position)
		}
	})
	for lang, parse := range map[string][]string{
		"python": {"python3", "-c", "import ast, sys; ast.parse(sys.stdin.read())"},
		"js":     {"node", "--input-type=module", "--check", "-"},
		"sh":     {"bash", "-n"},
	} {
		if _, err := exec.LookPath(parse[0]); err != nil {
			t.Skip(err)
		}
		for _, p := range documentation(t) {
			for _, b := range p.Blocks {
				if b.Lang != lang {
					continue
				}
				cmd := exec.CommandContext(t.Context(), parse[0], parse[1:]...)
				cmd.Stdin = strings.NewReader(b.Text)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", b.Position, err, out)
				}
			}
		}
	}
}

// addresses are those that the pages use for servers, and the servers that tests put there.
var addresses = []struct {
	onPage string
	start  func(t *testing.T) string
}{
	{"postgres://postgres@localhost:5432/postgres", func(t *testing.T) string { return servers.TestDatabase(t) }},
	{"localhost:9092", func(t *testing.T) string { return servers.TestKafka(t).Addr() }},
	{"localhost:4222", func(t *testing.T) string { return servers.TestNATS(t).Addr() }},
	{"localhost:5672", func(t *testing.T) string { return servers.TestRabbitMQ(t).Addr() }},
	{"localhost:6379", func(t *testing.T) string { return servers.TestRedis(t).Addr() }},
	{"localhost:9324", func(t *testing.T) string { return servers.TestElasticMQ(t).Addr() }},
	{"localhost:8080", freeAddress},
	{"localhost:9187", freeAddress},
}

// TestEveryPagesShellBlocksRun types a page into a shell, in an empty folder. Nothing is replaced but the addresses of
// servers. What is expected to be printed stands on the page, in the block of text after the commands.
func TestEveryPagesShellBlocksRun(t *testing.T) {
	t.Parallel()
	for _, p := range documentation(t) {
		script, substitute := typed(p)
		if script == "" {
			continue
		}
		t.Run(p.Path, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			addressed := substitute(t)
			for _, b := range p.Blocks {
				if name := b.Options["title"]; name != "" {
					if err := os.WriteFile(filepath.Join(folder, name), []byte(addressed.Replace(b.Text)), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			typeIn(t, folder, addressed.Replace(script), p)
		})
	}
}

// typed is what a page has one type, and what puts the tests' servers into it.
func typed(p pages.Page) (script string, substitute func(*testing.T) *strings.Replacer) {
	var text strings.Builder
	for _, b := range p.Blocks {
		text.WriteString(b.Text)
		if b.Lang == "sh" && b.Options["unchecked"] == "" {
			script += b.Text + "\necho " + mark + b.Position + "\n"
		}
	}
	return script, func(t *testing.T) *strings.Replacer {
		var pairs []string
		for _, a := range addresses {
			if strings.Contains(text.String(), a.onPage) {
				pairs = append(pairs, a.onPage, a.start(t))
			}
		}
		return strings.NewReplacer(pairs...)
	}
}

// environment has the languages of the pages, and no account of anybody's.
func environment(t *testing.T) []string {
	t.Helper()
	workspace, err := filepath.Abs(filepath.Join(repository, "go.work"))
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"GOWORK=" + workspace, "GOFLAGS=" + os.Getenv("GOFLAGS")}
	out, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE", "GOPATH").Output()
	if err != nil {
		t.Fatal(err)
	}
	for i, value := range strings.Fields(string(out)) {
		env = append(env, []string{"GOCACHE=", "GOMODCACHE=", "GOPATH="}[i]+value)
	}
	readers := servers.TestReaders(t)
	return append(env, "PYTHONPATH="+filepath.Join(readers, "python"), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1",
		"NODE_PATH="+filepath.Join(readers, "node_modules"), "CLASSPATH="+filepath.Join(readers, "java", "*"))
}

const mark = "-------- end of "

// typeIn runs the script and compares what each block prints with the block of text that follows it on the page. The
// processes that the script leaves behind end with it.
func typeIn(t *testing.T, folder, script string, p pages.Page) {
	t.Helper()
	ctx, cancel := context.WithCancel(await.Context(t))
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c",
		"trap 'jobs -p | xargs -r kill; wait' EXIT\n"+script)
	cmd.Dir = folder
	cmd.Env = append(environment(t), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"), "HOME="+folder)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second // for what a script has left behind
	var all await.Buffer
	cmd.Stdout, cmd.Stderr = &all, &all
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, all.String())
	}
	printed := all.String()
	for i, b := range p.Blocks {
		if b.Lang != "sh" || b.Options["unchecked"] != "" {
			continue
		}
		out, rest, _ := strings.Cut(printed, mark+b.Position+"\n")
		printed = rest
		if i+1 == len(p.Blocks) || p.Blocks[i+1].Lang != "text" {
			continue
		}
		for line := range strings.Lines(p.Blocks[i+1].Text) {
			pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(line)), "…", ".*")
			if !regexp.MustCompile(pattern).MatchString(out) {
				t.Errorf("%s: %q was not printed, but\n%s", b.Position, line, out)
			}
		}
	}
}
