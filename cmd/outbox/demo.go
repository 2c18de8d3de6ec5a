package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/demo"
)

func newDemoCmd() *cobra.Command {
	var cfg demo.Config
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch events arrive, break things, and see that nothing is lost",
		Long: `Run an orders service, two relays and a consumer against a real PostgreSQL and a real broker, and check
every event: lost, phantom (delivered though rolled back), out of order, duplicated.

Nothing needs to be configured or installed. PostgreSQL is one that is installed, else one that is fetched
into the cache; the broker is a NATS server with JetStream inside this program. All of it goes when the demo
ends.

On a terminal, keys break things:

  b   broker down, and up again          k   SIGKILL for the relay that leads
  l   a transaction stays open           r   transactions roll back
  p   a message that the broker refuses  + - more load, less load
  d   drain and give the verdict         q   quit          ?  help

Elsewhere there is a line a second, and Ctrl-C asks for the verdict. With --for the demo breaks everything
by itself, once, and ends with the verdict.

With --database-url the demo makes a database of its own on that server, and drops it at the end. If the
role may not, it uses the database that is named, unless the outbox there has messages or cursors.

Exit code 0 only if nothing was lost, invented or out of order.`,
		Example: `  outbox demo
  outbox demo --for 30s
  outbox demo --for 30s --json | tail -1
  outbox demo --database-url postgres://me@localhost/test --kafka localhost:9092`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Stdout, cfg.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			// The demo minds signals itself: the first Ctrl-C may ask for the verdict.
			return demo.Run(context.WithoutCancel(cmd.Context()), cfg)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.DatabaseURL, "database-url", "", "use this PostgreSQL (default: start one)")
	flags.StringVar(&cfg.Kafka, "kafka", "", "deliver to the Kafka at this `address`, host:port (default: NATS in this process)")
	flags.DurationVar(&cfg.For, "for", 0, "break everything by itself within this time, then give the verdict")
	flags.BoolVar(&cfg.JSON, "json", false, "write a JSON object a line, the verdict last")
	flags.IntVar(&cfg.Rate, "rate", 500, "events a second")
	flags.IntVar(&cfg.Keys, "keys", 100, "orders that are changed")
	flags.Uint64Var(&cfg.Seed, "seed", 0, "choose orders and roll-backs as an earlier run did (default: another choice each time)")
	return cmd
}
