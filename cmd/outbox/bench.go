package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/bench"
)

func newBenchCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure deliveries beside the best that this machine could do",
		Long: `Measure on real servers, started for the purpose or given by address, and check every message.

Contenders take turns in one run: machines are noisy, and only the ratios within a run mean something.`,
	}
	cmd.AddCommand(newBenchDrainCmd(), newBenchFloorCmd())
	return cmd
}

func newBenchDrainCmd() *cobra.Command {
	var cfg bench.DrainConfig
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Deliver a backlog, beside the barest COPY-to-produce pipe",
		Long: `Write a backlog, then let each contender deliver it as a process of its own, several rounds.

  floor   one COPY of the table into the broker's own client: no cursor, no order, no retries
  relay   "outbox relay" with default settings`,
		Example: `  outbox bench drain
  outbox bench drain --broker nats --messages 500000 --bytes 1000 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			cfg.Binary, cfg.Progress = self, cmd.ErrOrStderr()
			runs, err := bench.Drain(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			medians := bench.Medians(runs)
			if asJSON {
				err = writeLines(cmd.OutOrStdout(), append(runs, medians...))
			} else {
				err = bench.Table(cmd.OutOrStdout(), append(runs, medians...))
			}
			for _, r := range medians {
				if !r.OK() {
					err = errors.Join(err, fmt.Errorf("%s broke a promise: %d lost, %d phantom, %d duplicated, %d inverted", r.Contender, r.Lost, r.Phantom, r.Duplicated, r.Inverted))
				}
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.Broker, "broker", "kafka", "kafka or nats")
	flags.StringVar(&cfg.Address, "address", "", "address of the broker (default: start one)")
	flags.StringVar(&cfg.Postgres, "database-url", "", "superuser's URL of an empty database (default: start a PostgreSQL)")
	flags.IntVar(&cfg.Messages, "messages", 1_000_000, "how many messages")
	flags.IntVar(&cfg.Bytes, "bytes", 256, "payload of each")
	flags.IntVar(&cfg.Keys, "keys", 10_000, "how many keys they are spread over")
	flags.IntVar(&cfg.Rounds, "rounds", 3, "how often each contender runs")
	flags.StringSliceVar(&cfg.Contenders, "contenders", nil, "who takes part (default floor,relay)")
	flags.BoolVar(&asJSON, "json", false, "one JSON object a line instead of a table")
	return cmd
}

// newBenchFloorCmd is the floor's process. It stays after the last message, so that its memory can be
// read, and ends by SIGTERM.
func newBenchFloorCmd() *cobra.Command {
	var broker, address string
	cmd := &cobra.Command{
		Use:    "floor",
		Short:  "The barest pipe, as the process that bench drain measures",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := bench.RunFloor(cmd.Context(), broker, os.Getenv("OUTBOX_DATABASE_URL"), address, cmd.ErrOrStderr()); err != nil {
				return err
			}
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().StringVar(&broker, "broker", "kafka", "kafka or nats")
	cmd.Flags().StringVar(&address, "address", "", "address of the broker")
	return cmd
}

func writeLines[T any](w io.Writer, values []T) error {
	enc := json.NewEncoder(w)
	for _, v := range values {
		if err := enc.Encode(v); err != nil {
			return err
		}
	}
	return nil
}
