package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/proof/rig"
)

// fault is something that goes wrong, with parameters from the run's random numbers.
type fault struct {
	kind string
	// repeats is how many times it may make relays forget what is in flight. Only such messages may be delivered twice.
	repeats int
	// inject breaks something. Messages must flow within a given time after it has returned; then after, if there is
	// one, repairs what is still broken.
	inject injection
	within time.Duration // default: flowWithin
	// disk means that it needs a file system that can be filled up, pooler that it needs a PgBouncer, heir that it
	// needs a relay that continues while another doesn't.
	disk, pooler, heir bool
}

type injection = func(ctx context.Context, r *run) (after undo, err error)

type undo = func(context.Context) error

// step is one event of a run.
type step = func(context.Context, *run) error

// passing breaks something for some milliseconds: least, and up to more on top.
func passing(wrong step, least, more int, right step) injection {
	return func(ctx context.Context, r *run) (undo, error) {
		if err := wrong(ctx, r); err != nil {
			return nil, err
		}
		return nil, errors.Join(r.while(ctx, least, more), right(ctx, r))
	}
}

// often breaks something five times, up to apart milliseconds apart.
func often(apart int, wrong step) injection {
	return func(ctx context.Context, r *run) (undo, error) {
		for range 5 {
			if err := errors.Join(wrong(ctx, r), r.while(ctx, 0, apart)); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
}

// toOwner does something to the relay that delivers.
func toOwner(wrong func(context.Context, *run, *rig.Relay) (undo, error)) injection {
	return func(ctx context.Context, r *run) (undo, error) {
		owner, err := r.owner(ctx)
		if err != nil {
			return nil, err
		}
		return wrong(ctx, r, owner)
	}
}

// while waits for some milliseconds: least, and up to more on top.
func (r *run) while(ctx context.Context, least, more int) error {
	return rig.Pause(ctx, time.Duration(least+r.rng.IntN(more))*time.Millisecond)
}

// line is a connection of the relays.
type line func(*run) *testnet.Proxy

func toBroker(r *run) *testnet.Proxy {
	_, proxy := r.brokerServer()
	return proxy
}

func toDatabase(r *run) *testnet.Proxy { return r.site.toPG }

// does makes a step of a fault of a line that can't fail.
func (l line) does(what func(*testnet.Proxy)) step {
	return func(_ context.Context, r *run) error { what(l(r)); return nil }
}

// halfOpen leaves the connections open and swallows what is sent on them.
func (l line) halfOpen(_ context.Context, r *run) (undo, error) {
	l(r).HalfOpen()
	return func(context.Context) error { l(r).Heal(); return nil }, nil
}

// slow makes the line bad, checks that messages flow all the same, and repairs it.
func (l line) slow(_ context.Context, r *run) (undo, error) {
	latency := time.Duration(1+r.rng.IntN(20)) * time.Millisecond
	s := testnet.Slow{Latency: latency, Bandwidth: 300_000 + r.rng.IntN(1_000_000), Slice: 500 + r.rng.IntN(4000)}
	r.note("slow: %+v", s)
	l(r).Slow(s)
	return func(ctx context.Context) error {
		err := rig.Pause(ctx, 500*time.Millisecond)
		l(r).Heal()
		return err
	}, nil
}

// faults lists all kinds of faults.
func faults() []fault {
	return slices.Concat(relayFaults(), brokerFaults(), databaseFaults(), clientFaults())
}

// deckSeeds is the number of consecutive seeds that together have every kind of fault once.
func deckSeeds() uint64 {
	n := uint64(len(faults()))
	return (n + faultsARun - 1) / faultsARun
}

// faultsOf deals the faults of a seed, from those that can be had: consecutive seeds get different ones until all have
// been dealt, and then they come in another order.
func faultsOf(seed uint64, n int, can func(fault) bool) []fault {
	all := faults()
	var mine []fault
	for i := uint64(0); i < uint64(len(all)) && len(mine) < n; i++ {
		round, card := seed/deckSeeds(), (seed%deckSeeds())*faultsARun+i
		deck := rand.New(rand.NewPCG(round, 7)).Perm(len(all))
		if f := all[deck[card%uint64(len(all))]]; can(f) {
			mine = append(mine, f)
		}
	}
	return mine
}

func relayFaults() []fault {
	return []fault{
		{kind: "relay killed", repeats: 1, heir: true,
			inject: toOwner(func(ctx context.Context, r *run, owner *rig.Relay) (undo, error) {
				return func(ctx context.Context) error { return r.Restart(ctx, owner) }, owner.Kill()
			})},
		{kind: "relay killed and restarted", repeats: 1,
			inject: toOwner(func(ctx context.Context, r *run, owner *rig.Relay) (undo, error) {
				return nil, errors.Join(owner.Kill(), r.Restart(ctx, owner))
			})},
		{kind: "all relays killed", repeats: 1, inject: passing(func(_ context.Context, r *run) (err error) {
			for _, relay := range r.Relays {
				err = errors.Join(err, relay.Kill())
			}
			return err
		}, 0, 1500, func(ctx context.Context, r *run) error {
			for _, relay := range r.Relays {
				if err := r.Restart(ctx, relay); err != nil {
					return err
				}
			}
			return nil
		})},
		{kind: "relay frozen past its lease", repeats: 1, heir: true,
			inject: toOwner(func(ctx context.Context, r *run, owner *rig.Relay) (undo, error) {
				return func(ctx context.Context) error {
					// It wakes up as a zombie while the other relay is at work.
					return errors.Join(r.while(ctx, 0, 500), owner.Thaw(), rig.Pause(ctx, 300*time.Millisecond))
				}, owner.Freeze()
			})},
		{kind: "relay stopped in good order", repeats: 0, heir: true,
			inject: toOwner(func(ctx context.Context, r *run, owner *rig.Relay) (undo, error) {
				return func(ctx context.Context) error { return r.Restart(ctx, owner) }, owner.Stop(time.Minute)
			})},
	}
}

func brokerFaults() []fault {
	server := func(do func(*servers.Server) error) step {
		return func(_ context.Context, r *run) error {
			server, _ := r.brokerServer()
			return do(server)
		}
	}
	revive := func(ctx context.Context, r *run) error {
		server, _ := r.brokerServer()
		return errors.Join(server.Restart(ctx), r.Target.Answers(ctx))
	}
	fillDisk := func(_ context.Context, r *run) error { return r.site.storage.fill() }
	broker, heal := line(toBroker), line(toBroker).does((*testnet.Proxy).Heal)
	return []fault{
		{kind: "broker killed", repeats: 1, inject: passing(server((*servers.Server).Kill9), 0, 1500, revive)},
		// This is shorter than relays wait for an answer: what they have sent is in the sockets and arrives.
		{kind: "broker frozen", repeats: 1,
			inject: passing(server((*servers.Server).Freeze), 1000, 3000, server((*servers.Server).Thaw))},
		{kind: "answers of the broker lost", repeats: 1,
			inject: passing(broker.does((*testnet.Proxy).LoseAnswers), 50, 500, heal)},
		{kind: "connection to the broker half-open", repeats: 1, within: 30 * time.Second, inject: broker.halfOpen},
		{kind: "connection to the broker cut", repeats: 5, inject: often(200, broker.does((*testnet.Proxy).Cut))},
		{kind: "broker unreachable", repeats: 1,
			inject: passing(broker.does(func(p *testnet.Proxy) { p.Refuse(true) }), 500, 2000, heal)},
		{kind: "connection to the broker slow", repeats: 1, within: 30 * time.Second, inject: broker.slow},
		{kind: "disk of the broker full", repeats: 2, disk: true, within: 30 * time.Second,
			inject: passing(fillDisk, 1000, 1000, func(ctx context.Context, r *run) error {
				// Both brokers give up; an operator makes room and restarts them.
				server, _ := r.brokerServer()
				return errors.Join(server.Kill9(), r.site.storage.free(), revive(ctx, r))
			})},
		// This is short enough that no message runs out of attempts.
		{kind: "writing not permitted", repeats: 2,
			inject: passing(func(ctx context.Context, r *run) error { return r.Target.Forbid(ctx) }, 300, 1200,
				func(ctx context.Context, r *run) error { return r.Target.Permit(ctx) })},
		{kind: topicDeleted, repeats: 1, within: 30 * time.Second, inject: deleteTopic},
	}
}

func databaseFaults() []fault {
	database, heal := line(toDatabase), line(toDatabase).does((*testnet.Proxy).Heal)
	return []fault{
		{kind: "database killed", repeats: 1,
			inject: passing(func(_ context.Context, r *run) error { return r.site.pg.Kill9() }, 0, 1000,
				func(ctx context.Context, r *run) error { return r.site.pg.Restart(ctx) })},
		{kind: "database crashed", repeats: 1, inject: func(ctx context.Context, r *run) (undo, error) {
			return nil, errors.Join(r.site.pg.Crash(), r.site.pg.Restart(ctx))
		}},
		{kind: "database frozen", repeats: 1,
			inject: passing(func(_ context.Context, r *run) error { return r.site.pg.Freeze() }, 500, 2500,
				func(_ context.Context, r *run) error { return r.site.pg.Thaw() })},
		{kind: "sessions terminated", repeats: 5, inject: often(300, func(ctx context.Context, r *run) error {
			_, err := r.Load.Pool().Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND application_name LIKE 'outbox%'`)
			return err
		})},
		// The answer to a COMMIT may be among them, and then a relay doesn't know whether it has settled.
		{kind: "answers of the database lost", repeats: 1,
			inject: passing(database.does((*testnet.Proxy).LoseAnswers), 20, 300, heal)},
		{kind: "connection to the database half-open", repeats: 1, within: 30 * time.Second, inject: database.halfOpen},
		{kind: "connection to the database cut", repeats: 5, inject: often(300, database.does((*testnet.Proxy).Cut))},
		{kind: "connection to the database slow", repeats: 1, within: 30 * time.Second, inject: database.slow},
		{kind: "poolers killed", repeats: 1, pooler: true, inject: func(ctx context.Context, r *run) (undo, error) {
			for _, pooler := range []*servers.PgBouncer{r.site.transactions, r.site.sessions} {
				if err := errors.Join(pooler.Kill9(), r.while(ctx, 0, 300), pooler.Restart(ctx)); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}},
		{kind: "disk of the database full", repeats: 2, disk: true, within: 30 * time.Second,
			inject: passing(func(ctx context.Context, r *run) error {
				// Writers fail first, and then PostgreSQL, when it needs another segment of its log.
				if err := r.site.pgDisk.fill(); err != nil {
					return err
				}
				if r.rng.IntN(2) == 0 {
					exhaustLog(ctx, r.Load.Pool())
				}
				return nil
			}, 500, 2000, func(ctx context.Context, r *run) error {
				r.note("PostgreSQL runs still: %v", r.site.pg.Running())
				return errors.Join(r.site.pgDisk.free(), r.site.reviveDatabase(ctx))
			})},
		{kind: standbyPromoted, repeats: 1, inject: promote},
		{kind: "schema changes and vacuum", repeats: 1, inject: changeSchema},
		{kind: segmentDetached, repeats: 2, inject: detachSegment},
	}
}

func clientFaults() []fault {
	return []fault{
		{kind: "late writers", inject: func(_ context.Context, r *run) (undo, error) {
			for range 6 {
				seed, sleep := r.rng.Uint64(), time.Duration(200+r.rng.IntN(1500))*time.Millisecond
				r.background.Go(func() {
					// Its outcome is in the ledger.
					_ = r.Load.Late(context.Background(), rand.New(rand.NewPCG(seed, 1)), sleep)
				})
			}
			return nil, nil
		}},
		{kind: heldTransaction, inject: holdTransaction},
		{kind: oversizeMessages, inject: func(ctx context.Context, r *run) (undo, error) {
			// Such messages come all the time; this waits until the first is given up.
			return nil, r.givesUp(ctx, "a message that is too large", "SELECT EXISTS (SELECT FROM outbox.dead_letters)")
		}},
		{kind: keyTooLong, inject: writeLongKey},
		{kind: messageForged, inject: forgeMessages},
		{kind: "relay told to stop while it is frozen", repeats: 1, heir: true,
			inject: toOwner(func(ctx context.Context, r *run, owner *rig.Relay) (undo, error) {
				return func(ctx context.Context) error {
					return errors.Join(owner.Thaw(), owner.Wait(20*time.Second), r.Restart(ctx, owner))
				}, errors.Join(owner.Freeze(), owner.Signal(syscall.SIGTERM))
			})},
	}
}

// givesUp waits until a message has become a dead letter, by a query.
func (r *run) givesUp(ctx context.Context, what, query string, args ...any) error {
	return rig.Until(ctx, flowWithin, 20*time.Millisecond, what+" is a dead letter", func() (dead bool, err error) {
		err = r.Load.Pool().QueryRow(ctx, query, args...).Scan(&dead)
		return dead, err
	})
}

const (
	oversizeMessages = "messages too large"
	heldTransaction  = "transaction held open"
	standbyPromoted  = "standby promoted"
	topicDeleted     = "topic deleted"
	segmentDetached  = "segment detached and attached"
	keyTooLong       = "key too long for any index"
	messageForged    = "logical messages forged"
)
