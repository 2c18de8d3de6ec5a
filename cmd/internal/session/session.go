// Package session leads a command to what the flags, the environment and the configuration name: a database, several of
// them, or the API of a relay.
package session

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/output"
)

// Session is one run of the program: its streams, its environment, and the flags that all commands share.
type Session struct {
	output.Streams
	Stdin *os.File
	Env   func(string) (string, bool)

	DatabaseURL string
	ServerURL   string

	configFile   string
	databaseName string
	tokenFile    string

	secrets secrets
}

// Flags adds the flags that lead to a database or a server to the root of all commands.
func (s *Session) Flags(root *cobra.Command) {
	flags := root.PersistentFlags()
	flags.StringVar(&s.configFile, "config", "", "configuration file (default $OUTBOX_CONFIG, then outbox.yaml)")
	flags.StringVar(&s.DatabaseURL, "database-url", "",
		"database (default $OUTBOX_DATABASE_URL or the file $OUTBOX_DATABASE_URL_FILE, then $DATABASE_URL, then the configuration file)")
	flags.StringVar(&s.databaseName, "database", "", "name of the database, where the configuration or the server has several")
	flags.StringVar(&s.ServerURL, "server", "",
		"API of a relay, in place of a database (default $OUTBOX_SERVER); $OUTBOX_SERVER_USER and $OUTBOX_SERVER_PASSWORD log in")
	flags.StringVar(&s.tokenFile, "server-token-file", "",
		"file with the bearer token for --server (default $OUTBOX_SERVER_TOKEN_FILE)")
	_ = root.MarkPersistentFlagFilename("config", "yaml", "yml")
}

// Getenv is a variable of the environment, "" for one that isn't set.
func (s *Session) Getenv(name string) string {
	value, _ := s.Env(name)
	return value
}

// Colours reports whether w is a terminal that may be given colours.
func (s *Session) Colours(w any) bool {
	return output.IsTerminal(w) && s.Getenv("NO_COLOR") == "" && s.Getenv("TERM") != "dumb"
}

// Server is the API to use in place of a database, "" for none. An address of a database that is given goes before the
// environment's server.
func (s *Session) Server() string {
	if s.ServerURL == "" && s.DatabaseURL == "" {
		return s.Getenv("OUTBOX_SERVER")
	}
	return s.ServerURL
}

// Redact removes passwords from a text that is to be printed.
func (s *Session) Redact(text string) string { return s.secrets.redact(text) }
