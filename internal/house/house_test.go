// Package house holds the tests that keep the layout as docs/design.md draws it.
package house

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

const module = "github.com/pgoutbox/outbox"

// directions says what the packages below a folder may import of ours; the longest matching folder
// decides, and a folder may always import itself and what is below it. What is missing here may import
// nothing of ours, so a new room has to be drawn first.
var directions = map[string][]string{
	"":                  {"schema"},
	"schema":            {},
	"mapping":           {"schema"},
	"internal/printed":  {""},
	"internal/cursors":  {"", "schema"},
	"internal/brokers":  {"", "schema"},
	"internal/dial":     {""},
	"internal/headers":  {""},
	"internal/template": {""},
	"internal/settings": {}, // every room completes and checks its configurations with it
	"internal/sse":      {},
	"internal/sqlstate": {}, // every room may read the server's codes
	"internal/shell":    {}, // every room may print a command
	"internal/value":    {}, // every room may read a value from text
	"relay":             {"", "schema", "internal/dial", "internal/printed"},
	// what every source of the outbox's own table needs
	"relay/internal/messages": {"", "schema", "relay", "internal/headers"},
	"relay/internal/lease":    {"", "schema", "relay", "relay/internal/line", "internal/brokers", "internal/cursors", "internal/dial"},
	"relay/internal/holds":    {"", "schema", "relay", "relay/internal/messages"},
	"relay/internal/line":     {"internal/dial"},
	"relay/registration": {"", "schema", "relay", "relay/internal/lease", "relay/internal/line", "internal/cursors",
		"internal/dial"},
	"relay/retention":  {"schema", "relay/internal/lease", "internal/cursors", "internal/dial"},
	"relay/unselected": {"", "schema", "relay", "internal/dial"},
	"relay/polling": {"", "schema", "relay", "relay/registration",
		"relay/internal/messages", "relay/internal/lease", "relay/internal/line", "relay/internal/holds",
		"internal/cursors", "internal/dial", "internal/headers"},
	"relay/internal/wal": {"", "schema", "mapping", "relay", "internal/dial"},
	"relay/mapped":       {"", "schema", "mapping", "relay", "relay/internal/wal", "internal/brokers", "internal/dial", "internal/headers"},
	"relay/replication": {"", "schema", "mapping", "relay", "relay/polling", "relay/internal/wal",
		"relay/internal/messages", "relay/internal/holds", "internal/cursors", "internal/dial"},
	"route":              {"", "internal/template"},
	"format":             {"", "route"},
	"relay/around":       {"", "relay", "route"},
	"relay/relaytest":    {"", "schema", "relay", "internal/await", "internal/check", "internal/seed"},
	"admin":              {"", "schema", "route", "internal/headers", "internal/printed"},
	"admin/find":         {"", "schema", "admin"},
	"admin/verify":       {"", "admin"},
	"admin/jobs":         {"", "schema", "mapping", "admin", "admin/find", "internal/headers"},
	"admin/health":       {"", "schema", "mapping", "admin", "admin/jobs", "internal/brokers", "internal/cursors", "internal/printed"},
	"admin/destinations": {"schema", "admin", "admin/jobs", "admin/health", "internal/cursors"},
	"admin/sheet":        {"admin/find", "admin/health"},
	"admin/verbs": {"", "schema", "admin", "admin/find", "admin/jobs", "admin/health", "admin/destinations", "admin/sheet",
		"internal/printed"},
	"admin/rest": {"schema", "admin", "admin/find", "admin/jobs", "admin/verbs", "route", "internal/sse"},
	// what the tests of those rooms share
	"admin/internal/admintest": {"", "schema", "mapping", "route", "internal", "internal/testdb"},
	"console": {"", "admin", "admin/find", "admin/jobs", "admin/health", "admin/sheet", "admin/verbs", "admin/rest", "relay",
		"internal/printed", "internal/sse"},
	"inbox":           {"", "schema", "relay", "internal/printed"},
	"inbox/inboxtest": {"", "inbox"},
	"outboxtest":      {"", "schema", "internal/headers"},
	"internal":        {"", "schema"},
	// drives strategies with an engine and the broker in memory
	"internal/testdb":                 {"", "schema", "internal", "relay", "relay/relaytest"},
	"broker/consume":                  {""},
	"broker/internal/lanes":           {"", "broker/consume", "internal/printed"},
	"broker/internal/lanes/lanestest": {"", "schema", "inbox", "internal", "broker/consume"},
	// relay for exactly-once, which sees what is settled
	"broker/kafka": {"", "relay", "format", "broker/consume",
		"broker/internal/lanes", "internal/template", "broker/internal/secure", "broker/internal/search"},
	"broker/internal/amazon": {"", "format", "internal/printed", "internal/template", "broker/internal/inorder",
		"broker/internal/search", "broker/internal/brokertest", "broker/internal/sdkread"},
	"broker/sqs":    {"", "format", "broker/internal/amazon", "broker/consume", "broker/internal/lanes"},
	"broker/sns":    {"", "format", "broker/internal/amazon"},
	"broker/pubsub": {"", "format", "internal/printed", "internal/template", "broker/internal/search"},
	"broker/nats": {"", "format", "broker/consume",
		"broker/internal/lanes", "internal/headers", "internal/printed", "internal/template",
		"broker/internal/shared", "broker/internal/socket", "broker/internal/secure", "broker/internal/inorder"},
	"broker/internal/inorder":    {""},
	"broker/internal/brokertest": {"", "internal", "relay", "relay/relaytest"},
	"broker/internal/sdkread":    {"", "format", "broker/internal/brokertest"},
	"broker/internal/search":     {""},
	"broker/internal/secure":     {},
	"broker/internal/shared":     {},
	"broker/internal/socket":     {},
	"broker/redis":               {"", "format", "broker/internal/secure", "broker/internal/search", "internal/template"},
	"broker/redis/once":          {"", "inbox", "internal/printed"},
	"broker/rabbitmq": {"", "format", "broker/consume",
		"broker/internal/lanes", "broker/internal/secure", "internal/printed", "internal/template",
		"broker/internal/shared", "broker/internal/socket", "broker/internal/inorder", "broker/internal/search"},
	"broker/registry": {"", "format", "route"},
	"broker/jsonl":    {"", "broker/internal/inorder"},
	"webhook":         {"", "internal/headers", "internal/printed"},
	"broker/http": {"", "format", "webhook", "internal/printed", "internal/template", "broker/internal/secure", "broker/internal/inorder",
		"broker/internal/search"},
	"broker/grpc": {"", "format", "broker/internal/secure", "broker/internal/inorder", "broker/internal/search",
		"internal/printed"},
	"broker/internal/versus": {"", "internal", "broker/internal/brokertest"},
	"cmd": {"", "schema", "mapping", "relay",
		"relay/polling", "relay/registration", "relay/retention", "relay/unselected", "relay/mapped", "relay/replication",
		"admin", "admin/find", "admin/verify", "admin/jobs", "admin/health",
		"admin/destinations", "admin/sheet", "admin/verbs", "admin/rest", "console", "inbox",
		"inbox/inboxtest", "broker", "internal", "internal/brokers", "internal/dial", "internal/printed", "outboxtest", "route", "format",
		"relay/around", "webhook", "oteloutbox"},
	"oteloutbox": {"", "relay", "inbox", "internal/printed"},
	"proof": {"", "schema", "mapping", "relay", "relay/polling",
		"relay/mapped", "relay/replication", "inbox", "broker", "internal", "demo/pgfetch"},
	"demo": {"", "schema", "relay", "relay/polling", "relay/registration", "relay/retention",
		"admin/rest", "admin/verbs", "console", "broker/nats", "internal", "internal/printed"},
}

