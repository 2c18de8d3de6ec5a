// Command fleet runs a fleet: processes that share many databases of several clusters, while processes are killed,
// frozen, stopped and restarted one after the other, and a cluster is away for a while. It prints what was lost,
// invented, doubled and out of order, and for how long nothing came from a database, by cause.
//
//	go run ./proof/fleet
//	go run ./proof/fleet -databases 200 -clusters 3 -processes 6 -rate 2000 -for 30m -seed 7
//
// It fails if a promise is broken.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/proof/command"
	"github.com/pgoutbox/outbox/proof/rig"
)

func main() { command.Main("fleet", fleet) }

type options struct {
	databases, clusters, processes, rate int
	period                               time.Duration
	seed                                 uint64
	binary                               string
	faultKinds                           []string
}

func fleet(ctx context.Context, args []string, out io.Writer) (err error) {
	var o options
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.IntVar(&o.databases, "databases", 20, "how many there are")
	flags.IntVar(&o.clusters, "clusters", 3, "how many PostgreSQL clusters have them; of several, one is away for a while")
	flags.IntVar(&o.processes, "processes", 4, "how many share them, at least 2")
	flags.IntVar(&o.rate, "rate", 200, "messages a second over all databases, at least one for each")
	flags.DurationVar(&o.period, "for", 2*time.Minute, "how long there are faults")
	flags.Uint64Var(&o.seed, "seed", 1, "of the faults")
	faults := flags.String("faults", strings.Join(faultKinds, ","), "those that happen to processes")
	flags.StringVar(&o.binary, "binary", "", "the outbox to run (default: built here)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.faultKinds = strings.Split(*faults, ",")
	for _, kind := range o.faultKinds {
		if !slices.Contains(faultKinds, kind) {
			return fmt.Errorf("-faults: there is no %q, only %s", kind, strings.Join(faultKinds, ", "))
		}
	}
	if o.clusters < 1 || o.processes < 2 || o.databases < o.clusters || o.rate < o.databases || o.period < time.Minute {
		return errors.New("nothing to run: see -h")
	}
	b := &bed{options: o, rng: rand.New(rand.NewPCG(o.seed, 33))}
	defer func() { err = errors.Join(err, b.close()) }()
	if b.dir, err = os.MkdirTemp("", "outbox-fleet-"); err != nil {
		return err
	}
	if err := b.open(ctx); err != nil {
		return err
	}
	if err := b.disturb(ctx); err != nil {
		return err
	}
	verdict, err := b.judge(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, PostgreSQL %s: %d databases in %d clusters, %d processes, %d messages a second, %v, seed %d\n\n",
		rig.ThisMachine(), b.clusters[0].Version(), o.databases, o.clusters, o.processes, o.rate, o.period, o.seed)
	b.print(out, verdict)
	if !verdict.OK() || verdict.DeadLettered > 0 {
		return fmt.Errorf("a promise is broken: %v", verdict)
	}
	return nil
}

// judge waits until everything is delivered, ends the processes and compares what came with what was committed.
func (b *bed) judge(ctx context.Context) (sum check.Report, err error) {
	for _, d := range b.sources {
		d.load.Stop()
	}
	for _, d := range b.sources {
		if _, err := d.load.Flows(ctx, 5*time.Minute); err != nil {
			return sum, fmt.Errorf("%s: %w", d.name, err)
		}
	}
	stop := sync.OnceValue(b.stop)
	for _, d := range b.sources {
		v, err := d.load.Judge(ctx, d, check.New(check.Config{}), rig.Losses{}, time.Minute, stop)
		if err != nil {
			return sum, fmt.Errorf("%s: %w", d.name, err)
		}
		if v.Held > 0 {
			return sum, fmt.Errorf("%s: %d messages are held", d.name, v.Held)
		}
		sum.Add(v.Report)
	}
	return sum, nil
}
