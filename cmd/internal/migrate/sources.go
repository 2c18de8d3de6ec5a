package migrate

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/daemon"
	"github.com/pgoutbox/outbox/cmd/internal/discover"
	"github.com/pgoutbox/outbox/cmd/internal/session"
	"github.com/pgoutbox/outbox/mapping"
)

func sources(s *session.Session) *cobra.Command {
	var apply bool
	cmd := &cobra.Command{
		Use:   "sources",
		Short: "Print what the sources of the configuration lack in the database, or create it",
		Long: `For each destination with a source, a table of your own, it prints the statements that create what is named in the
configuration and missing in the database: the table of dead letters, the table of offsets, and for the strategy
replication the publication and the slot. What is there is left alone. With --apply the statements are run, one after
the other, as the role of the database's address: the owner of the table, for a slot with the right REPLICATION.

The table itself is your application's. Streams and topics of brokers are made by the relay, if the configuration says
so (create_stream, create_topics).`,
		Example: `  outbox migrate sources
  outbox migrate sources --apply`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := s.Load(load.Input{Unopened: true}, nil)
			if err != nil {
				return err
			}
			cfg, sources := s.Discovered(cmd.Context(), loaded)
			if err := discover.Failed(sources); err != nil {
				return err
			}
			found := 0
			for _, one := range cfg.All() {
				at := session.Address{URL: one.Database.URL.Text(), Origin: "database.url"}
				if cfg.Several() {
					at.Origin += " of " + one.Name
				}
				n, err := prepare(cmd.Context(), s, at, one, apply)
				if err != nil {
					return err
				}
				found += n
			}
			if found == 0 {
				fmt.Fprintln(s.Stderr, "nothing is missing")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&apply, "apply", false, "run the statements instead of printing them")
	return cmd
}

// prepare prints or runs what creates the missing parts of the sources of one database, and returns how many there are.
// What several destinations need is printed once.
func prepare(ctx context.Context, s *session.Session, at session.Address, one config.Effective, apply bool) (found int, err error) {
	cfg, err := s.Parse(at)
	if err != nil {
		return 0, err
	}
	conn, err := connect.Open(ctx, cfg, at.Origin)
	if err != nil {
		return 0, err
	}
	defer connect.Close(conn)
	printed, made := map[string]bool{}, map[string]bool{}
	for _, d := range one.Destinations {
		if d.Source == nil {
			continue
		}
		strategy, m := d.Source.Resolve()
		slot, publication := daemon.TableLog(cfg, d)
		missing, err := mapping.Missing(ctx, conn, &m, strategy, slot, publication)
		if err != nil {
			return found, fmt.Errorf("%s: %w", d.Name, err)
		}
		for _, part := range missing {
			if !apply {
				sql := part.SQL
				if made[part.What] && !printed[sql] {
					sql = part.Again
				}
				made[part.What] = true
				if sql != "" && !printed[sql] {
					found++
					printed[sql] = true
					fmt.Fprintln(s.Stdout, sql)
				}
				continue
			}
			found++
			if _, err := conn.Exec(ctx, part.SQL); err != nil {
				return found, fmt.Errorf("%s: create the %s (%s): %w", d.Name, part.What, part.SQL, err)
			}
			fmt.Fprintln(s.Stdout, "created the", part.What)
		}
	}
	return found, nil
}
