package main

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/value"
)

// Config says what to measure. What is zero has the default of its benchmark: see settings.
type Config struct {
	Bench string // drain, latency, write or strategies

	Broker     string   // kafka or nats
	Address    string   // of the broker; "" starts one
	Postgres   string   // URL of a role that may create databases; "" starts a server
	Rounds     int      // how often each contender runs
	Contenders []string // those that take part
	Binary     string   // the program that has "relay". Required where there is a broker

	Messages, Bytes, Keys int
	Headers               int           // of each message of a drain
	Relays                int           // of a drain, each with a shard group of its own
	Workers               []int         // how many of each contender of a comparison work at once; each is a run
	Batch                 int           // of a relay, or in a comparison of the originals
	Viewers               int           // of the relay's console
	RTT                   time.Duration // added to every round trip to the broker
	Held                  bool          // keep transactions open elsewhere meanwhile
	Rates                 []int         // messages per second
	For                   time.Duration // of each run, or of the load that is measured. Negative: a comparison leaves it out
	WarmUp                time.Duration // of load before that
	Idle                  time.Duration // without load, before it
	Busy                  int           // cores that something else takes meanwhile
	HeldFor               time.Duration // how long a transaction is then held open elsewhere, under the same load
	Writers               int           // connections that write at once

	Workload string // see [Workloads]
	Peers    string // the program of other people's libraries, which take part if it is given
	Debezium string // the folder of Debezium Server's distribution, which takes part if it is given
	Sweep    string // name=value,value,…: repeats everything for each value of a setting

	Version  string    // of the binary, for the results
	Progress io.Writer // what is going on, in words. Default: not shown

	swept, value string // of a point of a sweep
	proxied      bool
}

// setting is a field that a person can set: its value is a pointer. It is the value of a flag.
type setting struct {
	name, standard string
	value          any
	low, high      int // of numbers; durations are in nanoseconds
	help           string
}

// Limits of settings.
const (
	minBytes = check.MinSize
	maxBytes = 1_000_000
	maxKeys  = 1_000_000
	endless  = int(1 << 62)
)

// settings are those of the config's benchmark.
func (c *Config) settings() []setting {
	all := []setting{
		{"database-url", "", &c.Postgres, 0, 0, "`URL` of a role that may create databases (default: start a PostgreSQL)"},
		{"rounds", "3", &c.Rounds, 1, endless, "how often each contender runs"},
		{"contenders", "", &c.Contenders, 0, 0, "`names` of those that take part (default: all that need nothing more)"},
		{"outbox", "", &c.Binary, 0, 0, "the outbox that is measured, a `file` (default: build it)"},
	}
	if c.Bench != "write" {
		all = append(all,
			setting{"broker", "kafka", &c.Broker, 0, 0, "kafka or nats"},
			setting{"address", "", &c.Address, 0, 0, "`address` of the broker (default: start one)"})
	}
	size := setting{"bytes", "256", &c.Bytes, minBytes, maxBytes, "payload of each message"}
	switch c.Bench {
	case "drain":
		return append(all, size,
			setting{"messages", "1000000", &c.Messages, 1, endless, "how many messages"},
			setting{"keys", "10000", &c.Keys, 1, maxKeys, "how many keys they are spread over"},
			setting{"headers", "", &c.Headers, 0, outbox.MaxHeaders, "headers of each message, of which the first is a traceparent"},
			setting{"relays", "1", &c.Relays, 1, 64, "relays, each with a shard group of its own"},
			setting{"batch", "", &c.Batch, 0, endless, "the relay's batch (default: its own default)"},
			setting{"viewers", "0", &c.Viewers, 0, 200, "how many look at the relay's console meanwhile"},
			setting{"rtt", "", &c.RTT, 0, endless, "make each round trip to the broker longer by this"},
			setting{"held", "", &c.Held, 0, 0, "keep transactions open elsewhere meanwhile"},
			setting{"sweep", "", &c.Sweep, 0, 0, "`name=value,value,…`: repeat for several values of one setting"})
	case "latency":
		return append(all, size,
			setting{"rate", "200,1000", &c.Rates, 1, 100_000, "messages per second; each rate is a run"},
			setting{"for", "10s", &c.For, 1, endless, "how long load is measured"},
			setting{"warm-up", "2s", &c.WarmUp, 0, endless, "how long there is load before that"},
			setting{"idle", "5s", &c.Idle, 0, endless, "how long there is none before that"},
			setting{"busy", "0", &c.Busy, 0, 64, "cores that something else takes meanwhile"})
	case "write":
		return append(all, size,
			setting{"for", "5s", &c.For, 1, endless, "how long each run takes"},
			setting{"writers", "4", &c.Writers, 1, 1000, "connections that write at once"})
	}
	size.low = minJSON
	return append(all, size,
		setting{"messages", "1000000", &c.Messages, 1, endless, "how many messages"},
		setting{"keys", "10000", &c.Keys, backlogWriters + 1, maxKeys, "how many keys they are spread over"},
		setting{"workers", "1,2", &c.Workers, 1, 16, "how many of each contender work at once; each number is a run"},
		setting{"batch", "", &c.Batch, 0, endless,
			"rows of a batch of the articles' algorithms; ours keep their defaults (default 100, with -workload ours 1000)"},
		setting{"workload", Seed, &c.Workload, 0, 0,
			"seed: two topics of one partition, small transactions; ours: one topic of two partitions, 100 rows a transaction"},
		setting{"peers", "", &c.Peers, 0, 0, "`file` of the program with other libraries"},
		setting{"debezium", "", &c.Debezium, 0, 0, "`folder` of Debezium Server's distribution"},
		setting{"rate", "100", &c.Rates, 1, 10_000, "messages per second while latency is measured"},
		setting{"for", "5s", &c.For, -endless, endless, "how long latency is measured; negative: not at all"},
		setting{"held", "10s", &c.HeldFor, 0, endless, "how long a transaction is open elsewhere"})
}

