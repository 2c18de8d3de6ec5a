package rig

import (
	"context"
	"debug/buildinfo"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The linker keeps every exported method of every type once a function that looks up methods by name is reachable:
// text/template does, and the gRPC client pulls it in for its traces unless the tag grpcnotrace is set. That made the
// binary 14 MB larger. To find the next one: build with -ldflags=-dumpdep, and look for <ReflectMethod>.
func TestTheReleasedBinaryIsSmallAndHasNothingOfTheWorkshop(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds the binary")
	}
	path, err := Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	const limit = 42_000_000
	if file.Size() > limit {
		t.Errorf("the stripped binary has %d bytes, more than %d", file.Size(), limit)
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range info.Deps {
		for _, library := range []string{"nats-server", "xi2/xz", "hdrhistogram", "watermill", "oagudo", "outbox/proof", "outbox/demo"} {
			if strings.Contains(dep.Path, library) {
				t.Errorf("the binary links %s", dep.Path)
			}
		}
	}
}

func TestAnInterruptedBuildLeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the binary")
	}
	t.Setenv("GOCACHE", t.TempDir()) // so that it takes long
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		defer stop()
		for ctx.Err() == nil { // until something was compiled
			if made, _ := filepath.Glob(filepath.Join(dir, "build-*", "go-build*", "*", "*")); len(made) > 3 {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := Build(ctx, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
