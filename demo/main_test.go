package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

// runMe makes the test binary a demo: its value is the Config as JSON.
const runMe = "OUTBOX_DEMO_TEST_RUN"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "relay" {
		main() // a relay of a demo that a test runs
		return
	}
	if text := os.Getenv(runMe); text != "" {
		var cfg Config
		err := json.Unmarshal([]byte(text), &cfg)
		if err == nil {
			err = Run(context.Background(), cfg)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := servers.Run(m)
	if left := leftovers(os.Getpid()); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "the tests leave behind:", left)
		code = 1
	}
	os.Exit(code)
}

// leftovers lists the temporary folders of the demos and servers of a process.
func leftovers(pid int) []string {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "pgoutbox-*-"+strconv.Itoa(pid)+"-*"))
	if err != nil {
		panic(err) // of the pattern
	}
	return left
}
