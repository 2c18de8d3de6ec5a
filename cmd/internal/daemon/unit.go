package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/cmd/internal/bounds"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/console"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/around"
	"github.com/pgoutbox/outbox/relay/registration"
	"github.com/pgoutbox/outbox/relay/retention"
	"github.com/pgoutbox/outbox/relay/unselected"
	"github.com/pgoutbox/outbox/schema"
)

// unit is one database with all that is done with it. Units share nothing but the process, its port, its log and its
// broker clients.
type unit struct {
	Database
	cfg     config.Config
	conn    *pgx.ConnConfig
	clients *brokers.Pool // the process's
	options Options
	logger  *slog.Logger
	served  bool // on the port

	sessions *bounds.Client // its part in the bound on connections
	yields   yielding       // whether it is to give them back
	quota    *bounds.Quota  // nil: it may send as much as it likes

	registration *registration.Registration

	retention *retention.Retention // nil if this relay leaves it to others

	metrics *metrics
	kept    atomic.Int64 // segments that could not be emptied
	watch   *watch
	brokers []relay.Broker
	parts   []part
	placed  *placed

	selection  *selection
	unselected *unselected.Recorder
	notify     *notifications
	traces     *traces

	api        *rest.API // nil if none is served
	page       *console.Console
	closePools func()

	stop   context.CancelFunc // set while it runs
	ending bool               // since another configuration has come
}

// part is one shard group of one destination.
type part struct {
	group       int
	destination config.Destination
	broker      *config.Opened
	selects     func(*outbox.Message) bool // nil: everything
	logger      *slog.Logger               // of the destination
}

// newUnit connects to nothing, and reports all faults together. The caller releases it.
func newUnit(db Database, m *metrics, clients *brokers.Pool, options Options) (*unit, error) {
	u := &unit{Database: db, cfg: db.Config, conn: db.Conn, clients: clients, options: options, logger: options.Logger}
	if options.Several {
		u.logger = u.logger.With("database", db.Name)
	}
	u.metrics = m
	u.bound()
	if err := u.assemble(); err != nil {
		u.release()
		return nil, err
	}
	return u, nil
}

// displayName is the database's name in commands and notifications, "" if there is only one.
func (u *unit) displayName() string {
	if u.options.Several {
		return u.Name
	}
	return ""
}

func (u *unit) assemble() error {
	monitor := u.aside()
	monitor.RuntimeParams["application_name"] = "outbox monitor " + u.cfg.Name
	connect := func(ctx context.Context) (*pgx.Conn, error) { return connect.Open(ctx, monitor, "the configuration") }
	u.watch = newWatch(u.cfg.Name, u.metrics, u.logger, connect)
	u.watch.database, u.watch.crowded = u.displayName(), u.sessions.Crowded
	if !u.metrics.shared {
		newStates(u.metrics.book, func() map[string]health.Verdict { return u.watch.health().Destinations })
	}

	if u.cfg.Retention.Enabled && readsOutbox(u.cfg) {
		retention, err := retention.New(u.conn, retention.Config{
			Interval: u.cfg.Retention.Interval, Lend: u.lend, Observe: u.retained, Logger: u.logger})
		if err != nil {
			return err
		}
		u.retention = retention
	}

	u.notify = newNotifications(u.cfg, u.displayName(), u.metrics, u.logger)
	u.unselected = unselected.New(u.conn, u.cfg.Name, u.logger)
	u.selection = newSelection(u.cfg, u.metrics.unselected, u.unselected.Note, u.logger)
	var faults []error
	for i, destination := range u.cfg.Destinations {
		rules, err := destination.Table().Parse()
		if err != nil {
			faults = append(faults, fmt.Errorf("destination %s: route: %w", destination.Name, err))
			continue
		}
		logger := relay.Bounded(u.logger) // for all groups, and what they read and send with
		var shared *config.Opened         // by all groups, unless it is coupled to one
		for group := range destination.ShardGroups {
			p := part{group: group, destination: destination, broker: shared, selects: u.selection.filter(i, rules), logger: logger}
			if shared == nil {
				p.broker, err = destination.Open(brokers.Opening{Stdout: u.options.Stdout, Group: group, Pool: u.clients,
					Logger: logger.With("destination", destination.Name)})
				if err != nil {
					faults = append(faults, fmt.Errorf("destination %s: %w", destination.Name, err))
					break
				}
				u.brokers = append(u.brokers, p.broker)
				if p.broker.Coupled == nil {
					shared = p.broker
				}
			}
			u.parts = append(u.parts, p)
			u.watch.starting(destination.Name, group, destination.Source == nil)
		}
	}
	u.quota = bounds.NewQuota(bounds.Amount{Messages: int64(u.cfg.Quota.Messages), Bytes: int64(u.cfg.Quota.Bytes)}, len(u.parts))
	u.placed = newPlaced(len(u.parts), !u.options.placed)
	u.announce(func(int) bool { return false })
	return errors.Join(faults...)
}

