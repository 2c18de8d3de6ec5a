// Command order delivers many messages by every strategy, on the default table and on those of the articles with their
// authors' statements, and prints what was lost, invented, doubled and out of order beside what the documents promise.
//
//	go run ./proof/order
//	go run ./proof/order -messages 10000 -only outbox_messages/skiplocked
//
// Messages come at a rate, at full speed, and as a backlog; to one relay and to two; with and without SIGKILL. Cases at
// a rate run in parallel with each other and with the others, each in a database of its own on one server. It fails if
// a promise is broken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/command"
	"github.com/pgoutbox/outbox/proof/rig"
	"github.com/pgoutbox/outbox/proof/seeds"
)

func main() { command.Main("order", order) }

type options struct {
	messages, rate, kills int
	only, workload        string
	paced, fast           int // how many run at once
	binary                string
}

func order(ctx context.Context, args []string, out io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("order", flag.ContinueOnError)
	flags.IntVar(&o.messages, "messages", 100_000, "how many messages a case has")
	flags.IntVar(&o.rate, "rate", 100, "messages a second of a case at a rate")
	flags.IntVar(&o.kills, "kills", 10, "how many relays are killed in a case with kills")
	flags.StringVar(&o.only, "only", "", "run the systems with this in their names alone, as lease or outbox_messages/advisory")
	flags.StringVar(&o.workload, "workload", "", "run this workload alone: trickle, burst or backlog")
	flags.IntVar(&o.paced, "paced", 28, "how many cases at a rate run at once")
	flags.IntVar(&o.fast, "fast", 2, "how many others run at once")
	flags.StringVar(&o.binary, "binary", "", "the outbox to run (default: built here)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	cases := o.cases()
	if len(cases) == 0 || o.messages < 1 || o.rate < 1 || o.paced < 1 || o.fast < 1 || o.kills < 1 {
		return errors.New("nothing to run: see -h")
	}
	dir, err := os.MkdirTemp("", "outbox-order-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.binary == "" {
		if o.binary, err = rig.Build(ctx, dir); err != nil {
			return err
		}
	}
	pg, err := servers.StartPostgres(ctx, servers.PostgresConfig{Settings: map[string]string{
		"max_connections": "1000", "max_replication_slots": "100", "max_wal_senders": "100", "max_wal_size": "4GB"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.Close()) }()

	fmt.Fprintln(out, "| system | strategy | workload | relays | kills | committed | delivered | lost | phantom | "+
		"duplicated | inverted | promised | seconds |")
	fmt.Fprintln(out, "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|")
	var mu sync.Mutex
	bad := 0
	runOne := func(c seeds.Case) {
		if ctx.Err() != nil {
			return
		}
		result, err := run(ctx, pg, o.binary, dir, c)
		if ctx.Err() != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		promised := "no"
		if c.Ordered {
			promised = "order"
		}
		r := result.Report
		fmt.Fprintf(out, "| %s | %s | %s | %d | %d | %d | %d | %d | %d | %d | %d | %s | %.0f |\n",
			c.Name, c.Strategy, c.Workload, c.Relays, result.Killed,
			r.Committed, r.Delivered, r.Lost, r.Phantom, r.Duplicated, r.Inverted, promised, result.Took.Seconds())
		if err := errors.Join(err, c.Broken(result)); err != nil {
			bad++
			fmt.Fprintf(out, "BROKEN: %v: %v\n%s", c, err, result.Log)
		}
	}
	var lanes sync.WaitGroup
	for _, paced := range []bool{true, false} {
		lanes.Go(func() {
			var workers errgroup.Group
			workers.SetLimit(map[bool]int{true: o.paced, false: o.fast}[paced])
			for _, c := range cases {
				if (c.Workload == seeds.Trickle) == paced {
					workers.Go(func() error { runOne(c); return nil })
				}
			}
			_ = workers.Wait() // runOne counts what is broken
		})
	}
	lanes.Wait()
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d cases broke a promise", bad, len(cases))
	}
	return nil
}

// cases are all requested cases.
func (o options) cases() (all []seeds.Case) {
	for _, workload := range []seeds.Workload{seeds.Burst, seeds.Backlog, seeds.Trickle} {
		if o.workload != "" && o.workload != string(workload) {
			continue
		}
		for _, kills := range []int{0, o.kills} {
			for relays := 1; relays <= 2; relays++ {
				for i, s := range seeds.Systems() {
					if strings.Contains(s.String(), o.only) {
						all = append(all, seeds.Case{System: s,
							Workload: workload, Messages: o.messages, Rate: o.rate, Relays: relays, Kills: kills, Seed: uint64(i)})
					}
				}
			}
		}
	}
	return all
}

// run runs a case in a database of its own.
func run(ctx context.Context, pg *servers.Postgres, binary, dir string, c seeds.Case) (_ seeds.Result, err error) {
	database, err := pg.CreateDatabase(ctx)
	if err != nil {
		return seeds.Result{}, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, pg.DropDatabase(ctx, database))
	}()
	return c.Run(ctx, binary, dir, pg.URL(database))
}
