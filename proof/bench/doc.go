// Package bench measures deliveries beside the best that the machine could do.
//
// [Drain] delivers a backlog beside the barest pipe from a COPY into the broker's own client; [Latency]
// measures from COMMIT to the consumer beside the barest poll; [Write] measures what the writer adds to a
// transaction beside a bare INSERT. Contenders take turns in one run on the same servers, because
// machines are noisy and only ratios within a run mean something. Every message of every run is checked.
//
// docs/benchmarks.md explains the method.
package main
