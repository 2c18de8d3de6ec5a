// Command nemesis runs the binary's relays as real processes on real servers, injects faults by a seeded schedule, and
// judges every history by what the database has committed.
//
//	go run ./proof/nemesis -runs 100
//	go run ./proof/nemesis -seed 17
//
// A bad run keeps its files and prints how to repeat it. A seed fixes the broker, the faults, their order and their
// parameters; the moment at which they hit the relays depends on the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgoutbox/outbox/proof/command"
	"github.com/pgoutbox/outbox/proof/rig"
)

func main() { command.Main("nemesis", nemesis) }

// options say what to run.
type options struct {
	seed  uint64 // the first one
	runs  int
	sites int
	keep  string
	kind  string // of all faults; "": the seed's own kinds
	// strategy is a part of the names of the systems that take turns; "": all.
	strategy string
	faults   int // per run
}

func nemesis(ctx context.Context, args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("nemesis", flag.ContinueOnError)
	flags.Uint64Var(&o.seed, "seed", 0, "first seed; without -runs, the only one (default: by the clock)")
	flags.IntVar(&o.runs, "runs", 0, "how many seeds to run, one after the other (default 1 with -seed, else 10)")
	flags.IntVar(&o.sites, "parallel", 2, "how many sets of servers to run them on at once")
	flags.StringVar(&o.keep, "keep", os.TempDir(), "folder in which bad runs leave their logs")
	flags.StringVar(&o.kind, "kind", "", "have this kind of fault alone, three times a run")
	flags.StringVar(&o.strategy, "strategy", "",
		"run the systems with this in their names alone, as snapshot, lease, outbox_messages/advisory")
	flags.IntVar(&o.faults, "faults", faultsARun, "how many faults a run has")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || o.runs < 0 || o.sites < 1 || o.faults < 1 {
		return fmt.Errorf("usage: nemesis [-seed n] [-runs n] [-parallel n] [-strategy name] [-kind fault] [-faults n] [-keep folder]")
	}
	if o.kind != "" && !slices.ContainsFunc(faults(), func(f fault) bool { return f.kind == o.kind }) {
		return fmt.Errorf("no fault is called %q; a run's last lines list all", o.kind)
	}
	if len(systems(o.strategy)) == 0 {
		return fmt.Errorf("no system has %q in its name; these are: %v", o.strategy, systems(""))
	}
	if o.runs == 0 {
		o.runs = 10
		if o.seed != 0 {
			o.runs = 1
		}
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixMilli()) % 1e9
	}
	results, err := runAll(ctx, o, func(lacks string) { fmt.Fprintln(out, "NOT TRIED HERE:", lacks) },
		func(r result) { fmt.Fprintln(out, r) })
	summarise(out, results)
	if err != nil {
		return err
	}
	if bad := badRuns(results); bad > 0 {
		return fmt.Errorf("%d of %d runs broke a promise", bad, len(results))
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return nil
}

func badRuns(results []result) (bad int) {
	for _, r := range results {
		if r.err != nil {
			bad++
		}
	}
	return bad
}

// runAll runs all seeds and calls report after each, and missing if some kinds of faults can't be had here. When it
// returns, everything that it has started has ended.
func runAll(ctx context.Context, o options, missing func(string), report func(result)) ([]result, error) {
	dir, err := os.MkdirTemp("", "outbox-nemesis-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary, err := rig.Build(ctx, dir)
	if ctx.Err() != nil {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var next atomic.Int64
	var mu sync.Mutex
	var results []result
	var errs []error
	var sites sync.WaitGroup
	var once sync.Once
	for range min(o.sites, o.runs) {
		sites.Go(func() {
			err := runOn(ctx, binary, dir, o, &next, func(lacks string) {
				once.Do(func() { missing(lacks) })
			}, func(r result) {
				mu.Lock()
				defer mu.Unlock()
				results = append(results, r)
				report(r)
			})
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	sites.Wait()
	return results, errors.Join(errs...)
}

// runOn opens a site and runs seeds on it that no other site has begun.
func runOn(ctx context.Context, binary, dir string, o options, next *atomic.Int64, warn func(string), done func(result)) (err error) {
	s, err := openSite(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if lacks := s.lacks(); lacks != "" {
		warn(lacks)
	}
	for ctx.Err() == nil {
		i := next.Add(1) - 1
		if i >= int64(o.runs) {
			return nil
		}
		seed := o.seed + uint64(i)
		runDir := filepath.Join(dir, fmt.Sprint("seed-", seed))
		if err := os.Mkdir(runDir, 0o700); err != nil {
			return err
		}
		res := newRun(seed, o, s, binary, runDir).do(ctx)
		if res.interrupted {
			return nil // its findings may come from the interruption
		}
		if res.err == nil {
			if err := os.RemoveAll(runDir); err != nil {
				return err
			}
		} else {
			res.dir = keep(runDir, filepath.Join(o.keep, fmt.Sprintf("outbox-nemesis-seed-%d-%d", seed, time.Now().Unix())), s, res)
		}
		done(res)
	}
	return nil
}

// keep saves the files of a bad run, with the ends of the servers' logs, and returns the folder.
func keep(from, to string, s *site, res result) string {
	logs := fmt.Sprintf("%v\n\nPostgreSQL:\n%s\n\nNATS:\n%s\n\nKafka:\n%s\n", res, s.pg.Log(), s.nats.Log(), s.kafka.Log())
	if s.transactions != nil {
		logs += fmt.Sprintf("\nPgBouncer, transactions:\n%s\n\nPgBouncer, sessions:\n%s\n", s.transactions.Log(), s.sessions.Log())
	}
	if err := errors.Join(os.WriteFile(filepath.Join(from, "verdict.txt"), []byte(logs), 0o600),
		os.CopyFS(to, os.DirFS(from))); err != nil {
		return err.Error()
	}
	return to
}

// String is the run's line of output.
func (r result) String() string {
	var b strings.Builder
	verdict := "ok"
	if r.err != nil {
		verdict = "BAD"
	}
	fmt.Fprintf(&b, "seed %d  %-27s %d relays  %-5s  %s  %5.1fs  committed %d",
		r.seed, r.system, r.relays, r.broker, verdict, r.took.Seconds(), r.Truth.Committed)
	if r.groups > 1 {
		fmt.Fprintf(&b, " in %d shard groups", r.groups)
	}
	if r.Truth.Erased > 0 {
		fmt.Fprintf(&b, " (%d more erased by the promotion)", r.Truth.Erased)
	}
	if r.Truth.Gone > 0 {
		fmt.Fprintf(&b, " (%d gone with the topic)", r.Truth.Gone)
	}
	fmt.Fprintf(&b, "  duplicates %d of at most %d  ", r.Report.Duplicated, r.allowed)
	if !r.promised {
		fmt.Fprintf(&b, "inverted %d (no order is promised)  ", r.Report.Inverted)
	}
	for _, f := range r.faults {
		fmt.Fprintf(&b, " [%s: %.1fs]", f.kind, f.recovery.Seconds())
	}
	if r.err != nil {
		fmt.Fprintf(&b, "\n  %s\n  kept in %s; again: go run ./proof/nemesis -seed %d -strategy %s",
			strings.ReplaceAll(r.err.Error(), "\n", "\n  "), r.dir, r.seed, r.system)
	}
	return b.String()
}
