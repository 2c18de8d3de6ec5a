package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig"
)

// fault is something that goes wrong, in some way that the run's random numbers decide.
type fault struct {
	kind string
	// repeats is how many times it may make relays lose what they know of what is in flight. Nothing else
	// may be delivered twice.
	repeats int
	// inject breaks something. Messages must flow within some time after it has returned; then after, if
	// there is one, undoes what is still wrong.
	inject func(ctx context.Context, r *run) (after func(context.Context) error, err error)
	within time.Duration // default: flowWithin
	// disk means that it needs a file system that can be filled up, pooler that it needs a PgBouncer, heir that it needs a relay
	// that goes on while another doesn't.
	disk, pooler, heir bool
}

// faults is every kind there is.
func faults() []fault {
	return slices.Concat(relayFaults(), brokerFaults(), databaseFaults(), clientFaults())
}

// deckSeeds is how many consecutive seeds have every kind of fault once.
func deckSeeds() uint64 {
	n := uint64(len(faults()))
	return (n + faultsARun - 1) / faultsARun
}

// faultsOf deals the faults of a seed, out of those that can be: consecutive seeds get different ones until all have had their
// turn, and then in another order.
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
		{kind: "relay killed", repeats: 1, heir: true, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			owner, err := r.owner(ctx)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error { return restart(ctx, owner) }, owner.Kill()
		}},
		{kind: "relay killed and restarted", repeats: 1, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			owner, err := r.owner(ctx)
			if err != nil {
				return nil, err
			}
			return nil, errors.Join(owner.Kill(), restart(ctx, owner))
		}},
		{kind: "all relays killed", repeats: 1, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			for _, relay := range r.relays {
				if err := relay.Kill(); err != nil {
					return nil, err
				}
			}
			if err := rig.Pause(ctx, time.Duration(r.rng.IntN(1500))*time.Millisecond); err != nil {
				return nil, err
			}
			for _, relay := range r.relays {
				if err := restart(ctx, relay); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}},
		{kind: "relay frozen past its lease", repeats: 1, heir: true, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			owner, err := r.owner(ctx)
			if err != nil {
				return nil, err
			}
			if err := owner.Freeze(); err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				// It wakes up as a zombie while the other one is at work.
				err := rig.Pause(ctx, time.Duration(r.rng.IntN(500))*time.Millisecond)
				return errors.Join(err, owner.Thaw(), rig.Pause(ctx, 300*time.Millisecond))
			}, nil
		}},
		{kind: "relay stopped in good order", repeats: 0, heir: true, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			owner, err := r.owner(ctx)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error { return restart(ctx, owner) }, owner.Stop(20 * time.Second)
		}},
	}
}

func brokerFaults() []fault {
	return []fault{
		{kind: "broker killed", repeats: 1, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			server, _ := r.brokerServer()
			if err := server.Kill9(); err != nil {
				return nil, err
			}
			if err := rig.Pause(ctx, time.Duration(r.rng.IntN(1500))*time.Millisecond); err != nil {
				return nil, err
			}
			return nil, errors.Join(server.Restart(ctx), r.target.Answers(ctx))
		}},
		{kind: "broker frozen", repeats: 1, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			server, _ := r.brokerServer()
			if err := server.Freeze(); err != nil {
				return nil, err
			}
			// Less than relays wait for an answer: what they have sent is in the sockets and arrives.
			err := rig.Pause(ctx, time.Duration(1000+r.rng.IntN(3000))*time.Millisecond)
			return nil, errors.Join(err, server.Thaw())
		}},
		{kind: "answers of the broker lost", repeats: 1, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			_, proxy := r.brokerServer()
			proxy.LoseAnswers()
			err := rig.Pause(ctx, time.Duration(50+r.rng.IntN(500))*time.Millisecond)
			proxy.Heal()
			return nil, err
		}},
		{kind: "connection to the broker half-open", repeats: 1, within: 30 * time.Second, inject: func(_ context.Context, r *run) (func(context.Context) error, error) {
			_, proxy := r.brokerServer()
			proxy.HalfOpen()
			return func(context.Context) error { proxy.Heal(); return nil }, nil
		}},
		{kind: "connection to the broker cut", repeats: 5, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			_, proxy := r.brokerServer()
			for range 5 {
				proxy.Cut()
				if err := rig.Pause(ctx, time.Duration(r.rng.IntN(200))*time.Millisecond); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}},
		{kind: "broker unreachable", repeats: 1, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			_, proxy := r.brokerServer()
			proxy.Refuse(true)
			err := rig.Pause(ctx, time.Duration(500+r.rng.IntN(2000))*time.Millisecond)
			proxy.Heal()
			return nil, err
		}},
		{kind: "connection to the broker slow", repeats: 1, within: 30 * time.Second, inject: slow(func(r *run) slowable { _, proxy := r.brokerServer(); return proxy })},
		{kind: "disk of the broker full", repeats: 2, disk: true, within: 30 * time.Second, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			server, _ := r.brokerServer()
			if err := r.site.storage.fill(); err != nil {
				return nil, err
			}
			if err := rig.Pause(ctx, time.Duration(1000+r.rng.IntN(1000))*time.Millisecond); err != nil {
				return nil, err
			}
			// Both brokers give up; an operator makes room and starts them again.
			return nil, errors.Join(server.Kill9(), r.site.storage.free(), server.Restart(ctx), r.target.Answers(ctx))
		}},
		{kind: "writing not permitted", repeats: 2, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			if err := r.target.Forbid(ctx); err != nil {
				return nil, err
			}
			// Short enough that no message runs out of attempts.
			err := rig.Pause(ctx, time.Duration(300+r.rng.IntN(1200))*time.Millisecond)
			return nil, errors.Join(err, r.target.Permit(ctx))
		}},
		{kind: topicDeleted, repeats: 1, within: 30 * time.Second, inject: deleteTopic},
	}
}

