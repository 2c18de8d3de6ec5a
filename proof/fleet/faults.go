package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pgoutbox/outbox/proof/rig"
)

// happened is a fault, or a time without one.
type happened struct {
	cause       string
	began, done time.Time
	cluster     int             // that is away; -1: none
	hit         map[string]bool // databases that the process delivered from; nil: all
	moves       int
}

var faultKinds = []string{"kill", "freeze", "stop", "roll"}

// disturb has faults happen for the time that they are to, with a quiet time before each.
func (b *bed) disturb(ctx context.Context) error {
	began := time.Now()
	if err := b.quiet(ctx, 20*time.Second); err != nil {
		return err
	}
	away := b.options.clusters == 1 // once in the middle
	for time.Since(began) < b.period {
		var err error
		if half := time.Since(began) > b.period/2; half && !away {
			away = true
			err = b.outage(ctx, min(b.period/5, 5*time.Minute))
		} else {
			err = b.one(ctx)
		}
		if err != nil {
			return err
		}
		if err := b.quiet(ctx, 15*time.Second); err != nil {
			return err
		}
	}
	return nil
}

func (b *bed) quiet(ctx context.Context, d time.Duration) error {
	h := happened{cause: "quiet", began: time.Now(), cluster: -1}
	if err := rig.Pause(ctx, d); err != nil {
		return err
	}
	h.began = h.began.Add(d / 2) // until then what was before settles
	h.done = time.Now()
	b.faults = append(b.faults, h)
	return nil
}

// one has one fault happen to a process, or to one after the other.
func (b *bed) one(ctx context.Context) error {
	relay := b.relays[b.rng.IntN(len(b.relays))]
	away := time.Duration(1+b.rng.IntN(5)) * time.Second
	switch b.faultKinds[b.rng.IntN(len(b.faultKinds))] {
	case "kill":
		return b.during(ctx, "kill -9", relay, func() error {
			if err := relay.Kill(); err != nil {
				return err
			}
			return b.again(ctx, relay, away)
		})
	case "freeze":
		return b.during(ctx, "frozen", relay, func() error {
			if err := relay.Freeze(); err != nil {
				return err
			}
			if err := rig.Pause(ctx, 3*away); err != nil {
				return err
			}
			return relay.Thaw()
		})
	case "stop":
		return b.during(ctx, "stopped", relay, func() error { return b.restart(ctx, relay, away) })
	default:
		return b.during(ctx, "rolling restart", nil, func() error {
			for _, relay := range b.relays {
				if err := b.restart(ctx, relay, time.Second); err != nil {
					return err
				}
				if err := rig.Pause(ctx, 3*time.Second); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func (b *bed) restart(ctx context.Context, relay *rig.Relay, away time.Duration) error {
	if err := relay.Stop(time.Minute); err != nil {
		return err
	}
	return b.again(ctx, relay, away)
}

func (b *bed) again(ctx context.Context, relay *rig.Relay, after time.Duration) error {
	if err := rig.Pause(ctx, after); err != nil {
		return err
	}
	if err := relay.Start(); err != nil {
		return err
	}
	return relay.Up(ctx, time.Minute)
}

// outage stops a cluster for a while: the last one, since the first has the home.
func (b *bed) outage(ctx context.Context, d time.Duration) error {
	last := len(b.clusters) - 1
	h := happened{cause: "a cluster is away", began: time.Now(), cluster: last}
	if err := b.clusters[last].Stop(); err != nil {
		return err
	}
	if err := rig.Pause(ctx, d); err != nil {
		return err
	}
	h.done = time.Now()
	if err := b.clusters[last].Restart(ctx); err != nil {
		return err
	}
	b.faults = append(b.faults, h)
	return nil
}

// during notes a fault with the databases that it hits and how many move. It lasts until its consequences are over.
func (b *bed) during(ctx context.Context, cause string, relay *rig.Relay, do func() error) error {
	before := b.owners(ctx)
	h := happened{cause: cause, began: time.Now(), cluster: -1}
	if relay != nil {
		h.hit = map[string]bool{}
		for name, owner := range before {
			h.hit[name] = owner == relay.Name
		}
	}
	watching, end := context.WithCancel(ctx)
	moves := make(chan int)
	go func() { moves <- b.watch(watching, before) }()
	err := do()
	if err == nil {
		err = rig.Pause(ctx, 10*time.Second)
	}
	end()
	h.moves, h.done = <-moves, time.Now()
	b.faults = append(b.faults, h)
	if err != nil {
		return fmt.Errorf("%s: %w", cause, err)
	}
	return nil
}

// watch counts how many times databases have another owner, until ctx ends.
func (b *bed) watch(ctx context.Context, owners map[string]string) (moves int) {
	for rig.Pause(ctx, 500*time.Millisecond) == nil {
		for name, owner := range b.owners(ctx) {
			if owner != owners[name] && owners[name] != "" {
				moves++
			}
			owners[name] = owner
		}
	}
	return moves
}

// owners returns who delivers from each database, without those where nobody does.
func (b *bed) owners(ctx context.Context) map[string]string {
	owners := map[string]string{}
	for _, s := range b.sources {
		if owner, err := s.load.Owner(ctx); err == nil && owner != "" {
			owners[s.name] = owner
		}
	}
	return owners
}
