package main

import (
	"log/slog"

	"github.com/pgoutbox/outbox/cmd/internal/session"
)

// app is one run of the program.
type app struct {
	*session.Session

	started bool // the command line was understood

	level  slog.LevelVar
	logger *slog.Logger // the relay's
}
