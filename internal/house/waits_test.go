package house

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// clocks are the packages whose tests need that so much real time passes, and run alone.
var clocks = []string{"proof/bench", "proof/clock"}

// limits are names of settings after which something is given up.
var limits = regexp.MustCompile(`(?i)(lease|timeout|wait|within|unanswered|visibility|deadline)$`)

// short is what no limit in a test may be below: a busy machine stops for seconds.
const short = 5 * time.Second

// Tests wait for what must come, and not for so and so long: CONTRIBUTING.md has the rules.
func TestNoTestNeedsAFastMachine(t *testing.T) {
	t.Parallel()
	seen := 0
	eachGoFile(t, filepath.Join("..", ".."), func(folder, path string, imports []string) {
		if !slices.Contains(imports, "testing") && !strings.HasSuffix(path, "_test.go") || slices.Contains(clocks, folder) {
			return
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		seen++
		for _, fault := range waitFaults(t, path, text) {
			t.Error(fault)
		}
	})
	if seen < 100 {
		t.Fatalf("only %d files were looked at: the test does not see the code", seen)
	}
}

func TestWaitsThatNeedAFastMachineAreSeen(t *testing.T) {
	t.Parallel()
	for body, wrong := range map[string]bool{
		`context.WithTimeout(ctx, time.Minute)`:                                        true,
		`context.WithTimeout(ctx, await.Expiry(50 * time.Millisecond))`:                false,
		`use(Config{Lease: 2 * time.Second})`:                                          true,
		`use(Config{Lease: await.Expiry(2 * time.Second)})`:                            false,
		`use(Config{Lease: 5 * time.Second, PollIdle: time.Millisecond})`:              false,
		`cfg.AckTimeout = time.Second`:                                                 true,
		"want(Config{Lease: 3 * time.Second}) // the default":                          false,
		`const lease = time.Second`:                                                    true,
		`conn.SetDeadline(time.Now().Add(time.Second))`:                                true,
		`end := time.Now().Add(30 * time.Second); use(end)`:                            true,
		`use(Hold{RetryAt: time.Now().Add(time.Hour)})`:                                false,
		`time.Sleep(time.Second)`:                                                      true,
		`for !ready() { time.Sleep(time.Millisecond) }`:                                false,
		`for ; !ready(); time.Sleep(time.Millisecond) { }`:                             false,
		`time.Sleep(time.Second) // the fault lasts`:                                   false,
		`select { case <-done: case <-time.After(time.Minute): t.Fatal("no end") }`:    true,
		`select { case <-done: case <-time.After(time.Millisecond): }`:                 false,
		`if time.Since(began) > time.Minute { t.Error("slow") }`:                       true,
		`if took := time.Since(began); took > time.Minute { t.Error("slow") }`:         true,
		`if time.Since(row.CreatedAt) > time.Hour { t.Error("not of now") }`:           false,
		`if took := time.Since(began); took < time.Minute { t.Error("too early") }`:    false,
		`synctest.Test(t, func(t *testing.T) { context.WithTimeout(ctx, time.Hour) })`: false,
	} {
		text := "package p\nfunc TestIt(t *testing.T) {\n" + body + "\n}\n"
		if faults := waitFaults(t, "it_test.go", []byte(text)); (len(faults) > 0) != wrong {
			t.Errorf("%s: %q", body, faults)
		}
	}
}

// waitFaults returns what in a file of tests goes wrong on a slow machine. Bubbles of synctest have their own time.
func waitFaults(t *testing.T, path string, text []byte) (faults []string) {
	t.Helper()
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := make(map[int]string)
	for _, c := range parsed.Comments {
		comments[files.Position(c.Pos()).Line] = c.Text()
	}
	tell := func(n ast.Node, what string) { faults = append(faults, files.Position(n.Pos()).String()+": "+what) }
	limit := func(name string, value ast.Expr) {
		if d, ok := duration(value); ok && d < short && limits.MatchString(name) &&
			!strings.Contains(comments[files.Position(value.Pos()).Line], "default") {
			tell(value, name+" is shorter than 5 s: a busy machine exceeds it; if that is what the test waits for, await.Expiry says so")
		}
	}
	loops := 0
	var visit func(n ast.Node) bool
	inLoop := func(parts ...ast.Node) {
		loops++
		for _, part := range parts {
			ast.Inspect(part, visit)
		}
		loops--
	}
	visit = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ForStmt:
			if n.Init != nil {
				ast.Inspect(n.Init, visit)
			}
			if n.Post != nil {
				inLoop(n.Post)
			}
			inLoop(n.Body)
			return false
		case *ast.RangeStmt:
			inLoop(n.Body)
			return false
		case *ast.CallExpr:
			switch name := nameOf(n.Fun); {
			case name == "synctest.Test":
				return false
			case name == "context.WithTimeout" && isDuration(n.Args[1]):
				tell(n, "a fixed limit: await.Context ends with the package's time, await.Expiry is one that is to be exceeded")
			case name == "time.Now().Add": // from an hour on it is a time that is far away
				if d, ok := duration(n.Args[0]); ok && d < time.Hour {
					tell(n, "a fixed limit: wait by await.Until, or await.Context")
				}
			case name == "time.Sleep" && loops == 0 && comments[files.Position(n.Pos()).Line] == "":
				tell(n, "wait for what must come by await.Until, or say in a comment what takes that time")
			}
		case *ast.KeyValueExpr:
			limit(nameOf(n.Key), n.Value)
		case *ast.AssignStmt:
			for i, value := range n.Rhs {
				if len(n.Lhs) == len(n.Rhs) {
					limit(nameOf(n.Lhs[i]), value)
				}
			}
		case *ast.ValueSpec:
			for i, value := range n.Values {
				limit(n.Names[i].Name, value)
			}
		case *ast.CommClause:
			if e, ok := n.Comm.(*ast.ExprStmt); ok && calls(e, "time.After") && fails(n.Body) {
				tell(n, "a fixed limit: <-await.Context(t).Done()")
			}
		case *ast.IfStmt:
			if calls(n, "time.Since") && tooLong(n.Cond) && fails(n.Body.List) {
				tell(n, "an assertion on how long something took")
			}
		}
		return true
	}
	for _, decl := range parsed.Decls {
		ast.Inspect(decl, visit)
	}
	return faults
}