// closeWithin bounds how long closing the brokers takes: a call that hangs would hold up the end of the process.
const closeWithin = 10 * time.Second

func (u *unit) closeBrokers() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, b := range u.brokers {
			if err := b.Close(); err != nil {
				u.logger.Warn("broker closed badly", "error", err)
			}
		}
	}()
	select {
	case <-closed:
	case <-time.After(closeWithin):
		u.logger.Warn("brokers are left open, closing them hangs")
	}
}

// run delivers until ctx ends or every part has given up: relays drain and give their leases back. What is not released
// then lasts until release: it is served until the port is closed.
func (u *unit) run(ctx context.Context) error {
	background, endBackground := context.WithCancel(context.WithoutCancel(ctx))
	var workers sync.WaitGroup
	defer workers.Wait()
	defer endBackground()
	if u.served {
		workers.Go(func() { u.watch.run(background) })
	}
	workers.Go(func() { u.notify.run(background) })
	var err error
	for err == nil && u.placed.await(ctx) {
		err = u.work(ctx)
	}
	_ = u.unselected.Close() // it is in the log
	return err
}

// work uses the database until ctx ends or no part is here any more.
func (u *unit) work(ctx context.Context) error {
	if err := u.awaitDatabase(ctx); err != nil {
		return nil // ctx has ended
	}
	if u.registration != nil {
		u.watch.borrows(u.registration.Lend)
		defer u.watch.borrows(nil)
	}
	awake, end := u.untilDormant(ctx)
	turn, stop := u.yields.until(awake)
	err := u.deliver(turn)
	yields := ctx.Err() == nil && errors.Is(context.Cause(turn), errYield)
	rests := ctx.Err() == nil && errors.Is(context.Cause(turn), errDormant)
	stop()
	end()
	var dormant *registration.Dormant
	if ctx.Err() == nil && (yields || rests || !u.placed.fixed) && u.registration != nil {
		u.watch.borrows(nil)
		dormant = u.registration.Dormant()
		u.registration.Close()
		u.registration = nil
	}
	if rests && err == nil && dormant != nil {
		u.sleep(ctx, dormant)
		return nil
	}
	if yields {
		return u.yield(ctx)
	}
	return err
}

// release gives up what a unit that has ended, or has not begun, still has.
func (u *unit) release() {
	u.endStreams()
	if u.closePools != nil {
		u.closePools()
	}
	if u.registration != nil {
		u.registration.Close()
	}
	u.closeBrokers()
	u.metrics.close()
}

// endStreams ends what a client of the port would read for ever.
func (u *unit) endStreams() {
	if u.api != nil {
		u.api.Close()
	}
	if u.page != nil {
		u.page.Close()
	}
}

const (
	// beginWithin bounds one attempt to begin, on a database that hangs: a namesake's lease is waited for besides.
	beginWithin = 30 * time.Second
	// beginPause is the first pause between two, which doubles up to longestBeginPause.
	beginPause        = time.Second
	longestBeginPause = 15 * time.Second
	// beginAtOnce is how many databases a member of a fleet begins with at once, as when another one is dead.
	beginAtOnce = 32
)

