package holds

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// Careful stores the outcomes of s by store, in tx. If the server refuses a value, it stores the outcomes one by one,
// and an outcome that can't be stored becomes a dead letter that names the error. Otherwise the session would end, and
// every later session would publish everything again and fail at the same place.
func Careful(ctx context.Context, tx pgx.Tx, s *relay.Settlement, store func(context.Context, pgx.Tx, *relay.Settlement) error) error {
	try := func(s *relay.Settlement) error {
		return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return store(ctx, tx, s) }) // a savepoint
	}
	err := try(s)
	if !schema.IsDataError(err) {
		return err
	}
	for _, one := range singles(s) {
		if err = try(&one); schema.IsDataError(err) {
			err = try(plain(tx.Conn(), one, fmt.Errorf("the outcome of the message can't be stored: %w", err)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// singles splits s into settlements of one outcome each, in the order in which they would be stored together.
func singles(s *relay.Settlement) (all []relay.Settlement) {
	for _, d := range s.HeldDelivered {
		all = append(all, relay.Settlement{HeldDelivered: []*relay.Delivery{d}})
	}
	for _, h := range s.HeldRetry {
		all = append(all, relay.Settlement{HeldRetry: []relay.Hold{h}})
	}
	for _, d := range s.HeldDead {
		all = append(all, relay.Settlement{HeldDead: []relay.Dead{d}})
	}
	for _, h := range s.Hold {
		all = append(all, relay.Settlement{Hold: []relay.Hold{h}})
	}
	for _, d := range s.Dead {
		all = append(all, relay.Settlement{Dead: []relay.Dead{d}})
	}
	return all
}

// plain is a single outcome without anything that the database may refuse: a hold becomes a dead letter, and texts
// become ASCII.
func plain(conn *pgx.Conn, s relay.Settlement, cause error) *relay.Settlement {
	bury := func(d *relay.Delivery, reason relay.Reason) []relay.Dead {
		fit := *d
		for _, text := range []*string{&fit.Topic, &fit.Key, &fit.AggregateType, &fit.AggregateID, &fit.EventType, &fit.ContentType} {
			*text = schema.Storable(conn, *text)
		}
		fit.Headers = nil
		for _, h := range d.Headers {
			fit.Headers = append(fit.Headers, outbox.Header{Name: schema.Storable(conn, h.Name), Value: schema.Storable(conn, h.Value)})
		}
		return []relay.Dead{{Delivery: &fit, Reason: reason, Err: cause}}
	}
	switch {
	case len(s.Hold) > 0:
		return &relay.Settlement{Dead: bury(s.Hold[0].Delivery, relay.ReasonInvalid)}
	case len(s.Dead) > 0:
		return &relay.Settlement{Dead: bury(s.Dead[0].Delivery, s.Dead[0].Reason)}
	case len(s.HeldRetry) > 0:
		return &relay.Settlement{HeldDead: []relay.Dead{{Delivery: s.HeldRetry[0].Delivery, Reason: relay.ReasonInvalid, Err: cause}}}
	case len(s.HeldDead) > 0:
		return &relay.Settlement{HeldDead: []relay.Dead{{Delivery: s.HeldDead[0].Delivery, Reason: s.HeldDead[0].Reason, Err: cause}}}
	}
	return &s
}