// nameOf is the name of a field, a variable or a function, with its package.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return nameOf(e.X) + "." + e.Sel.Name
	case *ast.CallExpr:
		return nameOf(e.Fun) + "()"
	}
	return ""
}

// calls reports whether that function is called in n, not counting what an if statement does.
func calls(n ast.Node, name string) (found bool) {
	if i, ok := n.(*ast.IfStmt); ok {
		return i.Init != nil && calls(i.Init, name) || calls(i.Cond, name)
	}
	ast.Inspect(n, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		found = found || ok && nameOf(call.Fun) == name
		return !found
	})
	return found
}

// fails reports whether statements end a test, or mark it as failed.
func fails(body []ast.Stmt) (found bool) {
	for _, s := range body {
		ast.Inspect(s, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			found = found || ok && regexp.MustCompile(`\.(Fatal|Error)f?$`).MatchString(nameOf(call.Fun))
			return !found
		})
	}
	return found
}

// tooLong reports whether something is compared with the most that it may be.
func tooLong(cond ast.Expr) (found bool) {
	ast.Inspect(cond, func(n ast.Node) bool {
		b, ok := n.(*ast.BinaryExpr)
		if ok && (b.Op == token.GTR || b.Op == token.GEQ) {
			d, isTime := duration(b.Y)
			found = found || isTime && d < time.Hour // from an hour on it is an age that nobody waits for
		}
		return !found
	})
	return found
}

func isDuration(e ast.Expr) bool {
	_, ok := duration(e)
	return ok
}

// duration is the value of an expression of literals and the units of time, above 0.
func duration(e ast.Expr) (time.Duration, bool) {
	value, unit := amount(e)
	return time.Duration(value), unit && value > 0
}

// amount is the value of an expression of literals, and whether there is a unit of time in it; -1 without a value.
func amount(e ast.Expr) (value int64, unit bool) {
	units := map[string]time.Duration{"time.Nanosecond": time.Nanosecond, "time.Microsecond": time.Microsecond,
		"time.Millisecond": time.Millisecond, "time.Second": time.Second, "time.Minute": time.Minute, "time.Hour": time.Hour}
	switch e := e.(type) {
	case *ast.BasicLit:
		if n, exact := constant.Int64Val(constant.ToInt(constant.MakeFromLiteral(e.Value, e.Kind, 0))); exact && e.Kind != token.STRING {
			return n, false
		}
	case *ast.SelectorExpr:
		if u, ok := units[nameOf(e)]; ok {
			return int64(u), true
		}
	case *ast.ParenExpr:
		return amount(e.X)
	case *ast.BinaryExpr:
		x, ofX := amount(e.X)
		y, ofY := amount(e.Y)
		switch {
		case x < 0 || y < 0:
		case e.Op == token.MUL:
			return x * y, ofX || ofY
		case e.Op == token.QUO && y > 0:
			return x / y, ofX || ofY
		case e.Op == token.ADD:
			return x + y, ofX && ofY
		}
	}
	return -1, false
}