func TestPackagesImportOnlyInTheDirectionsOfTheDesign(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	seen := 0
	eachGoFile(t, root, func(folder, path string, imports []string) {
		if strings.HasSuffix(path, "_test.go") {
			return // a test may use the servers and the suites
		}
		seen++
		room, allowed := roomOf(folder)
		for _, imp := range imports {
			if imp != module && !strings.HasPrefix(imp, module+"/") {
				continue
			}
			target := strings.TrimPrefix(strings.TrimPrefix(imp, module), "/")
			everybodys := []string{"internal/settings", "internal/shell", "internal/sqlstate", "internal/value"}
			if target == room || slices.Contains(everybodys, target) || room != "" && strings.HasPrefix(target, room+"/") {
				continue
			}
			if !slices.ContainsFunc(allowed, func(a string) bool {
				return target == a || a != "" && strings.HasPrefix(target, a+"/") && within(a, target)
			}) {
				t.Errorf("%s imports %q, but %q may only import %q", path, imp, room, allowed)
			}
		}
	})
	if seen < 20 {
		t.Fatalf("only %d files were looked at: the test does not see the code", seen)
	}
}

// clients are the brokers' clients, and the rooms that may import them.
var clients = map[string][]string{
	"github.com/aws/":      {"broker/internal/amazon", "broker/sqs", "broker/sns"},
	"cloud.google.com/":    {"broker/pubsub"},
	"google.golang.org/":   {"broker/grpc", "broker/pubsub"},
	"github.com/nats-io/":  {"broker/nats"},
	"github.com/rabbitmq/": {"broker/rabbitmq"},
	"github.com/redis/":    {"broker/redis"},
	"github.com/twmb/":     {"broker/kafka", "broker/registry"},
}

