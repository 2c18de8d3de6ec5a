// Command demo shows the outbox at work: a real PostgreSQL, a real broker, a service that writes, relays as processes
// of their own that deliver, a consumer that checks, and ways to break each of them.
//
//	go run ./demo
//	go run ./demo --for 30s --json | tail -1
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `Watch events arrive, break things, and see that nothing is lost.

It runs an orders service, two relays and a consumer against a real PostgreSQL and a real broker, and checks
every event: lost, phantom (delivered though rolled back), out of order, duplicated.

Nothing needs to be configured or installed. PostgreSQL is one that is installed, else one that is fetched
into the cache; the broker is a NATS server with JetStream inside this program. All of it goes when the demo
ends.

On a terminal, keys break things:

  b   broker down, and up again          k   SIGKILL for the relay that leads
  l   a transaction stays open           r   transactions roll back
  p   a message that the broker refuses  + - more load, less load
  d   drain and give the verdict         q   quit          ?  help

The page whose address is shown has them as buttons: the operators' console, on the demo's database.

Without a terminal there is a line a second, and Ctrl-C asks for the verdict. With --for the demo breaks everything
by itself, once, and ends with the verdict.

With --database-url the demo makes a database of its own on that server, and drops it at the end. If the
role may not, it uses the database that is named, unless the outbox there has messages or cursors.

Exit code 0 only if nothing was lost, invented or out of order.

  go run ./demo
  go run ./demo --for 30s
  go run ./demo --for 30s --json | tail -1
  go run ./demo --database-url postgres://me@localhost/test

Flags:
`

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	if len(args) == 2 && args[0] == "relay" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return runRelay(ctx, args[1])
	}
	var cfg Config
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	flags.StringVar(&cfg.DatabaseURL, "database-url", "", "use this PostgreSQL (default: start one)")
	flags.DurationVar(&cfg.For, "for", 0, "break everything by itself within this time, then give the verdict")
	flags.BoolVar(&cfg.JSON, "json", false, "write a JSON object a line, the verdict last")
	flags.IntVar(&cfg.Rate, "rate", 500, "events a second")
	flags.IntVar(&cfg.Keys, "keys", 100, "orders that are changed")
	flags.Uint64Var(&cfg.Seed, "seed", 0, "choose orders and roll-backs as an earlier run did (default: another choice each time)")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	_ = flags.Parse(args) // for a wrong flag it exits, with code 2
	if flags.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: unknown argument %q; see --help\n", flags.Arg(0))
		os.Exit(2)
	}
	// The demo handles signals itself: the first Ctrl-C may ask for the verdict.
	return Run(context.Background(), cfg)
}