// awaitDatabase tries to begin until it can. The verdict has the reason meanwhile, and other databases notice nothing.
func (u *unit) awaitDatabase(ctx context.Context) error {
	for pause := beginPause; u.registration == nil && u.watch.ofOutbox(); pause = min(2*pause, longestBeginPause) {
		choices, changed := u.placed.now()
		if u.announce(func(int) bool { return false }); !slices.ContainsFunc(choices, here) {
			return nil
		}
		end, err := u.takeTurn(ctx)
		if err != nil {
			return err
		}
		attempt, cancel := context.WithTimeout(ctx, beginWithin+u.longestLease())
		err = u.checkDatabase(attempt)
		if err == nil {
			err = u.register(attempt)
		}
		cancel()
		end()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for i, p := range u.parts {
			if here(choices[i]) {
				u.watch.note(p.destination.Name, p.group, relay.StateBroken, err)
			}
		}
		u.logger.Warn("the database can't be used yet, and is tried again", "error", err, "pause", pause)
		select {
		case <-time.After(pause/2 + rand.N(pause)): // databases of one server don't come back together
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// takeTurn waits until not too many units begin at once.
func (u *unit) takeTurn(ctx context.Context) (end func(), err error) {
	if u.options.starting == nil {
		return func() {}, nil
	}
	select {
	case u.options.starting <- struct{}{}:
		return func() { <-u.options.starting }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// register takes the name of this relay.
func (u *unit) register(ctx context.Context) (err error) {
	u.registration, err = registration.Register(ctx, u.conn, u.cfg.Name, registration.Config{
		Version: u.options.Version,
		Lease:   u.longestLease(),
		Logger:  u.logger,
	})
	return err
}

// lend runs f with the connection of the registration, which is there when it is called.
func (u *unit) lend(ctx context.Context, f func(*pgx.Conn) error) error {
	return u.registration.Lend(ctx, f)
}

// longestLease is for how long a silent namesake must be believed to deliver.
func (u *unit) longestLease() (longest time.Duration) {
	for _, c := range u.cfg.Destinations {
		longest = max(longest, c.Lease)
	}
	return longest
}

// purge deletes the delivered rows of a table that asks for it, until ctx ends.
func (u *unit) purge(ctx context.Context, c config.Destination) {
	p, err := newPurge(u.conn, c, u.logger)
	if err == nil {
		err = p.Run(ctx)
	}
	if err != nil {
		u.logger.Error("delivered rows are not deleted", "destination", c.Name, "error", err)
	}
}

func (u *unit) runPart(ctx context.Context, p part) error {
	c := p.destination
	yields := newYielding()
	share := u.options.limits.memory.Share(yields.ask)
	defer share.Close()
	logger := p.logger
	if c.ShardGroups > 1 {
		logger = logger.With("shard_group", p.group)
	}
	read := c
	read.Delivery.MaxInFlightBytes = scalar.Size(4 * u.options.limits.memory.PageBytes(c.PageBytes())) // a page is a quarter
	source, err := OpenSource(u.conn, u.cfg.Name, u.registration, read, p.group, logger)
	if err != nil {
		return err
	}
	if table, ok := source.(accountable); ok {
		strategy, m := c.Source.Resolve()
		own := health.OwnTable{Destination: c.Name, Group: p.group, Groups: c.ShardGroups, Owner: tableOwner(u.cfg.Name, c.Name),
			Strategy: strategy,
			Mapping:  m, LagObjective: c.LagObjective, Settings: settingsOf(c), BeganAt: time.Now()}
		u.watch.reads(c.Name, p.group, func() health.OwnTable {
			now := own
			now.Account = table.Account()
			return now
		})
	}
	if p.broker.Coupled != nil {
		source = p.broker.Coupled.Source(source)
	}
	source = u.limit(source, share)
	engine := paced(c, u.cfg.Quota, len(u.parts))
	engine.Select, engine.Stripes, engine.Logger = p.selects, p.broker.Calls, logger
	engine.Remedy = remedy(u.displayName(), c)
	engine.Observer = u.traces.observer(c, u.notify.observer(c.Name, u.watch.history.Observer(c.Name,
		u.metrics.observer(c.Name, p.group, func(state relay.State, err error) { u.watch.note(c.Name, p.group, state, err) }))))
	inFlight := u.metrics.inFlight.WithLabelValues(u.metrics.label(c.Name))
	calls := &calls{}
	broker := around.InFlight(p.broker.Broker, func(n int) { inFlight.Add(float64(n)); calls.add(n) })
	r, err := relay.New(source, withQuota(broker, u.quota), engine)
	if err != nil {
		return err
	}
	return runInTurns(ctx, r, yields, calls)
}

// checkDatabase refuses what no waiting cures, while somebody still looks at the terminal.
func (u *unit) checkDatabase(ctx context.Context) error {
	conn, err := connect.Open(ctx, u.conn, u.Origin)
	if err != nil {
		return err
	}
	defer connect.Close(conn)
	// If this fails, Check does too, and says what a relay needs.
	if state, err := schema.Status(ctx, conn); err == nil && state.Standby {
		return fmt.Errorf("PostgreSQL at %s:%d is a hot standby, from which messages would be lost: connect to the primary "+
			"(with several hosts in the URL, add target_session_attrs=read-write)", u.conn.Host, u.conn.Port)
	}
	return u.migratable(schema.Check(ctx, conn))
}