// Go downloads the modules whose packages are imported, so a service that imports one adapter gets one client.
func TestAnAdapterImportsTheClientOfItsBrokerAlone(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	eachGoFile(t, filepath.Join("..", ".."), func(folder, path string, imports []string) {
		if !strings.HasPrefix(folder, "broker/") || strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, imp := range imports {
			for client, rooms := range clients {
				if !strings.HasPrefix(imp, client) {
					continue
				}
				seen[client] = true
				if !slices.ContainsFunc(rooms, func(room string) bool { return folder == room || strings.HasPrefix(folder, room+"/") }) {
					t.Errorf("%s imports %s, which is for %q", path, imp, rooms)
				}
			}
		}
	})
	if len(seen) != len(clients) {
		t.Errorf("of the clients only %v are imported", seen)
	}
}

// within reports whether permission for a folder covers target: rooms with a line of their own in
// directions need to be named.
func within(folder, target string) bool {
	if folder == "broker" {
		return true
	}
	_, own := directions[target]
	return !own
}

func roomOf(folder string) (string, []string) {
	for room := folder; ; room = parent(room) {
		if allowed, ok := directions[room]; ok {
			return room, allowed
		}
	}
}

func parent(folder string) string {
	if i := strings.LastIndexByte(folder, '/'); i >= 0 {
		return folder[:i]
	}
	return ""
}

func TestTheLibraryNeedsPgxAlone(t *testing.T) {
	t.Parallel()
	direct := requirements(t, filepath.Join("..", "..", "go.mod"))
	if !slices.Equal(direct, []string{"github.com/jackc/pgx/v5"}) {
		t.Errorf("go.mod requires %v directly, want pgx alone", direct)
	}
	eachGoFile(t, filepath.Join("..", ".."), func(folder, path string, imports []string) {
		if top, _, _ := strings.Cut(folder, "/"); slices.Contains([]string{"broker", "cmd", "demo", "oteloutbox", "proof"}, top) {
			return
		}
		for _, imp := range imports {
			host, _, _ := strings.Cut(imp, "/")
			if strings.Contains(host, ".") && !strings.HasPrefix(imp, module) && !strings.HasPrefix(imp, "github.com/jackc/pgx/v5") {
				t.Errorf("%s imports %q: the library needs pgx alone", path, imp)
			}
		}
	})
}

// The core's files are those that have methods of it, and those that declare what these use, but for panic.go: it
// catches panics of the destination's filter.
func TestTheEnginesCoreHasNoClockNoGoroutinesAndNoInput(t *testing.T) {
	t.Parallel()
	core, files := coresFiles(t, filepath.Join("..", "..", "relay"))
	for _, file := range core {
		decidesAlone(t, file, files[file], "hash/maphash", module, module+"/schema")
	}
	t.Logf("the core's files: %q", core)
	if len(core) < 10 {
		t.Errorf("only %q are the core's: is it still relay.core?", core)
	}
}

// Placement is simulated as the engine is. Each member of a fleet computes it, so it may not depend on the process.
func TestPlacementHasNoClockNoGoroutinesAndNoInput(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join("..", "..", "cmd", "internal", "fleet", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		seen++
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		decidesAlone(t, path, parsed)
	}
	if seen == 0 {
		t.Error("there is no file: has placement another folder?")
	}
}

// decidesAlone reports what a file of a core may not have. It may import packages without input and output, and more.
func decidesAlone(t *testing.T, name string, file *ast.File, more ...string) {
	t.Helper()
	pure := append(more, "cmp", "errors", "fmt", "maps", "math", "slices", "strings", "time")
	for _, imp := range file.Imports {
		if path, _ := strconv.Unquote(imp.Path.Value); !slices.Contains(pure, path) {
			t.Errorf("%s imports %q", name, path)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt, *ast.SelectStmt, *ast.ChanType:
			t.Errorf("%s starts goroutines or uses channels", name)
		case *ast.SelectorExpr:
			if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "time" &&
				slices.Contains([]string{"Now", "Since", "Until", "After", "Sleep", "NewTimer"}, n.Sel.Name) {
				t.Errorf("%s reads the clock: time.%s", name, n.Sel.Name)
			}
		}
		return true
	})
}

