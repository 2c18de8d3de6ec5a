package pgfetch

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFetchRefusesAVersionThatTheArchivesDontUse(t *testing.T) {
	t.Parallel()
	err := Fetch(t.Context(), "18", filepath.Join(t.TempDir(), "pg"), nil)
	if err == nil || !strings.Contains(err.Error(), "three numbers") {
		t.Fatalf("Fetch(18) = %v, want an error that says what a version looks like", err)
	}
}

func TestFetchLeavesAPresentServerAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"postgres", "initdb"} {
		if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "bin", name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var progress strings.Builder
	if err := Fetch(t.Context(), "18.6.0", dir, &progress); err != nil {
		t.Fatal(err)
	}
	if progress.Len() > 0 {
		t.Errorf("a present server made progress: %s", progress.String())
	}
}

func TestFetchStopsWithItsContextAndLeavesNoServer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := filepath.Join(t.TempDir(), "cache", "pg")
	if err := Fetch(ctx, "18.6.0", dir, nil); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Fatalf("Fetch after cancel = %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a cancelled Fetch installed a server")
	}
}

func TestADownloadThatDoesntHaveItsChecksumIsRefused(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/good.jar", "/bad.jar", "/bad.jar.sha256":
			_, _ = io.WriteString(w, "archive")
		case "/good.jar.sha256":
			_, _ = fmt.Fprintf(w, "%x", sha256.Sum256([]byte("archive")))
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	if archive, err := download(t.Context(), server.URL+"/good.jar"); err != nil || string(archive) != "archive" {
		t.Errorf("the good one: %q, %v", archive, err)
	}
	if _, err := download(t.Context(), server.URL+"/bad.jar"); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("the bad one: %v", err)
	}
	if _, err := download(t.Context(), server.URL+"/none.jar"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("none: %v", err)
	}
}

func TestEveryoneMayReadWhatIsUnpacked(t *testing.T) {
	t.Parallel()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, entry := range []tar.Header{
		{Name: "bin/deep/postgres", Typeflag: tar.TypeReg, Mode: 0o700, Size: 2},
		{Name: "./share", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "share/conf", Typeflag: tar.TypeReg, Mode: 0o600, Size: 2},
		{Name: "bin/link", Typeflag: tar.TypeSymlink, Linkname: "deep/postgres"},
	} {
		if err := w.WriteHeader(&entry); err != nil {
			t.Fatal(err)
		}
		if entry.Size > 0 {
			if _, err := io.WriteString(w, "ok"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "out")
	if err := untar(tar.NewReader(&archive), to); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"": 0o755, "bin/deep": 0o755, "bin/link": 0o755, "share": 0o755, "share/conf": 0o644} {
		if info, err := os.Stat(filepath.Join(to, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
	archive.Reset()
	w = tar.NewWriter(&archive)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "../out of it", Typeflag: tar.TypeReg}), w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := untar(tar.NewReader(&archive), filepath.Join(t.TempDir(), "out")); err == nil {
		t.Error("an entry outside of the folder was unpacked")
	}
}
