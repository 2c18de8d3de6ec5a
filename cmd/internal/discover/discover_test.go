package discover

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
)

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// finder is Sources of a configuration, with their log.
type finder struct {
	*Sources
	t   *testing.T
	dir string
	log bytes.Buffer
}

// find reads a configuration whose folder is also DIR in it.
func find(t *testing.T, dir, yaml string) *finder {
	t.Helper()
	f := &finder{t: t, dir: dir}
	f.Sources = New(f.load(yaml), func(ctx context.Context, url, _ string) (*pgx.Conn, error) { return pgx.Connect(ctx, url) },
		slog.New(slog.NewTextHandler(&f.log, nil)))
	return f
}

func (f *finder) load(yaml string) *load.Loaded {
	f.t.Helper()
	file := filepath.Join(f.t.TempDir(), "outbox.yaml")
	text := "destinations: [{name: all, broker: {stdout: {}}}]\n" + strings.ReplaceAll(yaml, "DIR", f.dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
	loaded, err := load.Config(load.Input{File: file, Unopened: true})
	if err != nil {
		f.t.Fatal(err)
	}
	return loaded
}

// has looks once, and compares the names of what there is.
func (f *finder) has(names ...string) {
	f.t.Helper()
	f.Look(f.t.Context())
	f.is(names...)
}

func (f *finder) is(names ...string) {
	f.t.Helper()
	got := []string{}
	for _, e := range f.Entries() {
		got = append(got, e.Name)
	}
	if !slices.Equal(got, names) {
		f.t.Errorf("found %q, want %q\n%s", got, names, f.log.String())
	}
}

// says looks for texts in the log since it was last asked.
func (f *finder) says(texts ...string) {
	f.t.Helper()
	for _, text := range texts {
		if !strings.Contains(f.log.String(), text) {
			f.t.Errorf("no %q in the log:\n%s", text, f.log.String())
		}
	}
	f.log.Reset()
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const ofFolder = "discover: [{name: mounted, folder: {path: DIR}, max_vanish: '2'}]\n"

// swap replaces the files of a folder as Kubernetes does: the new ones stand in a folder of their own, ..data leads to
// them at once, and the old folder goes.
func swap(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	before, _ := os.Readlink(filepath.Join(dir, "..data"))
	for name, text := range files {
		write(t, filepath.Join(dir, version), name, text)
	}
	if err := os.Symlink(version, filepath.Join(dir, "..data_tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	for name := range files {
		_ = os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)) // it may be there
	}
	if before != "" {
		if err := os.RemoveAll(filepath.Join(dir, before)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAFolderIsReplacedAsKubernetesReplacesASecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := map[string]string{"a": "postgres://u:hidden@db/a\n", "b.url": "postgres://db/b", "c.yaml": "database: {url: postgres://db/c}\n",
		"README.md": "nothing", "d": "postgres://db/d", "e": "postgres://db/e"}
	swap(t, dir, "..2026_1", files)
	f := find(t, dir, ofFolder)
	f.has("a", "b", "c", "d", "e")
	if url := f.Entries()[0].Database.URL.Text(); url != "postgres://u:hidden@db/a" {
		t.Errorf("the URL is %q", url)
	}
	if to := f.Entries()[2].Destinations; len(to) != 1 || to[0].Name != "all" {
		t.Errorf("the destinations are %+v", to)
	}
	delete(files, "d")
	files["a"], files["f"] = "postgres://u:hidden@other/a", "postgres://db/f"
	swap(t, dir, "..2026_2", files) // the link d remains, and leads nowhere
	f.has("a", "b", "c", "e", "f")
	if url := f.Entries()[0].Database.URL.Text(); url != "postgres://u:hidden@other/a" {
		t.Errorf("the URL is %q", url)
	}
	if strings.Contains(f.log.String(), "hidden") {
		t.Errorf("a password in the log:\n%s", f.log.String())
	}
	f.says("databases discovered", "databases have changed", "databases are gone")
}

// What a file has wrong is named, and neither the others nor what it had before are lost for it.
func TestABadEntryDisturbsNoOther(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "good", "postgres://db/good")
	write(t, dir, "changing.yaml", "database: {url: postgres://db/changing}\n")
	write(t, dir, "bad.yaml", "database: {url: postgres://db/bad}\ndestinatoins: []\n")
	write(t, dir, "worse.url", "mysql://u:hidden@db/worse")
	write(t, dir, "empty", "")
	write(t, dir, "named.yaml", "{name: Not A Name, database: {url: postgres://db/named}}")
	f := find(t, dir, ofFolder)
	f.has("changing", "good")
	f.says("bad.yaml:2:1", "destinatoins", "worse", "doesn't begin with postgres", "is empty", "is no name")

	write(t, dir, "changing.yaml", "database: {url")
	write(t, dir, "bad.yaml", "database: {url: postgres://db/bad}\n")
	f.has("bad", "changing", "good")
	f.says("changing.yaml", "kept=true")
	f.has("bad", "changing", "good")
	if text := f.log.String(); text != "" {
		t.Errorf("it is said again:\n%s", text)
	}
	st := f.Status()[0]
	for _, l := range st.LeftOut {
		if l.Kept != (l.Name == "changing") {
			t.Errorf("%+v", l)
		}
	}
	if len(st.LeftOut) != 4 || st.Error != "" || st.Failures != 0 {
		t.Errorf("%+v", st)
	}
}

// More than max_vanish at once, nothing at all, and no answer: all is kept.
func TestWhatVanishesAtOnceIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := map[string]string{}
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		files[name] = "postgres://db/" + name
	}
	swap(t, dir, "..1", files)
	f := find(t, dir, ofFolder)
	f.has("a", "b", "c", "d", "e", "f")
	less := func(version string, names ...string) {
		t.Helper()
		some := map[string]string{}
		for _, name := range names {
			some[name] = files[name]
		}
		if len(some) == 0 {
			write(t, filepath.Join(dir, version), ".keep", "")
		}
		swap(t, dir, version, some)
	}
	less("..2", "a", "b", "c")
	f.has("a", "b", "c", "d", "e", "f")
	f.says("more databases would vanish at once", "d, e, f", "set max_vanish of the source to 3")
	if got := f.Status()[0].Withheld; !slices.Equal(got, []string{"d", "e", "f"}) {
		t.Errorf("withheld are %q", got)
	}
	less("..3", "a", "b", "c", "d")
	f.has("a", "b", "c", "d")
	if got := f.Status()[0].Withheld; got != nil {
		t.Errorf("withheld are %q", got)
	}
	less("..4")
	f.has("a", "b", "c", "d")
	f.says("take the source out of discover")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	f.has("a", "b", "c", "d")
	f.says("databases can't be looked for")
	if st := f.Status()[0]; st.Failures != 1 || !strings.Contains(st.Error, "no such file") {
		t.Errorf("%+v", st)
	}
	// The setting that confirms.
	less("..5", "a")
	f.has("a", "b", "c", "d")
	f.Configure(f.load(strings.Replace(ofFolder, "'2'", "75%", 1)))
	f.is("a", "b", "c", "d")
	f.has("a")
	less("..6") // the last one is not more than may vanish, and yet the end of all
	f.has("a")
	// A source that isn't in the configuration any more ends at once.
	f.Configure(f.load("databases: [{name: x, database: {url: postgres://db/x}}]\n"))
	f.is()
}

