package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

func TestArgumentsNameServers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		want string // names, or a part of the error after !
	}{
		{"kafka nats", "kafka nats"},
		{"postgres@18.6.0", "postgres@18.6.0"},
		{"postgres@18.1.0", "postgres@18.1.0"},
		{"postgres@14", "postgres@14.24.0"},
		{"postgres@9", "!no PostgreSQL 9"},
		{"postgres@18.6", "!postgres@18.6.0"},
		{"redis rabbitmq", "redis rabbitmq"},
		{"debezium", "debezium"},
		{"tools", "helm kustomize goreleaser buildah bash-completion zsh fish mandoc rpm mkdocs-material schemathesis kubernetes"},
		{"mysql", `!"mysql"`},
		{"all", "postgres@14.24.0 postgres@15.19.0 postgres@16.15.0 postgres@17.11.0 postgres@18.6.0 kafka nats " +
			"elasticmq moto redis rabbitmq pgbouncer prometheus chromium readers axe"},
	} {
		targets, err := parse(strings.Fields(c.args))
		if part, fails := strings.CutPrefix(c.want, "!"); fails {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want an error with %s", c.args, err, part)
			}
			continue
		}
		var names []string
		for _, target := range targets {
			names = append(names, target.name)
		}
		if err != nil || !slices.Equal(names, strings.Fields(c.want)) {
			t.Errorf("%s: %v, %v", c.args, names, err)
		}
	}
}

func TestNothingNamedIsAFault(t *testing.T) {
	t.Parallel()
	var out, progress strings.Builder
	if err := run(t.Context(), nil, &out, &progress); err == nil || !strings.Contains(progress.String(), "usage:") {
		t.Errorf("run without arguments: %v, %s", err, progress.String())
	}
}

func TestListSaysWhatIsMissing(t *testing.T) {
	t.Setenv("OUTBOX_CACHE", t.TempDir())
	t.Setenv("PATH", "")
	t.Setenv("JAVA_HOME", "")
	var out, progress strings.Builder
	if err := run(t.Context(), []string{"-list"}, &out, &progress); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"fetch kafka", "fetch nats"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q isn't in:\n%s", line, out.String())
		}
	}
}

func TestWithoutMavenTheErrorSaysWhatToInstall(t *testing.T) {
	t.Setenv("OUTBOX_CACHE", t.TempDir())
	t.Setenv("PATH", "")
	t.Setenv("JAVA_HOME", "")
	var out, progress strings.Builder
	err := run(t.Context(), []string{"kafka"}, &out, &progress)
	if err == nil || !strings.Contains(err.Error(), "Maven") {
		t.Errorf("fetch kafka: %v", err)
	}
}

func TestAnInstallThatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	f := fetcher{cache: cache, progress: &strings.Builder{}}
	dir := filepath.Join(cache, "server", "bin")
	err := f.install("it", dir, func(work string) error {
		if err := os.Mkdir(filepath.Join(work, "out"), 0o755); err != nil {
			return err
		}
		return os.ErrDeadlineExceeded
	})
	if err == nil {
		t.Fatal("no error")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("an incomplete server is there")
	}
	if left, _ := filepath.Glob(filepath.Join(cache, ".fetch-*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestWhatIsThereIsNotFetchedAgain(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("OUTBOX_CACHE", cache)
	path := filepath.Join(servers.NATSDir(cache), "nats-server")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "") // no go to build it with
	var out, progress strings.Builder
	if err := run(t.Context(), []string{"nats"}, &out, &progress); err != nil || progress.Len() > 0 {
		t.Errorf("%v, progress %q", err, progress.String())
	}
}
