package packages

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig/rigtest"
)

// released releases what is committed, from a copy of it in a folder, for this kind of machine alone, and returns the
// folder with what was made.
func released(t *testing.T, dir string) string {
	t.Helper()
	goreleaser := servers.Tool(t, "goreleaser")
	run(t, top, nil, "git", "clone", "--quiet", ".", dir)
	var config map[string]any
	if err := yaml.Unmarshal(read(t, top, "deploy/goreleaser.yaml"), &config); err != nil {
		t.Fatal(err)
	}
	one := config["builds"].([]any)[0].(map[string]any)
	one["goos"], one["goarch"] = []string{runtime.GOOS}, []string{runtime.GOARCH}
	text, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	at := file(t, text, t.TempDir(), "goreleaser.yaml")
	run(t, dir, []string{"VERSION=v1.2.3"}, goreleaser, "release", "-f", at, "--snapshot", "--clean", "--skip=sbom")
	return filepath.Join(dir, "dist")
}

func TestAReleaseHasTheSameBytesTwiceAndWhatItShould(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dist, again := released(t, filepath.Join(dir, "one")), released(t, filepath.Join(dir, "a place of another name"))
	sums := string(read(t, dist, "checksums.txt"))
	if other := string(read(t, again, "checksums.txt")); sums != other {
		t.Errorf("one release has\n%s, the other\n%s", sums, other)
	}
	run(t, dist, nil, "sha256sum", "--check", "--strict", "checksums.txt")

	unpacked := filepath.Join(dir, "unpacked")
	name := fmt.Sprintf("outbox_1.2.3_%s_%s", runtime.GOOS, runtime.GOARCH)
	if err := os.Mkdir(unpacked, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, unpacked, nil, "tar", "xzf", filepath.Join(dist, name+".tar.gz"))
	for _, want := range []string{"LICENSE", "README.md", "CHANGELOG.md", "outbox.example.yaml", "outbox.service", "man1/outbox.1.gz",
		"completion/outbox.bash", "completion/_outbox", "completion/outbox.fish"} {
		read(t, unpacked, want)
	}
	if said := run(t, dir, nil, filepath.Join(unpacked, "outbox"), "version"); !strings.HasPrefix(said, "outbox v1.2.3 (") {
		t.Errorf("it says of itself: %s", said)
	}
	// It is built as "make build" builds it.
	settings := func(path string) map[string]string {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for _, s := range info.Settings {
			if !strings.HasPrefix(s.Key, "vcs") && s.Key != "-ldflags" { // which has the version, and is not recorded with -trimpath
				found[s.Key] = s.Value
			}
		}
		return found
	}
	if got, want := settings(filepath.Join(unpacked, "outbox")), settings(rigtest.Binary(t)); !maps.Equal(got, want) {
		t.Errorf("it is built with %v, and make build builds with %v", got, want)
	}

	for kind, install := range map[string]func(root, path string){
		"deb": func(root, path string) {
			for _, folder := range []string{"updates", "info", "triggers"} {
				if err := os.MkdirAll(filepath.Join(root, "var/lib/dpkg", folder), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			file(t, nil, root, "var/lib/dpkg/status")
			run(t, dir, nil, "dpkg", "--root="+root, "--install", path)
			if said := run(t, dir, nil, "dpkg", "--root="+root, "--audit"); said != "" {
				t.Errorf("dpkg says %s", said)
			}
		},
		"rpm": func(root, path string) {
			if err := os.MkdirAll(root, 0o755); err != nil {
				t.Fatal(err)
			}
			run(t, dir, nil, servers.Tool(t, "rpm"), "--root", root, "--install", "--nosignature", path)
		},
	} {
		root := filepath.Join(dir, kind)
		packages, err := filepath.Glob(filepath.Join(dist, "*."+kind))
		if err != nil || len(packages) != 1 {
			t.Fatalf("there are %q, %v", packages, err)
		}
		if os.Geteuid() != 0 {
			continue // it installs as root alone
		}
		install(root, packages[0])
		zsh := map[string]string{"deb": "vendor-completions", "rpm": "site-functions"}[kind]
		for _, want := range []string{"lib/systemd/system/outbox.service", "share/man/man1/outbox-dead-requeue.1.gz",
			"share/bash-completion/completions/outbox", "share/fish/vendor_completions.d/outbox.fish", "share/zsh/" + zsh + "/_outbox",
			"share/doc/outbox/copyright", "share/doc/outbox/examples/outbox.yaml",
			"share/doc/outbox/examples/databases.conf", "share/doc/outbox/examples/discover.conf",
			"share/doc/outbox/examples/fleet.conf"} {
			read(t, root, "usr", want)
		}
		if info, err := os.Stat(filepath.Join(root, "etc/outbox")); err != nil || !info.IsDir() {
			t.Errorf("%s: there is no place for the configuration: %v", kind, err)
		}
		run(t, dir, nil, filepath.Join(root, "usr/bin/outbox"), "version")
		// The unit finds the program.
		if analyze, err := exec.LookPath("systemd-analyze"); err == nil {
			kill := filepath.Join(root, "bin/kill") // every system has one
			if err := errors.Join(os.MkdirAll(filepath.Dir(kill), 0o755), os.WriteFile(kill, nil, 0o755)); err != nil {
				t.Fatal(err)
			}
			said, err := exec.CommandContext(t.Context(), analyze, "--root="+root, "--man=no", "--recursive-errors=no", "verify",
				"outbox.service").CombinedOutput()
			if err != nil || len(said) > 0 {
				t.Errorf("%s: systemd says %v\n%s", kind, err, said)
			}
		}
	}
}

func TestTheReleasesConfigurationIsUnderstood(t *testing.T) {
	t.Parallel()
	run(t, top, nil, servers.Tool(t, "goreleaser"), "check", "-f", "deploy/goreleaser.yaml")
}