// coresFiles names the core's files, and returns all of the package.
func coresFiles(t *testing.T, folder string) (core []string, files map[string]*ast.File) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	files, home := map[string]*ast.File{}, map[string]string{} // home has the file of each declaration
	for _, path := range paths {
		file := filepath.Base(path)
		if strings.HasSuffix(file, "_test.go") || file == "panic.go" {
			continue
		}
		if files[file], err = parser.ParseFile(token.NewFileSet(), path, nil, 0); err != nil {
			t.Fatal(err)
		}
		for _, d := range files[file].Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					home[d.Name.Name] = file
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok {
						home[spec.Name.Name] = file
					}
				}
			}
		}
		if slices.ContainsFunc(files[file].Decls, isCoresMethod) {
			core = append(core, file)
		}
	}
	for i := 0; i < len(core); i++ {
		var use func(n ast.Node) bool
		use = func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				ast.Inspect(n.X, use)
				return false
			case *ast.Ident:
				if file := home[n.Name]; file != "" && !slices.Contains(core, file) {
					core = append(core, file)
				}
			}
			return true
		}
		ast.Inspect(files[core[i]], use)
	}
	return core, files
}

func isCoresMethod(d ast.Decl) bool {
	f, ok := d.(*ast.FuncDecl)
	if !ok || f.Recv == nil {
		return false
	}
	p, ok := f.Recv.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	name, ok := p.X.(*ast.Ident)
	return ok && name.Name == "core"
}

func TestNothingRegistersItselfBehindTheReadersBack(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	eachGoFile(t, root, func(_, path string, _ []string) {
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" && !ast.IsGenerated(parsed) {
				t.Errorf("%s has an init function", path)
			}
		}
	})
}

// Comments and prose fit in 120 columns, code in 140, and no merge was left open.
func TestLinesFitTheWidth(t *testing.T) {
	t.Parallel()
	const prose, code = 120, 140
	root := filepath.Join("..", "..")
	long := func(line string, most int) bool {
		return utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    ")) > most && !strings.Contains(line, "://")
	}
	eachFile(t, root, func(_, path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		skip, fenced := rawLines(t, path, text), false
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "<<<<<<< ") || strings.HasPrefix(line, ">>>>>>> ") {
				t.Errorf("%s:%d is a conflict of a merge", path, i+1)
			}
			most := prose
			if strings.HasSuffix(path, ".md") {
				if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
					fenced = !fenced
				}
				if fenced || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ") {
					continue // code, and rows of tables
				}
			} else if !strings.HasPrefix(strings.TrimSpace(line), "//") {
				most = code
			}
			if !skip[i+1] && long(line, most) {
				t.Errorf("%s:%d is longer than %d columns", path, i+1, most)
			}
		}
	})
}

// rawLines returns the lines of a Go file that raw strings touch, mostly SQL, and all lines of a generated file.
func rawLines(t *testing.T, path string, text []byte) map[int]bool {
	t.Helper()
	raw := make(map[int]bool)
	if !strings.HasSuffix(path, ".go") {
		return raw
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	mark := func(from, to token.Pos) {
		for line := files.Position(from).Line; line <= files.Position(to).Line; line++ {
			raw[line] = true
		}
	}
	if ast.IsGenerated(parsed) {
		mark(parsed.FileStart, parsed.FileEnd)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(lit.Value, "`") {
			mark(lit.Pos(), lit.End())
		}
		return true
	})
	return raw
}

func eachGoFile(t *testing.T, root string, visit func(folder, path string, imports []string)) {
	t.Helper()
	eachFile(t, root, func(folder, path string) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		var imports []string
		for _, imp := range parsed.Imports {
			name, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			imports = append(imports, name)
		}
		visit(folder, path, imports)
	})
}

// eachFile visits the Go files and the pages.
func eachFile(t *testing.T, root string, visit func(folder, path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name == "testdata" || strings.HasPrefix(name, ".") && path != root {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".md") {
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		if folder = filepath.ToSlash(folder); folder == "." {
			folder = ""
		}
		visit(folder, path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// requirements returns the modules that a go.mod requires directly.
func requirements(t *testing.T, path string) []string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var found []string
	block := false
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		switch {
		case strings.HasPrefix(line, "require ("):
			block = true
			continue
		case line == ")":
			block = false
			continue
		case strings.HasPrefix(line, "require "):
			line = strings.TrimPrefix(line, "require ")
		case !block:
			continue
		}
		if fields := strings.Fields(line); len(fields) >= 2 && !strings.Contains(line, "// indirect") {
			found = append(found, fields[0])
		}
	}
	return found
}
