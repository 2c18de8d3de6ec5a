// Command brokerbench measures each broker's adapter beside a minimal loop over the same client library, and prints one
// table.
//
//	go run ./proof/brokerbench [-rounds 7] [broker ...]
//
// It runs BenchmarkAgainstLoop of the adapters' packages, one after the other; broker/internal/versus describes the
// measurement. Kafka and NATS are measured by "go run ./proof/bench drain". The exit code is 1 if a benchmark failed.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
)

// brokers are the packages below broker/ that have the benchmark.
var brokers = []string{"rabbitmq", "sqs", "sns", "redis", "http", "grpc", "pubsub"}

func main() {
	rounds := flag.Int("rounds", 7, "how many `rounds`; one takes about 1.8 s for each line of the table")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *rounds, flag.Args(), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, rounds int, names []string, table, progress io.Writer) error {
	if rounds < 1 {
		return fmt.Errorf("-rounds %d: at least one is needed", rounds)
	}
	if len(names) == 0 {
		names = brokers
	}
	for _, name := range names {
		if !slices.Contains(brokers, name) {
			return fmt.Errorf("there is no broker %q to measure; there are %s", name, strings.Join(brokers, ", "))
		}
	}
	var results []result
	var failed []error
	for _, name := range names {
		output, err := measure(ctx, name, rounds, progress)
		if err != nil {
			failed = append(failed, fmt.Errorf("measure %s: %w", name, err))
		}
		results = append(results, parse(output)...)
	}
	if err := write(table, results); err != nil {
		return err
	}
	return errors.Join(failed...)
}

// measure runs the benchmark of one package. Its output goes to progress, too.
func measure(ctx context.Context, name string, rounds int, progress io.Writer) (output string, err error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkAgainstLoop$",
		"-benchtime", fmt.Sprintf("%dx", rounds), "-timeout", "1h", "github.com/pgoutbox/outbox/broker/"+name)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // an interrupt, so that it stops the servers that it has started
	var all bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&all, progress), progress
	err = cmd.Run()
	return all.String(), err
}
