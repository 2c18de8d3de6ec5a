// Package migrate has the commands that install the outbox's tables and lead to them: "migrate" and "attach".
package migrate

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/report"
	"github.com/pgoutbox/outbox/cmd/internal/session"
	"github.com/pgoutbox/outbox/schema"
)

// Command is "outbox migrate".
func Command(s *session.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Install and update the outbox's tables",
	}
	cmd.AddCommand(up(s), status(s), sql(s), grants(s), sources(s), from(s))
	return cmd
}

func up(s *session.Session) *cobra.Command {
	var cfg schema.UpConfig
	var each every
	var out output.Format
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the database, or all of them, to this program's version",
		Long: `Applies every migration that the database lacks, each in a transaction. Any number of instances may run it
at once. Run it as the owner of the database, or of a schema named outbox.

With --all, it does so on all databases of the configuration, some at once. One that fails stops none of the others. A
summary tells how many were brought to this version, had it already, and failed; a second run does what is left.
Relays need not be stopped: one works beside the schema of its own version and of the next.`,
		Example: `  outbox migrate up --database-url postgres://owner@localhost/orders
  outbox migrate up --dry-run
  outbox migrate up --all --user owner`,
		Args: cobra.NoArgs,
	}
	one := s.On(s.Connect, func(ctx context.Context, conn *pgx.Conn, _ []string) error {
		applied, err := schema.Up(ctx, conn, cfg)
		verb := "applied"
		if cfg.DryRun {
			verb = "would apply"
		}
		for _, m := range applied {
			fmt.Fprintln(s.Stdout, verb, m)
		}
		if err != nil {
			return err
		}
		if len(applied) == 0 {
			fmt.Fprintf(s.Stdout, "nothing to do: database %q has version %d\n", conn.Config().Database, schema.Latest())
		}
		return nil
	})
	var user string
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := each.check(s); err != nil {
			return err
		}
		if each.all {
			return upAll(cmd.Context(), s, cfg, user, each.parallel, out)
		}
		if user != "" || out != output.AsTable {
			return exit.Usagef("--user and -o json are for --all")
		}
		return one(cmd, args)
	}
	cmd.Flags().BoolVar(&cfg.DryRun, "dry-run", false, "print what would be applied, and change nothing")
	cmd.Flags().DurationVar(&cfg.LockTimeout, "lock-timeout", 5*time.Second,
		"how long to wait for a lock on a table, while its users wait behind")
	cmd.Flags().DurationVar(&cfg.Wait, "wait", time.Minute, "how long to wait for another instance that migrates the same database")
	cmd.Flags().StringVar(&user, "user", "", "with --all, connect as this role in place of the configuration's; its password is that of "+
		"$PGPASSWORD or of the password file ($PGPASSFILE, ~/.pgpass)")
	output.FormatFlag(cmd, &out, output.AsTable, output.AsJSON)
	each.flags(cmd)
	return cmd
}

// every are the flags of commands that work on all databases.
type every struct {
	all      bool
	parallel int
}

func (e *every) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&e.all, "all", false, "all databases of the configuration")
	cmd.Flags().IntVar(&e.parallel, "parallel", 16, "with --all, how many databases at once")
}

func (e *every) check(s *session.Session) error {
	switch {
	case e.parallel < 1 || e.parallel > 1000:
		return exit.Usagef("--parallel is %d, it must be 1 to 1000", e.parallel)
	case e.all && s.Named():
		return exit.Usagef("--all excludes --database and --database-url")
	}
	return nil
}

func status(s *session.Session) *cobra.Command {
	var out output.Format
	var strict bool
	var each every
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which migrations the database has, or which versions all have",
		Args:  cobra.NoArgs,
	}
	one := s.On(s.Connect, func(ctx context.Context, conn *pgx.Conn, _ []string) error {
		state, err := schema.Status(ctx, conn)
		if err != nil {
			return err
		}
		var all []report.Migration
		for _, m := range state.Applied {
			all = append(all, report.Migration{Version: m.Version, Name: m.Name, AppliedAt: m.AppliedAt})
		}
		for _, m := range state.Pending {
			all = append(all, report.Migration{Version: m.Version, Name: m.Name})
		}
		if err := report.Migrations(s.Streams, out, state, all); err != nil {
			return err
		}
		if strict && len(state.Pending) > 0 {
			return fmt.Errorf("%w: %d migrations are pending: run: outbox migrate up", schema.ErrOutdated, len(state.Pending))
		}
		return nil
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := each.check(s); err != nil {
			return err
		}
		if each.all {
			return statusAll(cmd.Context(), s, each.parallel, out, strict)
		}
		return one(cmd, args)
	}
	output.FormatFlag(cmd, &out, output.AsTable, output.AsJSON, output.AsJSONL)
	cmd.Flags().BoolVar(&strict, "exit-code", false, "exit with 1 if migrations are pending")
	each.flags(cmd)
	return cmd
}

func sql(s *session.Session) *cobra.Command {
	from, to := 0, schema.Latest()
	cmd := &cobra.Command{
		Use:   "sql",
		Short: "Print the migrations as SQL, to be applied by hand",
		Example: `  outbox migrate sql | psql --set ON_ERROR_STOP=1 orders
  outbox migrate sql --from 1 > update.sql`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			text, err := schema.SQL(from, to)
			if err != nil {
				return exit.Usagef("%w", err)
			}
			_, err = fmt.Fprint(s.Stdout, text)
			return err
		},
	}
	cmd.Flags().IntVar(&from, "from", from, "version that the database has, 0 for none")
	cmd.Flags().IntVar(&to, "to", to, "version to lead to")
	return cmd
}

func grants(s *session.Session) *cobra.Command {
	var writer, relay, viewer, consumer, emitter string
	var apply bool
	cmd := &cobra.Command{
		Use:   "grants",
		Short: "Print the least privileges of writers, relays, viewers, consumers and emitters, or give them",
		Long: `Prints GRANT statements for the roles that are named. The schema's owner runs them, and a superuser those of
--emitter; running them again is harmless. With --apply they are run, in one transaction, as the role of the database's
address, and nothing is changed unless that role may give all of them. docs/trust.md says what each role can do then.`,
		Example: `  outbox migrate grants --writer orders_service --relay outbox_relay --viewer grafana | psql orders
  outbox migrate grants --relay outbox_relay --apply --database-url postgres://owner@localhost/orders`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if writer+relay+viewer+consumer+emitter == "" {
				return exit.Usagef("no role is named: give --writer, --relay, --viewer, --consumer or --emitter")
			}
			text := schema.Grants(writer, relay, viewer)
			if consumer != "" {
				text += schema.ConsumerGrants(consumer)
			}
			if emitter != "" {
				text += schema.EmitterGrants(emitter)
			}
			if apply {
				return execute(cmd.Context(), s, text)
			}
			_, err := fmt.Fprint(s.Stdout, text)
			return err
		},
	}
	cmd.Flags().StringVar(&writer, "writer", "", "role of services that write messages")
	cmd.Flags().StringVar(&relay, "relay", "", "role of relays, and of operators who act on dead letters")
	cmd.Flags().StringVar(&viewer, "viewer", "", "role that reads everything except payloads")
	cmd.Flags().StringVar(&consumer, "consumer", "", "role of services that apply messages with an inbox")
	cmd.Flags().StringVar(&emitter, "emitter", "",
		"role of services that write messages to the log alone; takes that right from everybody else")
	cmd.Flags().BoolVar(&apply, "apply", false, "run the statements instead of printing them")
	return cmd
}
