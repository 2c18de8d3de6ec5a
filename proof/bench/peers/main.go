// Command peers runs other people's outbox libraries as contenders of "go run ./proof/bench strategies": a program
// of its own, so that what is released has none of them in it.
//
//	go build -o bin/outbox-peers ./proof/bench/peers
//	go run ./proof/bench strategies --peers bin/outbox-peers
//
// Each reads a table as its documentation lays it out, and publishes through the Kafka client that the other
// contenders use. The settings are the ones that measured best, and stand in docs/strategies.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:], os.Stdin, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// options say what a library works on.
type options struct {
	library  string
	database string // URL
	broker   string // of Kafka
	batch    int    // rows that it reads at once
}

// run is a library at work: it calls started when it begins, and returns when ctx ends.
type run func(ctx context.Context, o options, to *kgo.Client, started func()) error

func libraries() map[string]run {
	return map[string]run{
		"watermill-offsets": watermillOffsets,
		"watermill-queue":   watermillQueue,
		"oagudo":            oagudo,
	}
}

// command works until ctx or in ends: whoever started it is gone then.
func command(ctx context.Context, args []string, in io.Reader, log io.Writer) error {
	var o options
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(log)
	flags.StringVar(&o.library, "library", "", "watermill-offsets, watermill-queue or oagudo")
	flags.StringVar(&o.database, "database", "", "URL of the database with its table")
	flags.StringVar(&o.broker, "broker", "", "address of Kafka")
	flags.IntVar(&o.batch, "batch", 1000, "rows that it reads at once")
	if err := flags.Parse(args); err != nil {
		return err
	}
	library, found := libraries()[o.library]
	if !found {
		return fmt.Errorf("there is no library %q", o.library)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // it ends with the process, at the latest
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	// As the articles' algorithms have it: nobody waits for more records while a library waits for its answer.
	client, err := kgo.NewClient(kgo.SeedBrokers(o.broker), kgo.ProducerLinger(0))
	if err != nil {
		return fmt.Errorf("Kafka: %w", err)
	}
	defer client.Close()
	logger := slog.New(slog.NewJSONHandler(log, nil))
	if err := library(ctx, o, client, func() { logger.Info("started") }); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", o.library, err)
	}
	return nil
}
