// Package rigtest is what tests that run the binary have in common.
package rigtest

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig"
)

// folder has the binary, once a test has asked for it.
var folder string

var build = sync.OnceValues(func() (path string, err error) {
	if folder, err = os.MkdirTemp("", "outbox-binary-"); err != nil {
		return "", err
	}
	return rig.Build(context.Background(), folder)
})

// Binary returns the path of the binary, which is built once for all tests of a package. Their TestMain calls [Run].
func Binary(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Run is servers.Run, and removes the binary.
func Run(m *testing.M) (code int) {
	code = servers.Run(m)
	if folder != "" {
		_ = os.RemoveAll(folder) // a leftover is no failure of the tests
	}
	return code
}

// Address is one of loopback that a relay can listen on.
func Address(t testing.TB) string {
	t.Helper()
	address, err := rig.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}