func TestANameAndADatabaseAreOfTheOneThatHadThemBefore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	write(t, one, "x", "postgres://db/first")
	write(t, one, "listed", "postgres://db/listed")
	write(t, two, "y", "postgres://db/y")
	f := find(t, dir, "databases: [{name: listed, database: {url: postgres://elsewhere/l}}]\n"+
		"discover: [{name: two, folder: {path: DIR/two}}, {name: one, folder: {path: DIR/one}, except: [no*]}]\n")
	f.has("y", "x")
	f.says("the list databases has a database of that name")
	write(t, two, "x", "postgres://db/second")         // the name is that of an older one, though its source comes first
	write(t, two, "again", "postgres://DB:5432/first") // and so is the database
	write(t, one, "nothing", "postgres://db/nothing")
	f.has("y", "x")
	f.says("source one has a database of that name", "it is the same database as x")
	if err := os.Remove(filepath.Join(one, "x")); err != nil {
		t.Fatal(err)
	}
	f.has("again", "x", "y")
	if url := f.Entries()[1].Database.URL.Text(); url != "postgres://db/second" {
		t.Errorf("x is at %s", url)
	}
}

func TestTwoHundredFilesAreReadQuickly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := map[string]string{}
	var names []string
	for i := range 200 {
		name := fmt.Sprintf("tenant-%03d", i)
		names = append(names, name)
		files[name+".yaml"] = "database: {url: postgres://db/" + name + "}\ndestinations: [{name: all, topics: [" + name + "]}]\n"
	}
	swap(t, dir, "..1", files)
	f := find(t, dir, ofFolder)
	begun := time.Now()
	f.has(names...)
	first := time.Since(begun)
	begun = time.Now()
	f.has(names...)
	t.Logf("the first look took %v, the next one %v", first, time.Since(begun))
}