// String is the default, before anything is set.
func (s setting) String() string { return s.standard }

// Type is what the help calls the value.
func (s setting) Type() string {
	return strings.NewReplacer("*", "", "[]", "list of ", "time.D", "d").Replace(fmt.Sprintf("%T", s.value))
}

// Set reads the value from a text.
func (s setting) Set(text string) error {
	v := reflect.ValueOf(s.value).Elem()
	if on := text == "on"; v.Kind() == reflect.Bool && (on || text == "off") {
		text = strconv.FormatBool(on)
	}
	if v.Kind() != reflect.Slice {
		return s.set(v, text)
	}
	list := reflect.New(v.Type()).Elem()
	for part := range strings.SplitSeq(text, ",") {
		one := reflect.New(v.Type().Elem()).Elem()
		if err := s.set(one, part); err != nil {
			return err
		}
		list = reflect.Append(list, one)
	}
	v.Set(list)
	return nil
}

func (s setting) set(v reflect.Value, text string) error {
	if err := value.Set(v, text); err != nil {
		return fmt.Errorf("%s=%w", s.name, err)
	}
	return nil
}

// fill sets what is zero to its default.
func (s setting) fill() {
	if reflect.ValueOf(s.value).Elem().IsZero() && s.standard != "" {
		_ = s.Set(s.standard) // it is written above
	}
}

// fault reports whether a number is out of its range.
func (s setting) fault() error {
	v := reflect.ValueOf(s.value).Elem()
	values := []reflect.Value{v}
	if numbers, ok := s.value.(*[]int); ok {
		values = nil
		for i := range *numbers {
			values = append(values, v.Index(i))
		}
		if values == nil {
			return fmt.Errorf("%s: there is none", s.name)
		}
	}
	for _, n := range values {
		switch {
		case !n.CanInt() || int(n.Int()) >= s.low && int(n.Int()) <= s.high:
		case n.Type() == value.DurationType:
			return fmt.Errorf("%s %v: it is too short", s.name, n)
		case s.high == endless:
			return fmt.Errorf("%s %d: want at least %v", s.name, n.Int(), s.low)
		default:
			return fmt.Errorf("%s %d: want %v to %v", s.name, n.Int(), s.low, s.high)
		}
	}
	return nil
}

// SweepNames are the settings that Sweep may name.
func SweepNames() []string {
	return []string{"batch", "bytes", "headers", "backlog", "keys", "relays", "viewers", "rtt", "held"}
}

