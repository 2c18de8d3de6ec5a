package mapped

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// A table whose rows one destination marks has no second one that does, whatever its name is written like, as long as a
// relay of the first lives.
func TestATableHasOneDestinationThatMarksItsRows(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for _, second := range noting {
		t.Run(second, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.install(t)
			source := opened(t)(strategies()["skiplocked"](db.Config(),
				Config{Name: "one", Destination: "first", PollIdle: 5 * time.Millisecond}))
			_, stop := testdb.Run(t, source, relaytest.NewMemory(), relay.Config{})
			db.Await(`SELECT count(*) = 1 FROM outbox.tables WHERE state = 'flowing'`)
			acquire := func(open map[string]func() (relay.Source, error), name string) error {
				s := opened(t)(open[name]())
				session, err := s.Acquire(t.Context())
				if err == nil {
					err = session.Close(context.WithoutCancel(t.Context()))
				}
				return err
			}
			opens := make(map[string]func() (relay.Source, error))
			for name, open := range changed(func(m *mapping.Mapping) { m.Table = "public.events" }) {
				opens[name] = func() (relay.Source, error) { return open(db.Config(), Config{Name: "two", Destination: "second"}) }
			}
			if err := acquire(opens, second); !outbox.IsPermanent(err) ||
				!strings.Contains(err.Error(), "destination first (strategy skiplocked)") {
				t.Errorf("got %v", err)
			}
			if err := acquire(opens, "serial"); err != nil {
				t.Errorf("a strategy that marks no row: %v", err)
			}
			stop()
			if err := acquire(opens, second); err != nil {
				t.Errorf("the first is gone: %v", err)
			}
		})
	}
}