func TestValuesOfARowCanBeNothingElseInAnAddress(t *testing.T) {
	t.Parallel()
	row := map[string]string{"url": "postgres://u@h/d", "host": "db1:5433", "name": "a/b?c", "password": "p@ss/w:o?r d'%", "evil": "h/x?host=y"}
	for template, want := range map[string]string{
		"{url}": row["url"],
		"postgres://relay:{password}@{host}/{name}":             "postgres://relay:p%40ss%2Fw%3Ao%3Fr%20d%27%25@db1:5433/a%2Fb%3Fc",
		"postgres://{host}/app?password={password}":             "postgres://db1:5433/app?password=p%40ss%2Fw%3Ao%3Fr%20d%27%25",
		"{url}?sslmode=require":                                 "postgres://u@h/d?sslmode=require",
		"host=db dbname={name} password={password}":             `host=db dbname='a/b?c' password='p@ss/w:o?r d\'%'`,
		"host=db dbname='x-{name}' password='{password}' a='b'": `host=db dbname='x-a/b?c' password='p@ss/w:o?r d\'%' a='b'`,
		"postgres://{evil}/d":                                   "! evil is no host",
		"postgres://db/{none}":                                  "! none is empty",
	} {
		parts, err := mapping.ParseTemplate(template)
		if err != nil {
			t.Fatal(err)
		}
		got, err := address(parts, row)
		if err != nil {
			got = "! " + strings.TrimPrefix(err.Error(), "its column ")
		}
		if got != want {
			t.Errorf("%s became\n%s, want\n%s", template, got, want)
		}
	}
}

func TestAnAddressLeadsToAnotherDatabaseOfTheCluster(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"postgres://u:p@h:1,i:2/x?sslmode=disable", "postgres://u:p@h:1,i:2?dbname=x&sslmode=disable",
		"host=h,i port=1,2 user=u password=p dbname=x sslmode=disable", "postgres://u:p@h:1,i:2"} {
		for _, name := range []string{"app", "with space", `it's "a/b" \?`} {
			cfg, err := pgx.ParseConfig(withDatabase(address, name))
			if err != nil || cfg.Database != name || cfg.Host != "h" || cfg.Port != 1 || cfg.User != "u" || cfg.Password != "p" {
				t.Errorf("%s with %s: %v, %v", address, name, cfg, err)
			}
		}
	}
}

