package house

import (
	"bytes"
	"flag"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the lists in api")

// The folder api has a file for each package that programs of users may import: its exported declarations. So a change
// of one is seen in review, and between two releases.
func TestAChangeOfAPublicDeclarationIsOneOfItsList(t *testing.T) {
	t.Parallel()
	const folder = "../../api"
	want := make(map[string][]string) // the declarations by the name of the list
	eachGoFile(t, "../..", func(folder, path string, _ []string) {
		top, _, _ := strings.Cut(folder, "/")
		if slices.Contains([]string{"cmd", "demo", "proof"}, top) || strings.Contains("/"+folder+"/", "/internal/") ||
			strings.HasSuffix(path, "_test.go") {
			return
		}
		name := strings.Trim("outbox."+strings.ReplaceAll(folder, "/", "."), ".") + ".txt"
		want[name] = append(want[name], declarations(t, path)...)
	})
	got, err := filepath.Glob(folder + "/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range got {
		if name := filepath.Base(path); want[name] == nil && *update {
			err = os.Remove(path)
		} else if want[name] == nil {
			t.Errorf("api/%s is of no package: run make api, and say in CHANGELOG.md what users have to change", name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		slices.Sort(want[name])
		text := strings.Join(slices.Compact(want[name]), "\n") + "\n"
		if *update {
			err = os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644)
			if err != nil {
				t.Fatal(err)
			}
		} else if old, err := os.ReadFile(filepath.Join(folder, name)); err != nil || string(old) != text {
			t.Errorf("api/%s isn't what the package declares: run make api, read the difference, and say in CHANGELOG.md "+
				"what users have to change", name)
		}
	}
}

// declarations returns the exported ones of a file, without bodies, values of variables and comments.
func declarations(t *testing.T, path string) (all []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.FileExports(file)
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Body = nil; d.Recv != nil && !ast.IsExported(receiver(d)) {
				continue
			}
		case *ast.GenDecl:
			if d.Tok == token.IMPORT {
				continue
			}
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok && d.Tok == token.VAR {
					v.Values = nil
				}
			}
		}
		var text bytes.Buffer
		if err := format.Node(&text, files, d); err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.ReplaceAll(text.String(), "\n\n", "\n"))
	}
	return all
}

// receiver returns the name of the type that a method belongs to.
func receiver(f *ast.FuncDecl) string {
	e := f.Recv.List[0].Type
	for {
		switch t := e.(type) {
		case *ast.StarExpr:
			e = t.X
		case *ast.IndexExpr:
			e = t.X
		case *ast.IndexListExpr:
			e = t.X
		default:
			return nameOf(e)
		}
	}
}
