package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/discover"
)

// Sources are where the configuration says that databases are looked for.
func (s *Session) Sources(loaded *load.Loaded, logger *slog.Logger) *discover.Sources {
	return discover.New(loaded, func(ctx context.Context, url, origin string) (*pgx.Conn, error) {
		return s.open(ctx, Address{URL: url, Origin: origin})
	}, logger)
}

// Discovered is the configuration with the databases that are found now, and what became of each source, nil if there
// is none.
func (s *Session) Discovered(ctx context.Context, loaded *load.Loaded) (config.Config, []discover.Status) {
	if len(loaded.Config.Discover) == 0 {
		return loaded.Config, nil
	}
	sources := s.Sources(loaded, slog.New(slog.DiscardHandler))
	sources.Look(ctx)
	return loaded.Config.With(sources.Entries()), sources.Status()
}

// unusable are what a command shows as databases that it can't ask: sources that don't answer, and what they have that
// is at fault.
func unusable(sources []discover.Status) (list []Address) {
	for _, src := range sources {
		if src.Err != nil {
			list = append(list, Address{Name: "source " + src.Source, Err: fmt.Errorf("databases can't be looked for: %w", src.Err)})
		}
		for _, l := range src.LeftOut {
			list = append(list, Address{Name: l.Name, Err: errors.New(l.Reason)})
		}
	}
	return list
}
