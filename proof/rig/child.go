package rig

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pgoutbox/outbox/internal/child"
)

// Child is a program as a process of its own, which may be started again after its end. One goroutine starts it while
// no other uses it.
type Child struct {
	Name string
	child.Command
	*child.Process // the last that was started
}

// Start starts the process, the first time or again after its end.
func (c *Child) Start() (err error) {
	c.Env = environment(os.Environ())
	if c.Process, err = child.Start(c.Command); err != nil {
		return fmt.Errorf("process %s: %w", c.Name, err)
	}
	return nil
}

// environment leaves out what would win over what a child is told: the person who tests may have an outbox of their
// own.
func environment(environ []string) []string {
	return slices.DeleteFunc(environ, func(variable string) bool {
		return strings.HasPrefix(variable, "OUTBOX_") || strings.HasPrefix(variable, "DATABASE_URL=")
	})
}

// Stop tells the process to end in good order and returns what became of it. One that still runs after patience is
// killed.
func (c *Child) Stop(patience time.Duration) error {
	return errors.Join(c.Signal(syscall.SIGTERM), c.Wait(patience))
}

// Wait is what Stop does after the signal.
func (c *Child) Wait(patience time.Duration) error {
	if !c.Process.Wait(patience) {
		return errors.Join(fmt.Errorf("process %s still runs %v after SIGTERM", c.Name, patience), c.Kill())
	}
	if err := c.Err(); err != nil {
		return fmt.Errorf("process %s ended with %w after SIGTERM; its log ends with:\n%s", c.Name, err, c.Log())
	}
	return nil
}
