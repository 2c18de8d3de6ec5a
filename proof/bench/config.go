package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Names of contenders.
const (
	Floor     = "floor"     // the barest thing that moves messages at all
	Relay     = "relay"     // "outbox relay" with default settings
	InProcess = "inprocess" // writer and relay in one process

	Replication = "replication" // "outbox relay" that reads the write-ahead log
	Pgoutput    = "pgoutput"    // the barest thing that reads it

	ExactlyOnce = "exactlyonce" // "outbox relay" that delivers in transactions of Kafka

	Insert  = "insert"  // a bare INSERT into the outbox
	Without = "without" // no outbox row at all
	Writer  = "writer"  // outbox.Writer
)

// Common is what every benchmark needs to know.
type Common struct {
	Broker     string   // kafka or nats. Default kafka
	Rounds     int      // how often each contender runs. Default 3
	Contenders []string // who takes part. Default: all

	Postgres string // URL of a role that may create databases; "" starts a server
	Address  string // of the broker; "" starts one

	Binary   string    // the outbox binary, for the child processes. Required
	Version  string    // of the binary, for the results
	Progress io.Writer // what is going on, in words. Default: nobody is told
}

// defaults fills what is zero and returns the faults.
func (c *Common) defaults(contenders ...string) []error { return c.choose(contenders, nil) }

// choose is defaults with more contenders, who only take part when they are named.
func (c *Common) choose(contenders, more []string) []error {
	if c.Broker == "" {
		c.Broker = "kafka"
	}
	if c.Rounds == 0 {
		c.Rounds = 3
	}
	if c.Contenders == nil {
		c.Contenders = contenders
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	var faults []error
	if c.Broker != "kafka" && c.Broker != "nats" {
		faults = append(faults, fmt.Errorf("broker %q: want kafka or nats", c.Broker))
	}
	if c.Rounds < 1 {
		faults = append(faults, fmt.Errorf("%d rounds: want at least one", c.Rounds))
	}
	all := slices.Concat(contenders, more)
	for i, name := range c.Contenders {
		if !slices.Contains(all, name) {
			faults = append(faults, fmt.Errorf("contender %q: want some of %s", name, strings.Join(all, ", ")))
		}
		if slices.Contains(c.Contenders[:i], name) {
			faults = append(faults, fmt.Errorf("contender %q is named twice", name))
		}
	}
	if len(c.Contenders) == 0 {
		faults = append(faults, errors.New("no contender is named"))
	}
	return faults
}

// order is the contenders as they take turns in a round, from 0: each round begins with another one, so
// that none always finds the caches that the same other one has left.
func (c *Common) order(round int) []string {
	n := round % len(c.Contenders)
	return slices.Concat(c.Contenders[n:], c.Contenders[:n])
}

func (c *Common) say(format string, args ...any) { fmt.Fprintf(c.Progress, format+"\n", args...) }

func setDefault[T comparable](value *T, standard T) {
	var zero T
	if *value == zero {
		*value = standard
	}
}
