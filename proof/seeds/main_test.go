package seeds

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig"
)

var program struct {
	sync.Once
	folder, path string
	err          error
}

func TestMain(m *testing.M) {
	code := servers.Run(m)
	if program.folder != "" {
		_ = os.RemoveAll(program.folder)
	}
	os.Exit(code)
}

// outboxProgram builds the binary, once.
func outboxProgram(t *testing.T) string {
	t.Helper()
	program.Do(func() {
		if program.folder, program.err = os.MkdirTemp("", "outbox-seeds"); program.err == nil {
			program.path, program.err = rig.Build(context.Background(), program.folder)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.path
}
