package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/bounds"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/relay"
)

func TestADatabaseWithAQuotaReadsNoMoreAheadThanItMaySend(t *testing.T) {
	t.Parallel()
	d := fields.Default[config.Destination]()
	c := paced(d, config.Quota{Messages: 100, Bytes: 10 << 10}, 2)
	if c.Batch != 5 || c.MaxInFlight != 250 || c.MaxInFlightBytes != 25<<10 || c.Rate != 0 {
		t.Errorf("%+v", c)
	}
	d.Rate = 10
	if c := paced(d, config.Quota{Messages: 1000}, 2); c.Batch != 1 || c.Rate != 10 {
		t.Errorf("with a lower rate: %+v", c)
	}
}

// counted is a broker that accepts all.
type counted struct {
	relay.Broker
	messages int
}

func (c *counted) Publish(_ context.Context, batch []*outbox.Message) []error {
	c.messages += len(batch)
	return nil
}

func TestAQuotaDelaysAndACallThatGivesUpIsUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broker := &counted{}
		b := withQuota(broker, bounds.NewQuota(bounds.Amount{Messages: 100, Bytes: 1000}, 1))
		batch := []*outbox.Message{{Payload: make([]byte, 10)}, {Payload: make([]byte, 90)}} // a tenth of a second's bytes
		began := time.Now()
		for range 50 {
			if errs := b.Publish(t.Context(), batch); errs != nil {
				t.Fatal(errs)
			}
		}
		if took := time.Since(began); took < 4*time.Second || took > 5*time.Second {
			t.Errorf("%d messages took %v", broker.messages, took)
		}
		soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if errs := b.Publish(soon, batch); len(errs) != 2 || !outbox.IsUnavailable(errs[1]) {
			t.Errorf("%v", errs)
		}
		if withQuota(broker, nil) != relay.Broker(broker) {
			t.Error("without a quota there is something around the broker")
		}
	})
}
