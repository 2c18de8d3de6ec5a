package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/pgoutbox/outbox"
)

// Command runs a program for each notification, without a shell, which gets it as JSON on standard input.
type Command struct {
	argv    []string
	timeout time.Duration
}

var _ Channel = (*Command)(nil)

// NewCommand returns a channel. A program that runs for longer than timeout is killed, with those that it has
// started where the system has process groups.
func NewCommand(argv []string, timeout time.Duration) *Command {
	return &Command{argv: argv, timeout: timeout}
}

// Name implements Channel.
func (*Command) Name() string { return "command" }

// Send implements Channel.
func (c *Command) Send(ctx context.Context, n *Notification) error {
	body, err := json.Marshal(n)
	if err != nil {
		return outbox.Permanent(fmt.Errorf("write the notification: %w", err))
	}
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	cmd := exec.CommandContext(limited, c.argv[0], c.argv[1:]...)
	said := &head{limit: 300}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(body, '\n')), said, said
	cmd.WaitDelay = time.Second // a grandchild may keep the pipes open
	killGroup(cmd)
	err = cmd.Run()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return nil // it has ended well; what it left running is its own affair
	case limited.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("run %s: killed after %v", c.argv[0], c.timeout)
	}
	return fmt.Errorf("run %s: %w: %q", c.argv[0], err, said.text)
}

// head keeps the beginning of what is written.
type head struct {
	limit int
	text  []byte
}

func (h *head) Write(b []byte) (int, error) {
	h.text = append(h.text, b[:min(len(b), h.limit-len(h.text))]...)
	return len(b), nil
}