func databaseFaults() []fault {
	return []fault{
		{kind: "database killed", repeats: 1, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			if err := r.site.pg.Kill9(); err != nil {
				return nil, err
			}
			err := rig.Pause(ctx, time.Duration(r.rng.IntN(1000))*time.Millisecond)
			return nil, errors.Join(err, r.site.pg.Restart(ctx))
		}},
		{kind: "database crashed", repeats: 1, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			return nil, errors.Join(r.site.pg.Crash(), r.site.pg.Restart(ctx))
		}},
		{kind: "database frozen", repeats: 1, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			if err := r.site.pg.Freeze(); err != nil {
				return nil, err
			}
			err := rig.Pause(ctx, time.Duration(500+r.rng.IntN(2500))*time.Millisecond)
			return nil, errors.Join(err, r.site.pg.Thaw())
		}},
		{kind: "sessions terminated", repeats: 5, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			for range 5 {
				_, err := r.load.Pool().Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
					WHERE datname = current_database() AND application_name LIKE 'outbox%'`)
				if err != nil {
					return nil, err
				}
				if err := rig.Pause(ctx, time.Duration(r.rng.IntN(300))*time.Millisecond); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}},
		{kind: "answers of the database lost", repeats: 1, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			// Among them that to a COMMIT, so that a relay doesn't know whether it has settled.
			r.site.toPG.LoseAnswers()
			err := rig.Pause(ctx, time.Duration(20+r.rng.IntN(300))*time.Millisecond)
			r.site.toPG.Heal()
			return nil, err
		}},
		{kind: "connection to the database half-open", repeats: 1, within: 30 * time.Second, inject: func(_ context.Context, r *run) (func(context.Context) error, error) {
			r.site.toPG.HalfOpen()
			return func(context.Context) error { r.site.toPG.Heal(); return nil }, nil
		}},
		{kind: "connection to the database cut", repeats: 5, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			for range 5 {
				r.site.toPG.Cut()
				if err := rig.Pause(ctx, time.Duration(r.rng.IntN(300))*time.Millisecond); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}},
		{kind: "connection to the database slow", repeats: 1, within: 30 * time.Second, inject: slow(func(r *run) slowable { return r.site.toPG })},
		{kind: "poolers killed", repeats: 1, pooler: true, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			for _, pooler := range []*servers.PgBouncer{r.site.transactions, r.site.sessions} {
				if err := errors.Join(pooler.Kill9(), rig.Pause(ctx, time.Duration(r.rng.IntN(300))*time.Millisecond), pooler.Restart(ctx)); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}},
		{kind: "disk of the database full", repeats: 2, disk: true, within: 30 * time.Second, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			// Writers fail first, and then, when it needs another segment of its log, PostgreSQL.
			if err := r.site.pgDisk.fill(); err != nil {
				return nil, err
			}
			if r.rng.IntN(2) == 0 {
				exhaustLog(ctx, r.load.Pool())
			}
			err := rig.Pause(ctx, time.Duration(500+r.rng.IntN(2000))*time.Millisecond)
			r.note("PostgreSQL runs still: %v", r.site.pg.Running())
			return nil, errors.Join(err, r.site.pgDisk.free(), r.site.reviveDatabase(ctx))
		}},
		{kind: standbyPromoted, repeats: 1, inject: promote},
		{kind: "schema changes and vacuum", repeats: 1, inject: changeSchema},
		{kind: segmentDetached, repeats: 2, inject: detachSegment},
	}
}

func clientFaults() []fault {
	return []fault{
		{kind: "late writers", inject: func(_ context.Context, r *run) (func(context.Context) error, error) {
			for range 6 {
				seed, sleep := r.rng.Uint64(), time.Duration(200+r.rng.IntN(1500))*time.Millisecond
				r.background.Go(func() {
					// Its outcome is in the ledger.
					_ = r.load.Late(context.Background(), rand.New(rand.NewPCG(seed, 1)), sleep)
				})
			}
			return nil, nil
		}},
		{kind: heldTransaction, inject: holdTransaction},
		{kind: oversizeMessages, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			// They come all the time; this waits for the first to be given up.
			deadline := time.Now().Add(flowWithin)
			for {
				var dead int
				if err := r.load.Pool().QueryRow(ctx, "SELECT count(*) FROM outbox.dead_letters").Scan(&dead); err != nil {
					return nil, err
				}
				if dead > 0 {
					return nil, nil
				}
				if time.Now().After(deadline) {
					return nil, errors.New("no message that is too large became a dead letter")
				}
				if err := rig.Pause(ctx, 20*time.Millisecond); err != nil {
					return nil, err
				}
			}
		}},
		{kind: keyTooLong, inject: writeLongKey},
		{kind: messageForged, inject: forgeMessages},
		{kind: "relay told to stop while it is frozen", repeats: 1, heir: true, inject: func(ctx context.Context, r *run) (func(context.Context) error, error) {
			owner, err := r.owner(ctx)
			if err != nil {
				return nil, err
			}
			return func(ctx context.Context) error {
				return errors.Join(owner.Thaw(), owner.Wait(20*time.Second), restart(ctx, owner))
			}, errors.Join(owner.Freeze(), owner.Signal(syscall.SIGTERM))
		}},
	}
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
