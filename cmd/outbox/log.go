package main

import (
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/lmittmann/tint"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

// newLogger writes text, coloured on a terminal, or JSON. Passwords that got into an error are removed.
func (a *app) newLogger(cfg config.Log) *slog.Logger {
	level := &a.level
	_ = level.UnmarshalText([]byte(cfg.Level)) // the configuration allows no other
	w := redacting{a.Stderr, a.Redact}
	if cfg.Format == "json" || cfg.Format == "auto" && !output.IsTerminal(a.Stderr) {
		a.logger = slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
		return a.logger
	}
	a.logger = slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: time.TimeOnly + ".000",
		NoColor: !a.Colours(a.Stderr)}))
	return a.logger
}

// redacting is a writer of whole lines.
type redacting struct {
	to     io.Writer
	redact func(string) string
}

func (r redacting) Write(p []byte) (int, error) {
	if _, err := fmt.Fprint(r.to, r.redact(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
