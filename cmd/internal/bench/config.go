package bench

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// DrainConfig says what to drain. The zero value means the stated defaults.
type DrainConfig struct {
	Broker     string   // kafka or nats. Default kafka
	Messages   int      // default 1,000,000
	Bytes      int      // payload of each. Default 256
	Keys       int      // default 10,000
	Rounds     int      // how often each contender runs. Default 3
	Contenders []string // default floor and relay

	Postgres string // address of a superuser in an empty cluster; default: one is started
	Address  string // of the broker; default: one is started

	Binary   string    // the outbox binary, for the child processes. Required
	Progress io.Writer // what is going on, in words. Default: nobody is told
}

// Contenders of a drain.
const (
	Floor = "floor"
	Relay = "relay"
)

func (c *DrainConfig) defaults() error {
	if c.Broker == "" {
		c.Broker = "kafka"
	}
	for _, d := range []struct{ value, standard *int }{
		{&c.Messages, ptr(1_000_000)}, {&c.Bytes, ptr(256)}, {&c.Keys, ptr(10_000)}, {&c.Rounds, ptr(3)},
	} {
		if *d.value == 0 {
			*d.value = *d.standard
		}
	}
	if c.Contenders == nil {
		c.Contenders = []string{Floor, Relay}
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	var faults []error
	if c.Broker != "kafka" && c.Broker != "nats" {
		faults = append(faults, fmt.Errorf("broker %q: want kafka or nats", c.Broker))
	}
	if c.Messages < 1 || c.Bytes < 64 || c.Bytes > 1_000_000 || c.Keys < 1 || c.Rounds < 1 {
		faults = append(faults, errors.New("messages, keys and rounds must be positive, bytes 64 to 1,000,000"))
	}
	for _, name := range c.Contenders {
		if !slices.Contains([]string{Floor, Relay}, name) {
			faults = append(faults, fmt.Errorf("contender %q: want %s or %s", name, Floor, Relay))
		}
	}
	if c.Binary == "" {
		faults = append(faults, errors.New("the path of the binary is missing"))
	}
	return errors.Join(faults...)
}

func ptr[T any](v T) *T { return &v }
