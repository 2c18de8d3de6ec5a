package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/proof/rig"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process
	err := newBenchCmd().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func newBenchCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure deliveries beside the best that this machine could do",
		Long: `Measure on real servers, started for the purpose or given by address, and check every message.

Contenders take turns in one run: machines are noisy, and only the ratios within a run mean something.
docs/benchmarks.md explains the method. Figures go to standard output, progress to standard error. Nothing
is left behind: databases, topics and streams have names of their own and are removed, after Ctrl-C too.

Exit code 1 if a contender lost, invented, doubled or reordered anything that it promises not to.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.AddCommand(newBenchReportCmd(), newBenchPartCmd())
	for _, one := range benchmarks() {
		cmd.AddCommand(newMeasureCmd(one))
	}
	return cmd
}

// benchmarks are the commands that measure.
func benchmarks() []*cobra.Command {
	return []*cobra.Command{
		{Use: "drain", Short: "Deliver a backlog, beside the barest COPY-to-produce pipe", Example: `  go run ./proof/bench drain
  go run ./proof/bench drain --broker nats --messages 500000 --bytes 1000 --json
  go run ./proof/bench drain --sweep batch=1000,5000,20000 --svg batch.svg
  go run ./proof/bench drain --sweep rtt=0s,1ms
  go run ./proof/bench drain --sweep held=off,on
  go run ./proof/bench drain --contenders relay,exactlyonce`, Long: `Write a backlog, then let each contender deliver it as a process of its own, several rounds.

  floor   one COPY of the table into the broker's own client: no cursor, no order, no retries
  fair    the same with the columns that the relay reads, in the order of its index, and with its headers
  relay   "outbox relay" with default settings; with --relays N, N relays on N shard groups

And, if they are named by --contenders:

  pgoutput     the write-ahead log, decoded, into the broker's own client: it confirms and remembers nothing
  replication  "outbox relay" with "replication: {}"; its ratio is to pgoutput if that takes part
  exactlyonce  "outbox relay" with "exactly_once: true"; its ratio is to relay if that takes part

--sweep repeats all of it for several values of one setting: ` + strings.Join(SweepNames(), ", ") + `.
A round trip (rtt) is made longer by a proxy in this process, which stands before every contender, also at
0s. Held transactions are open in another database and in the outbox, from before the backlog is written.`},
		{Use: "latency", Short: "Measure from COMMIT to the consumer, beside the barest poll", Example: `  go run ./proof/bench latency
  go run ./proof/bench latency --broker nats --rate 200 --for 30s --svg latency.svg`, Long: `Write at a steady rate, at times that are fixed beforehand, and measure from the return of COMMIT until a
consumer has the message.

  floor       every millisecond: SELECT … WHERE id > last ORDER BY id, into the broker's own client; it keeps
              no cursor, and loses what commits after a higher id was read
  relay       "outbox relay" with default settings
  inprocess   writers and relay in one process: a commit wakes the relay

And, if they are named by --contenders: pgoutput and replication, as of "bench drain".`},
		{Use: "write", Short: "Measure what the writer adds to a transaction, beside a bare INSERT", Example: `  go run ./proof/bench write --writers 8`, Long: `Run transactions that insert a business row and a message, as fast as they go.

  insert    the message by a bare INSERT
  writer    the message by outbox.Writer
  without   no message`},
		{Use: "strategies", Short: "Compare all strategies, and well-known articles' algorithms as they are written there", Example: `  go run ./proof/bench strategies --messages 100000
  go run ./proof/bench strategies --contenders snapshot,skiplocked,seed1-v1 --workers 1 --json
  go run ./proof/bench strategies --peers bin/outbox-peers --workload ours --rounds 1`, Long: `Give each contender a database of its own with the same backlog in its table, two topics of one partition in
Kafka, and measure the drain: time, CPU, write-ahead log, dead rows, the VACUUM afterwards. Then, with one
worker, the latency at a steady rate, and the longest gap between arrivals while a transaction with an id is
open in another database. Everything that arrives is checked.

  floor                   one COPY into the broker's client
  snapshot, replication   on the default table
  skiplocked, advisory,   on the articles' tables, by presets
  lease, xmin, serial
  seed…                   what the articles print, faults included. They promise nothing; those that publish one
                          message after the other get a smaller backlog
  watermill-offsets,      other libraries, if --peers names their program, which "make peers" builds
  watermill-queue, oagudo
  debezium                Debezium Server, if --debezium names the folder of its distribution. It needs Java 21

