package seeds

import (
	"context"
	"errors"
	"fmt"
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
	Report check.Report
	Killed int
	Took   time.Duration
	Log    string // the ends of the relays' logs
}

func (c Case) String() string {
	return fmt.Sprintf("%s/%s/%d relays/%d kills", c.System, c.Workload, c.Relays, c.Kills)
}

// Broken returns what was promised and not kept.
func (c Case) Broken(r Result) error {
	broken := func(n uint64, what string) error {
		if n == 0 {
			return nil
		}
		return fmt.Errorf("%d %s: %v", n, what, r.Report)
	}
	errs := []error{broken(r.Report.Lost, "lost"), broken(r.Report.Phantom, "phantom"), broken(r.Report.DeadLettered, "dead")}
	if c.Ordered {
		errs = append(errs, broken(r.Report.Inverted, "inverted"))
	}
	if r.Report.Duplicated > uint64(r.Killed*c.Repeats) && (r.Killed == 0 || c.Repeats > 0) {
		errs = append(errs, broken(r.Report.Duplicated, "duplicated"))
	}
	return errors.Join(errs...)
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
func (c Case) Run(ctx context.Context, binary, dir, url string) (_ Result, err error) {
	began := time.Now()
	checker := check.New(check.Config{})
	keys := max(20, c.Messages/50)
	cfg := rig.LoadConfig{URL: url, Topic: c.Topic, Keys: keys, Writers: 3, Seed: c.Seed, Messages: c.Messages, Table: c.Load()}
	if cfg.Topic == "" {
		cfg.Topic = "events"
	}
	if c.Workload == Trickle {
		cfg.Rate = c.Rate
	}
	load, err := rig.NewLoad(ctx, cfg)
	if err != nil {
		return Result{}, err
	}
	defer load.Close()
	sink, err := openSink(&sink{destination: checker.Destination("default"), topic: cfg.Topic, system: c.System})
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, sink.close()) }()
	broker := fmt.Sprintf("{grpc: {target: %q}}", sink.address)
	if c.Target != nil {
		broker = c.Target.YAML(c.Broker)
		reader, err := c.Target.Read(ctx)
		if err != nil {
			return Result{}, err
		}
		stop := follow(ctx, reader, sink.destination)
		defer func() { err = errors.Join(err, stop()) }()
	}

	load.Start()
	if c.Workload == Backlog {
		if err := load.Wait(patience); err != nil {
			return Result{}, err
		}
	}
	var relays []*rig.Relay
	defer func() {
		for _, r := range relays {
			err = errors.Join(err, r.Kill())
		}
		if err != nil {
			for _, r := range relays {
				err = fmt.Errorf("%w\n%s: %s", err, r.Name, r.Log())
			}
		}
	}()
	for i := range c.Relays {
		r, err := c.start(binary, dir, url, broker, i)
		if err != nil {
			return Result{}, err
		}
		relays = append(relays, r)
	}

	for _, r := range relays {
		if err := r.Up(ctx, patience); err != nil {
			return Result{}, err
		}
	}
	var result Result
	progress := func(done func(check.Counts) bool) error {
		err := until(ctx, func() (bool, uint64, error) {
			counts := checker.Counts()
			return done(counts), counts.Delivered + counts.Duplicated, nil
		})
		if errors.Is(err, errStill) {
			err = fmt.Errorf("what was committed does not come: %w: %v", err, checker.Report())
		}
		return err
	}
	for ; result.Killed < c.Kills; result.Killed++ {
		at := uint64((result.Killed + 1) * c.Messages / (c.Kills + 1))
		if err := progress(func(n check.Counts) bool { return n.Delivered >= at }); err != nil {
			return result, err
		}
		victim := relays[result.Killed%len(relays)]
		if err := errors.Join(victim.Kill(), victim.Start(), victim.Up(ctx, patience)); err != nil {
			return result, err
		}
	}
	if err := load.Wait(patience); err != nil {
		return result, err
	}
	if _, err := load.Tell(ctx, checker, rig.Losses{}); err != nil {
		return result, err
	}
	if err := progress(func(n check.Counts) bool { return n.Outstanding == 0 }); err != nil {
		return result, err
	}
	// What a relay that was killed had delivered and not settled, its successor finds in the table and delivers again.
	if result.Killed > 0 {
		if err := until(ctx, func() (bool, uint64, error) {
			unlike, err := c.unlike(ctx, load)
			return unlike == 0, unlike, err
		}); err != nil {
			return result, errors.Join(err, c.inspect(ctx, load))
		}
	}
	for _, r := range relays { // in good order, so that what was accepted is settled
		if err := r.Stop(time.Minute); err != nil {
			return result, err
		}
	}
	result.Report, result.Took = checker.Report(), time.Since(began)
	for _, r := range relays {
		result.Log += r.Name + ": " + r.Log() + "\n"
	}
	return result, errors.Join(sink.complaints(), c.inspect(ctx, load))
}

// errStill means that nothing has happened for too long.
var errStill = fmt.Errorf("nothing has happened for %v", patience)

// until waits until it is done, for as long as what is seen changes now and then.
func until(ctx context.Context, look func() (done bool, seen uint64, err error)) error {
	last, at := uint64(0), time.Now()
	for {
		done, seen, err := look()
		if done || err != nil {
			return err
		}
		if seen != last {
			last, at = seen, time.Now()
		}
		if time.Since(at) > patience {
			return errStill
		}
		if err := rig.Pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// follow tells a destination of what comes to a target, until stop is called.
func follow(ctx context.Context, reader rig.Reader, to *check.Destination) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		defer reader.Close()
		for {
			payloads, err := reader.Next(ctx)
			for _, p := range payloads {
				_, _ = to.Payload(rig.Unwrap(p)) // what doesn't decode is counted
			}
			if err != nil || ctx.Err() != nil {
				if ctx.Err() != nil {
					err = nil
				}
				ended <- err
				return
			}
		}
	}()
	return func() error { cancel(); return <-ended }
}

// start starts the relay of that number.
func (c Case) start(binary, dir, url, broker string, i int) (*rig.Relay, error) {
	database := url[strings.LastIndexByte(url, '/')+1:]
	if at := strings.IndexByte(database, '?'); at >= 0 {
		database = database[:at]
	}
	name := fmt.Sprint("relay-", i+1)
	folder := filepath.Join(dir, database)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	text := fmt.Sprintf(`name: %s
database: {url: %q}
http: {listen: ""}
destinations:
  - name: events
    broker: %s
%s`, name, url, broker, c.Destination(database, "    ", c.Relays))
	if c.Kills > 0 {
		text += fmt.Sprintf("    lease: %s\n", lease)
	}
	if c.Delivery != "" {
		text += "    delivery: " + c.Delivery + "\n"
	}
	return rig.StartRelay(binary, folder, name, text)
}

// inspect looks at the rows, which are to be as their author's code would have left them.
func (c Case) inspect(ctx context.Context, load *rig.Load) error {
	unlike, err := c.unlike(ctx, load)
	if err == nil && unlike > 0 {
		err = fmt.Errorf("%d rows are not as their author's code leaves them: %s", unlike, c.unlikeSQL())
	}
	return err
}

func (c Case) unlike(ctx context.Context, load *rig.Load) (n uint64, err error) {
	err = load.Pool().QueryRow(ctx, c.unlikeSQL()).Scan(&n)
	return n, err
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