// Validate reports everything that is wrong with c at once.
func (c Config) Validate() error {
	_, err := c.prepare()
	return err
}

// prepare fills what is zero, reports all faults together, and returns a config for each point of the sweep.
func (c *Config) prepare() (points []Config, err error) {
	var faults []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	for _, s := range c.settings() {
		s.fill()
	}
	if c.Progress == nil {
		c.Progress = io.Discard
	}
	work, found := Workloads()[c.Workload]
	if c.Bench == "strategies" {
		settings.Default(&c.Batch, work.batch)
		need(c.Broker == "kafka", "broker %q: the comparison publishes to Kafka, as most of the articles do", c.Broker)
		need(found, "workload %q: want %s or %s", c.Workload, Seed, Ours)
	}
	need(c.Bench == "write" || c.Broker == "kafka" || c.Broker == "nats", "broker %q: want kafka or nats", c.Broker)
	need(c.Bench == "write" || c.Binary != "", "the path of the binary is missing")
	faults = append(faults, c.choose()...)
	points = []Config{*c}
	if c.Sweep != "" {
		points, err = c.points()
		faults = append(faults, err)
	}
	for i := range points {
		p := &points[i]
		before := len(faults)
		p.proxied = p.swept == "rtt" || p.RTT > 0
		need(!p.proxied || p.Address == "" || p.Broker == "nats",
			"the round trip to a Kafka can only be made longer where the benchmark starts it: leave out its address")
		for _, s := range p.settings() {
			if err := s.fault(); err != nil {
				faults = append(faults, err)
			}
		}
		if len(faults) > before {
			break // the others will have the same
		}
	}
	return points, errors.Join(faults...)
}

// points are the configs of a sweep.
func (c *Config) points() (points []Config, err error) {
	name, values, _ := strings.Cut(c.Sweep, "=")
	if !slices.Contains(SweepNames(), name) {
		return nil, fmt.Errorf("sweep %q: want one of %v", name, SweepNames())
	}
	if values == "" {
		return nil, fmt.Errorf("sweep %s has no values: want name=value,value,…", name)
	}
	field := name
	if name == "backlog" {
		field = "messages"
	}
	for value := range strings.SplitSeq(values, ",") {
		point := *c
		point.swept, point.value = name, value
		settings := point.settings()
		s := settings[slices.IndexFunc(settings, func(s setting) bool { return s.name == field })]
		if err := s.Set(value); err != nil {
			return nil, fmt.Errorf("sweep %w", err)
		}
		if s.name == "batch" && point.Batch == 0 {
			return nil, fmt.Errorf("sweep batch=%s: want a positive number", value)
		}
		points = append(points, point)
	}
	return points, nil
}

// choose names the contenders if they aren't, and returns what is wrong with them.
func (c *Config) choose() (faults []error) {
	var usual, all []string
	for _, one := range contenders(c.Bench) {
		all = append(all, one.name)
		if one.needs(c) == "" && !one.named {
			usual = append(usual, one.name)
		}
	}
	if c.Contenders == nil {
		c.Contenders = usual
	}
	for i, name := range c.Contenders {
		at := slices.Index(all, name)
		if at < 0 {
			faults = append(faults, fmt.Errorf("contender %q: want some of %s", name, strings.Join(all, ", ")))
		} else if why := contenders(c.Bench)[at].needs(c); why != "" {
			faults = append(faults, fmt.Errorf("contender %q: %s", name, why))
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
func (c *Config) order(round int) []string {
	n := round % len(c.Contenders)
	return slices.Concat(c.Contenders[n:], c.Contenders[:n])
}

// variants are the runs of a contender in a round: one for each rate of a latency, or number of workers of a
// comparison.
func (c *Config) variants() (all []Config) {
	switch c.Bench {
	case "latency":
		for _, rate := range c.Rates {
			one := *c
			one.Rates = []int{rate}
			all = append(all, one)
		}
	case "strategies":
		for _, workers := range c.Workers {
			one := *c
			one.Workers = []int{workers}
			all = append(all, one)
		}
	default:
		all = []Config{*c}
	}
	return all
}

func (c *Config) say(format string, args ...any) { fmt.Fprintf(c.Progress, format+"\n", args...) }
