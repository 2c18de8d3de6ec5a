package daemon

import (
	"io"
	"log/slog"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/discover"
)

// Options is what a Daemon needs beside its configuration.
type Options struct {
	// Several means that the configuration has a list of databases: one that can't be used is tried until it can, where
	// a single one that can't be used at the start ends Run.
	Several bool

	// Discovery tells what was found where databases are looked for, if they are anywhere. There may be none then, and
	// Run goes on; Process is the configuration of the process.
	Discovery func() []discover.Status
	Process   config.Config

	// Home is the address of the fleet's home. It is nil where the configuration has no fleet, or one without a home.
	Home *pgx.ConnConfig

	placed       bool          // each part runs where it is placed; otherwise all parts run
	standByEvery time.Duration // how often a second choice looks at a database; 0 is the constant of this name
	starting     chan struct{} // has as much room as units may begin at once; nil: there is no bound

	// Stdout gets the messages of destinations with the broker stdout.
	Stdout io.Writer

	// Version and Revision are those of the program.
	Version, Revision string

	// Logger is required.
	Logger *slog.Logger

	limits *limits // the process's; nil: none
}

// Database is one to deliver from.
type Database struct {
	// Name is the one in the configuration.
	Name string

	// Origin says where the address of the database was found, for errors.
	Origin string

	Conn *pgx.ConnConfig

	// Config is valid, as package load returns it. What it says of the process is the same in all.
	Config config.Config
}

// same reports whether nothing that concerns the database differs.
func (db Database) same(other Database) bool {
	a, b := db.Config, other.Config
	return reflect.DeepEqual([]any{a.Database, a.Retention, a.Notify, a.Quota, a.Destinations, a.Dormant, a.DormantPoll},
		[]any{b.Database, b.Retention, b.Notify, b.Quota, b.Destinations, b.Dormant, b.DormantPoll})
}
