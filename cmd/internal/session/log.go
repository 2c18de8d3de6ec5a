package session

import (
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/lmittmann/tint"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

// Logger writes text, coloured on a terminal, or JSON. Passwords that got into an error are removed.
func (s *Session) Logger(cfg config.Log, level *slog.LevelVar) *slog.Logger {
	_ = level.UnmarshalText([]byte(cfg.Level)) // the configuration allows no other
	w := redacting{s.Stderr, s.Redact}
	if cfg.Format == "json" || cfg.Format == "auto" && !output.IsTerminal(s.Stderr) {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
	}
	return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: time.TimeOnly + ".000",
		NoColor: !s.Colours(s.Stderr)}))
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
