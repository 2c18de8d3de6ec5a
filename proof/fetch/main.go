// Command fetch downloads the servers that tests, demo and benchmark run, into the cache folder in which package
// servers looks for them.
//
//	go run ./proof/fetch all
//	go run ./proof/fetch postgres@18.6.0 kafka nats
//	go run ./proof/fetch debezium
//	go run ./proof/fetch tools
//	go run ./proof/fetch -list
//
// Debezium Server is not part of all, because only a comparison of strategies needs it, nor are the tools, which check
// what is packaged.
//
// Existing servers aren't fetched again, and are always complete: each server is unpacked elsewhere and moved into
// place in one step.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/command"
)

func main() {
	command.Main("fetch", func(ctx context.Context, args []string, out io.Writer) error { return run(ctx, args, out, os.Stderr) })
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("fetch", flag.ContinueOnError)
	flags.SetOutput(progress)
	list := flags.Bool("list", false, "show what there is and what would be fetched, and fetch nothing")
	path := flags.String("path", "", "print the path of this tool, and fetch nothing")
	flags.Usage = func() {
		fmt.Fprintf(progress, "usage: fetch [-list] %s\n", strings.Join(names(), "|")+"|tools|all ...")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	cache, err := servers.CacheDir()
	if err != nil {
		return err
	}
	if *list {
		return show(out, cache)
	}
	if *path != "" {
		found, err := servers.FindTool(*path)
		if err == nil {
			fmt.Fprintln(out, found)
		}
		return err
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return errors.New("nothing named to fetch")
	}
	wanted, err := parse(flags.Args())
	if err != nil {
		return err
	}
	f := fetcher{cache: cache, progress: progress}
	var errs []error
	for _, w := range wanted { // if one fails, the others are still fetched
		if err := w.fetch(f, ctx); err != nil {
			errs = append(errs, err)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// target is something to fetch.
type target struct {
	name  string
	fetch func(fetcher, context.Context) error
	// title and find tell a person whether it is there, and where. find may be nil.
	title string
	find  func() (where string, err error)
}

// all lists the targets of "all".
func all() []target {
	runBy := func(by, what string, err error) (string, error) { return what + ", run by " + by, err }
	of := func(path, _ string, err error) (string, error) { return path, err }
	var targets []target
	for _, version := range servers.PostgresVersions() {
		targets = append(targets, postgres(version))
	}
	return append(targets,
		target{"kafka", fetcher.kafka, "Kafka " + servers.KafkaVersion, func() (string, error) { return runBy(servers.FindKafka()) }},
		target{"nats", fetcher.nats, "NATS", servers.FindNATS},
		target{"elasticmq", fetcher.elasticMQ, "ElasticMQ " + servers.ElasticMQVersion,
			func() (string, error) { return runBy(servers.FindElasticMQ()) }},
		target{"moto", fetcher.moto, "moto " + servers.MotoVersion, func() (string, error) { return runBy(servers.FindMoto()) }},
		packaged("Redis", "redis-server", servers.FindRedis),
		packaged("RabbitMQ", "rabbitmq-server", func() (string, error) { return of(servers.FindRabbitMQ()) }),
		packaged("PgBouncer", "pgbouncer", servers.FindPgBouncer),
		packaged("Prometheus", "prometheus", func() (string, error) { return of(servers.FindPrometheus()) }),
		packaged("Chromium", "chromium", servers.FindChromium),
		target{name: "readers", fetch: fetcher.readers},
		target{name: "axe", fetch: fetcher.axe})
}

// extra lists the targets that must be named.
func extra() []target {
	return append(tools(), target{name: "debezium", fetch: fetcher.debezium})
}

func names() (names []string) {
	for _, t := range slices.Concat(all(), extra()) {
		names = append(names, t.name)
	}
	return names
}

// parse turns arguments into targets: names of all, postgres@VERSION or postgres@MAJOR, tools or all.
func parse(args []string) ([]target, error) {
	var targets []target
	known := map[string]target{}
	for _, t := range slices.Concat(all(), extra()) {
		known[t.name] = t
	}
	for _, arg := range args {
		t, ok := known[arg]
		version, isPostgres := strings.CutPrefix(arg, "postgres@")
		switch {
		case arg == "all":
			targets = append(targets, all()...)
		case arg == "tools":
			targets = append(targets, tools()...)
		case ok:
			targets = append(targets, t)
		case isPostgres && strings.Count(version, ".") == 2:
			targets = append(targets, postgres(version))
		case isPostgres && !strings.Contains(version, "."):
			version, err := newest(version)
			if err != nil {
				return nil, err
			}
			targets = append(targets, postgres(version))
		default:
			return nil, fmt.Errorf("can't fetch %q: give %s, or all", arg, strings.Join(names(), ", "))
		}
	}
	return targets, nil
}

// newest returns the version that is fetched for a major version.
func newest(major string) (string, error) {
	for _, version := range servers.PostgresVersions() {
		if strings.HasPrefix(version, major+".") {
			return version, nil
		}
	}
	return "", fmt.Errorf("no PostgreSQL %s is known; give one of %s, or three numbers, as in postgres@18.6.0",
		major, strings.Join(servers.PostgresVersions(), ", "))
}

// show prints what package servers finds, and what fetch would install.
func show(out io.Writer, cache string) error {
	fmt.Fprintf(out, "cache: %s\n", cache)
	installed, err := servers.PostgresInstallations()
	if err != nil {
		return err
	}
	for _, i := range installed {
		fmt.Fprintf(out, "PostgreSQL %s: %s\n", i.Version, i.BinDir)
	}
	for _, version := range servers.PostgresVersions() {
		major, _, _ := strings.Cut(version, ".")
		if _, _, err := servers.FindPostgres(major); errors.Is(err, servers.ErrNotFound) {
			fmt.Fprintf(out, "PostgreSQL %s: not here, fetch postgres@%s\n", major, version)
		} else if err != nil {
			return err
		}
	}
	for _, t := range slices.Concat(all(), tools()) {
		if t.find == nil {
			continue
		}
		switch where, err := t.find(); {
		case errors.Is(err, servers.ErrNotFound):
			fmt.Fprintf(out, "%s: %v, fetch %s\n", t.title, err, t.name)
		case err != nil:
			return err
		default:
			fmt.Fprintf(out, "%s: %s\n", t.title, where)
		}
	}
	return nil
}