docs/strategies.md is the page to choose by.`},
	}
}

// newMeasureCmd adds the flags of a benchmark, and what runs it.
func newMeasureCmd(cmd *cobra.Command) *cobra.Command {
	cfg := Config{Bench: cmd.Name()}
	var asJSON bool
	var svg string
	flags := cmd.Flags()
	for _, s := range cfg.settings() {
		if f := flags.VarPF(s, s.name, "", s.help); s.Type() == "bool" {
			f.NoOptDefVal = "true"
		}
	}
	flags.BoolVar(&asJSON, "json", false, "one JSON object a line instead of a table: every run, then the medians")
	flags.StringVar(&svg, "svg", "", "write a plot of the medians to this `file`")
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cfg.Binary == "" {
			folder, err := os.MkdirTemp("", "pgoutbox-bench-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(folder)
			if cfg.Binary, err = rig.Build(cmd.Context(), folder); err != nil {
				return err
			}
		}
		var err error
		if cfg.Version, err = versionOf(cmd.Context(), cfg.Binary); err != nil {
			return err
		}
		cfg.Progress = cmd.ErrOrStderr()
		runs, err := Run(cmd.Context(), cfg)
		if cmd.Context().Err() != nil {
			err = errors.New("interrupted")
		}
		if len(runs) == 0 {
			return err
		}
		// After an error or Ctrl-C too: what was measured was measured.
		return errors.Join(err, showResults(cmd.OutOrStdout(), runs, asJSON, svg))
	}
	return cmd
}

// versionOf asks the outbox that is measured for its version.
func versionOf(ctx context.Context, binary string) (string, error) {
	out, err := exec.CommandContext(ctx, binary, "version", "--output", "json").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", binary, err)
	}
	var b struct {
		Version, Revision string
		Modified          bool
	}
	if err := json.Unmarshal(out, &b); err != nil {
		return "", fmt.Errorf("read the version of %s: %w", binary, err)
	}
	version := b.Version
	if b.Revision != "" {
		version += " " + b.Revision[:min(10, len(b.Revision))]
	}
	if b.Modified {
		version += " (modified)"
	}
	return version, nil
}

func showResults(w io.Writer, runs []Result, asJSON bool, svg string) error {
	medians := Summaries(runs)
	all := slices.Concat(runs, medians)
	var err error
	if asJSON {
		lines := json.NewEncoder(w)
		lines.SetEscapeHTML(false)
		for _, r := range all {
			err = errors.Join(err, lines.Encode(r))
		}
	} else {
		err = errors.Join(Table(w, all), RatioTable(w, Ratios(runs)))
	}
	if svg != "" {
		err = errors.Join(err, writePlot(svg, medians))
	}
	for _, r := range medians {
		if broken := r.Broken(); broken != "" {
			err = errors.Join(err, fmt.Errorf("%s broke a promise: %s", r.Contender, broken))
		}
	}
	return err
}

func writePlot(path string, medians []Result) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(Plot(file, medians), file.Close())
}

func newBenchReportCmd() *cobra.Command {
	var plots, page string
	cmd := &cobra.Command{
		Use:   "report FILE…",
		Short: "Make tables and plots from results",
		Long: `Read what "bench … --json" has written, one run in a file, and write a section of Markdown with a
table for each, and a plot beside it that is named like the file.`,
		Example: `  go run ./proof/bench drain --json > drain.jsonl
  go run ./proof/bench report drain.jsonl --plots docs/benchmarks --into docs/benchmarks.md`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(filepath.Clean(plots), 0o755); err != nil {
				return err
			}
			return Report(cmd.OutOrStdout(), args, plots, page)
		},
	}
	cmd.Flags().StringVar(&plots, "plots", ".", "`folder` for the plots")
	cmd.Flags().StringVar(&page, "into", "", "replace the results in this Markdown `file` (default: standard output)")
	return cmd
}

// newBenchPartCmd is the processes that benchmarks measure beside "outbox relay".
func newBenchPartCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "part",
		Short:  "A process of a benchmark; what it does is told on standard input",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return RunPart(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}