func TestRowsOfAQueryAreDatabases(t *testing.T) {
	t.Parallel()
	db := testdb.New(t)
	db.Exec(`CREATE TABLE tenants (id int, title text, host text, password text, active boolean)`)
	db.Exec(`INSERT INTO tenants VALUES (1, 'Acme Inc', 'db1', 'p@1', true), (2, 'beta', 'db2:5433', 'secret2', true), (3, 'none', NULL, 'x', true),
		(4, 'gone', 'db4', 'x', false)`)
	yaml := `discover: [{name: tenants, prefix: t-, max_vanish: '1', query: {url: "` + db.URL + `",
		sql: "SELECT title AS name, id, host, password FROM tenants WHERE active", database_url: "postgres://relay:{password}@{host}/tenant_{id}"}}]` + "\n"
	f := find(t, "", yaml)
	f.has("t-acme-inc", "t-beta")
	f.says("its column host is empty")
	if got := f.Entries()[0].Database.URL.Text(); got != "postgres://relay:p%401@db1/tenant_1" {
		t.Errorf("the URL is %s", got)
	}
	db.Exec(`UPDATE tenants SET active = false`)
	f.has("t-acme-inc", "t-beta")
	f.says("would vanish")
	db.Exec(`ALTER TABLE tenants RENAME TO others`)
	f.has("t-acme-inc", "t-beta")
	f.says("databases can't be looked for", "tenants")
	db.Exec(`ALTER TABLE others RENAME TO tenants`)
	db.Exec(`UPDATE tenants SET active = id = 2, password = 'other'`)
	f.has("t-beta")
	f.says("looked for again", "databases are gone")
	if got := f.Entries()[0].Database.URL.Text(); got != "postgres://relay:other@db2:5433/tenant_2" {
		t.Errorf("the URL is %s", got)
	}
	f = find(t, "", strings.Replace(yaml, "title AS name, ", "", 1))
	f.has()
	f.says("no column name")
}

func TestTheDatabasesOfAClusterThatHaveTheSchemaAreFound(t *testing.T) {
	t.Parallel()
	db := testdb.Installed(t)
	base := db.Config().Database
	create := func(name string) testdb.DB {
		t.Helper()
		db.Exec("CREATE DATABASE " + base + name + " TEMPLATE template0")
		t.Cleanup(func() {
			conn, err := pgx.Connect(context.Background(), db.URL)
			if err == nil {
				_, err = conn.Exec(context.Background(), "DROP DATABASE IF EXISTS "+base+name+" WITH (FORCE)")
				_ = conn.Close(context.Background())
			}
			if err != nil {
				t.Error(err)
			}
		})
		return testdb.DB{T: t, URL: withDatabase(db.URL, base+name)}
	}
	create("_a").Install()
	create("_skipped").Install()
	late := create("_late")
	f := find(t, "", `discover: [{name: c, match: ["`+base+`*"], except: ["*_skip*"], max_vanish: '1', cluster: {recheck: 1h, url: "`+db.URL+`"}}]`+"\n")
	f.has(base, base+"_a")
	late.Install()
	create("_new").Install()
	f.has(base, base+"_a", base+"_new") // the late one was asked before, and is asked again after an hour
	checks := f.list[0].looker.(*cluster).checks
	for name := range checks {
		checks[name] = checked{has: checks[name].has, at: time.Now().Add(-time.Hour)}
	}
	f.has(base, base+"_a", base+"_late", base+"_new")
	db.Exec("ALTER DATABASE " + base + "_new RENAME TO " + base + "_renamed")
	defer db.Exec("DROP DATABASE " + base + "_renamed WITH (FORCE)")
	f.has(base, base+"_a", base+"_late", base+"_renamed")
	db.Exec("DROP DATABASE " + base + "_a WITH (FORCE)")
	f.has(base, base+"_late", base+"_renamed")
}

// While Kubernetes replaces the files again and again, a look has those of one version, or fails.
func TestAFolderIsOfOneVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	version := func(n int) map[string]string {
		files := map[string]string{}
		for i := range 50 {
			files[fmt.Sprintf("t%d", i)] = fmt.Sprintf("postgres://db/%d", n)
		}
		return files
	}
	swap(t, dir, "..0", version(0))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; n <= 100 && !t.Failed(); n++ {
			swap(t, dir, fmt.Sprintf("..%d", n), version(n))
		}
	}()
	defer func() { <-done }()
	f := &folder{path: dir}
	for looks := 0; ; {
		items, err := f.look(t.Context(), nil)
		if err == nil {
			looks++
			if len(items) != 50 {
				t.Fatalf("%d of 50 files", len(items))
			}
			for _, it := range items {
				if it.found.URL != items[0].found.URL {
					t.Fatalf("%s and %s in one look", it.found.URL, items[0].found.URL)
				}
			}
		}
		select {
		case <-done:
			if looks > 0 && err == nil {
				return
			}
		default:
		}
	}
}
