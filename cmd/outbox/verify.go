package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/admin/verify"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/report"
	"github.com/pgoutbox/outbox/cmd/internal/session"
)

func (a *app) verifyCommand() *cobra.Command {
	var cfg verify.Config
	var out output.Format
	var allowEmpty bool
	var targetURL, since, until string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Prove that what was committed was applied: name each missing, doubled and inverted message",
		Long: `Compares the messages in the outbox with what a consumer has applied: its inbox, or the rows that a query of
yours returns, in the same database or another. It sees what is still in the outbox; retention empties that
once every destination has delivered it, after some ten minutes to an hour and a half, on a busy outbox sooner. The report
says how far back it reaches.

Exit code 0: everything was applied, once and in order per key. 1: it was not, or could not be compared.
5: nothing was compared.`,
		Example: `  outbox verify --consumer payments --target-url "$PAYMENTS_DATABASE_URL" --topic orders
  outbox verify --consumer payments --since 2026-05-01T12:00:00Z --until 2026-05-01T13:00:00Z -o json
  outbox verify --consumer payments --since 1h
  outbox verify --applied 'SELECT message_id, no FROM ledger'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Consumer == "" && cfg.Applied == "" {
				return exit.Usagef("give --consumer, or --applied")
			}
			if cfg.Settle < 0 {
				return exit.Usagef("--settle is %v, it can't be negative", cfg.Settle)
			}
			if err := errors.Join(timeFlag("since", since, &cfg.Since), timeFlag("until", until, &cfg.Until)); err != nil {
				return err
			}
			v, err := a.verify(cmd.Context(), targetURL, cfg)
			if err != nil {
				return err
			}
			if out == output.AsJSON {
				err = output.JSON(a.Stdout, v)
			} else {
				err = report.Verification(a.Stdout, v)
			}
			switch {
			case err != nil:
			case !v.OK():
				err = fmt.Errorf("%d missing, %d doubled, %d inverted, %d gaps", v.Missing.N, v.Doubled.N,
					v.Inverted.N, v.Gaps.N)
			case v.Committed == 0 && !allowEmpty:
				err = exit.With(exit.Nothing, errors.New("nothing was compared: "+whyEmpty(v)))
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Consumer, "consumer", "", "whose inbox to compare with")
	flags.StringVar(&cfg.Applied, "applied", "", "compare with the rows of this query instead: message id, number in "+
		"the order of application")
	flags.StringVar(&targetURL, "target-url", "", "database of the consumer (default: that of the outbox)")
	flags.StringSliceVar(&cfg.Topics, "topic", nil, "only messages of these topics")
	flags.StringVar(&since, "since", "", "only messages written at this time or later: "+verbs.TimeForm)
	flags.StringVar(&until, "until", "", "only messages written before this time: "+verbs.TimeForm)
	flags.Int64Var(&cfg.FirstID, "from-id", 0, "only messages from this position on")
	flags.Int64Var(&cfg.LastID, "to-id", 0, "only messages up to this position")
	flags.DurationVar(&cfg.Settle, "settle", 30*time.Second, "leave out messages younger than this: they may be on their way")
	flags.IntVar(&cfg.Limit, "limit", 1000, "how many of each kind to name")
	flags.BoolVar(&allowEmpty, "allow-empty", false, "succeed when there is nothing to compare, too")
	output.FormatFlag(cmd, &out, output.AsTable, output.AsJSON)
	return cmd
}

func (a *app) verify(ctx context.Context, targetURL string, cfg verify.Config) (*verify.Verification, error) {
	source, err := a.Operate(ctx)
	if err != nil {
		return nil, err
	}
	defer connect.Close(source)
	var target *pgx.Conn
	if targetURL == "" {
		target, err = a.Connect(ctx)
	} else {
		at := session.Address{URL: targetURL, Origin: "--target-url"}
		var parsed *pgx.ConnConfig
		if parsed, err = a.Parse(at); err == nil {
			target, err = connect.Open(ctx, parsed, at.Origin)
		}
	}
	if err != nil {
		return nil, err
	}
	defer connect.Close(target)
	return verify.Run(ctx, source, target, cfg)
}

// whyEmpty tells why nothing could be compared, and what to do.
func whyEmpty(v *verify.Verification) string {
	if v.Oldest == nil {
		return "the outbox is empty. What every destination has delivered is removed by retention within minutes: " +
			"verify while messages are written, " +
			"or say --allow-empty if there may be none"
	}
	return "none of the messages in the outbox is in the range. Look at --topic (names are compared whole), at " +
		"--since, --until, --from-id and --to-id, and at --settle, " +
		"which leaves the youngest out; what was written before " + v.Oldest.Local().Format(time.DateTime) +
		" has been removed. Say --allow-empty if there may be none"
}
