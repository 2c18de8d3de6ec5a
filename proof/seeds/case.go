package seeds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
	"github.com/pgoutbox/outbox/proof/rig"
)

// Workload is how messages come.
type Workload string

const (
	Trickle Workload = "trickle" // so many a second, while relays run
	Burst   Workload = "burst"   // as fast as writers can, while relays run
	Backlog Workload = "backlog" // before a relay starts
)

// Case is one history of a system: what is written, and how it is delivered.
type Case struct {
	System
	Workload Workload
	Messages int
	Rate     int // messages a second of a trickle
	Relays   int
	Kills    int // how many relays are killed with SIGKILL and started again, evenly spread over the messages
	Seed     uint64
	// Delivery is the section of that name of the relays' configuration. Default: their defaults.
	Delivery string
	// Repeats is how many messages a kill may have come again. Default: any number.
	Repeats int
	// Target is where the messages go, and are read back from. Default: a service of gRPC that notes them as they come.
	Target rig.Target
	// Broker is the address of the target's server.
	Broker string
}

// Result is what a case showed.
type Result struct {
	rig.Verdict
	Killed int
	Took   time.Duration
	Log    string // the ends of the relays' logs
}

func (c Case) String() string {
	return fmt.Sprintf("%s/%s/%d relays/%d kills", c.System, c.Workload, c.Relays, c.Kills)
}

// Broken returns what was promised and not kept.
func (c Case) Broken(r Result) error {
	promise := rig.Promise{Ordered: c.Ordered, Repeats: uint64(r.Killed * c.Repeats)}
	if r.Killed > 0 && c.Repeats == 0 {
		promise.Repeats = math.MaxUint64
	}
	return r.Verdict.Broken(promise)
}

const (
	// lease is that of relays that are killed, so that a successor needn't wait for long. Others have the default: a
	// machine that is busy may keep a relay from its lease, and then messages come twice without a fault.
	lease = 2 * time.Second
	// patience is how long nothing may happen.
	patience = time.Minute
)

// Run has a case happen on an empty database, with relays that are processes and keep their logs in dir. It returns an
// error if the case could not be judged, or if rows or messages are not as they should be; what was promised besides,
// [Case.Broken] tells.
func (c Case) Run(ctx context.Context, binary, dir, url string) (result Result, err error) {
	began := time.Now()
	checker := check.New(check.Config{})
	work := rig.LoadConfig{URL: url, Topic: cmp.Or(c.Topic, "events"), Keys: max(20, c.Messages/50),
		Writers: 3, Seed: c.Seed, Messages: c.Messages, Table: c.Load()}
	if c.Workload == Trickle {
		work.Rate = c.Rate
	}
	sink, err := openSink(&sink{destination: checker.Destination("default"), topic: work.Topic, system: c.System})
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, sink.close()) }()
	var target rig.Target = sink
	if c.Target != nil {
		target = c.Target
	}
	scenario := rig.Scenario{Workload: work, Backlog: c.Workload == Backlog, Target: target, Checker: checker,
		Binary: binary, Dir: filepath.Join(dir, databaseOf(url)), Starts: patience,
		Within: patience + time.Duration(c.Messages)*10*time.Millisecond}
	if err := os.MkdirAll(scenario.Dir, 0o700); err != nil {
		return result, err
	}
	for i := range c.Relays {
		scenario.Configs = append(scenario.Configs, c.config(rig.RelayName(i), url, target.YAML(c.Broker)))
	}
	h, err := scenario.Open(ctx)
	defer func() {
		err = errors.Join(err, h.Close())
		for _, r := range h.Relays {
			result.Log += r.Name + ": " + r.Log() + "\n"
		}
		if err != nil {
			err, result.Log = fmt.Errorf("%w\n%s", err, result.Log), ""
		}
	}()
	if err == nil {
		err = h.Start(ctx)
	}
	if err != nil {
		return result, err
	}
	for i := range c.Kills {
		h.Faults = append(h.Faults, func(ctx context.Context) error {
			if err := grown(ctx, target, (i+1)*c.Messages/(c.Kills+1)); err != nil {
				return fmt.Errorf("%w: %v", err, checker.Report())
			}
			result.Killed++
			victim := h.Relays[i%len(h.Relays)]
			return errors.Join(victim.Kill(), h.Restart(ctx, victim))
		})
	}
	verdict, err := h.Run(ctx)
	if err != nil {
		return result, err
	}
	result.Verdict, result.Took = verdict, time.Since(began)
	return result, errors.Join(sink.complaints(), c.inspect(ctx, h.Load))
}

// grown waits until the target has that many messages, for as long as more come.
func grown(ctx context.Context, target rig.Target, want int) error {
	for last := -1; ; {
		n := last
		err := rig.Until(ctx, patience, 5*time.Millisecond, "a message comes", func() (bool, error) {
			var err error
			n, err = target.Grown(ctx)
			return n > last || n >= want, err
		})
		if err != nil || n >= want {
			return err
		}
		last = n
	}
}

// config is the configuration of a relay.
func (c Case) config(name, url, broker string) string {
	text := fmt.Sprintf(`name: %s
database: {url: %q}
http: {listen: ""}
destinations:
  - name: events
    broker: %s
%s`, name, url, broker, c.Destination(databaseOf(url), "    ", c.Relays))
	if c.Kills > 0 {
		text += fmt.Sprintf("    lease: %s\n", lease)
	}
	if c.Delivery != "" {
		text += "    delivery: " + c.Delivery + "\n"
	}
	return text
}

func databaseOf(url string) string {
	name, _, _ := strings.Cut(url[strings.LastIndexByte(url, '/')+1:], "?")
	return name
}

// inspect looks at the rows, which are to be as their author's code would have left them.
func (c Case) inspect(ctx context.Context, load *rig.Load) error {
	var unlike int
	err := load.Pool().QueryRow(ctx, c.unlikeSQL()).Scan(&unlike)
	if err == nil && unlike > 0 {
		err = fmt.Errorf("%d rows are not as their author's code leaves them: %s", unlike, c.unlikeSQL())
	}
	return err
}

func (c Case) unlikeSQL() string {
	switch {
	case c.Default():
		return "SELECT (SELECT count(*) FROM outbox.holds) + (SELECT count(*) FROM outbox.dead_letters)"
	case c.Unlike == "":
		return "SELECT count(*) FROM (" + c.Pending + ") p"
	}
	return c.Unlike
}
