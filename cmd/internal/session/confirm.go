package session

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

// Confirmation are the flags of commands that change what can't be brought back, beside the verb's parameters.
type Confirmation struct {
	yes   bool
	Actor string
}

// Flags adds them to a command.
func (c *Confirmation) Flags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "don't ask")
	cmd.Flags().StringVar(&c.Actor, "actor", "", "who, for the audit (default: you, at this host)")
}

// Actor is who acts, for the audit.
func (s *Session) Actor(c Confirmation) string {
	if c.Actor != "" {
		return c.Actor
	}
	name := s.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, _ := os.Hostname()
	if actor := strings.Trim(name+"@"+host, "@"); actor != "" {
		return actor
	}
	return "unknown"
}

// Confirm asks, unless told not to.
func (s *Session) Confirm(c Confirmation, question string) error {
	if c.yes {
		return nil
	}
	if !output.IsTerminal(s.Stdin) {
		return exit.Usagef("this is not a terminal, so you can't be asked: add --yes")
	}
	fmt.Fprintf(s.Stderr, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(s.Stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("not confirmed: nothing was changed")
}
