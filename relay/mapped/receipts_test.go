package mapped

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/marking"
)

// telling is a broker that tells where it has put messages, and refuses the payload "later" once.
type telling struct {
	mu      sync.Mutex
	refused bool
}

func (b *telling) Publish(ctx context.Context, batch []*outbox.Message) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	accepted := outbox.ReceiptsWanted(ctx)
	errs := make([]error, len(batch))
	for i, m := range batch {
		if string(m.Payload) == "later" && !b.refused {
			b.refused, errs[i] = true, errors.New("not now")
			continue
		}
		accepted(m.ID, outbox.Receipt{Partition: int32(len(m.Key))})
	}
	return errs
}

func (*telling) Close() error { return nil }

func TestTheBrokersPartitionIsWrittenBack(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{mapping.SkipLocked, mapping.Advisory, mapping.Lease} {
		for _, column := range []string{"in_text", "in_number"} {
			t.Run(strategy+"/"+column, func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				db.Exec(`ALTER TABLE events ADD in_text varchar(255) DEFAULT 'none', ADD in_number smallint DEFAULT -1`)
				db.Exec(`INSERT INTO events (topic, key, payload) VALUES ('t', 'a', '1'), ('t', 'bb', '2'), ('t', 'ccc', 'later'), ('t', 'ccc', '3')`)
				m := events()
				m.Done.Partition = column
				if strategy == mapping.Lease {
					m.Claim.Until = "locked_until"
				}
				source := opened(t)(Open(strategy, db.Config(), m, Config{Name: "one", PollIdle: 5 * time.Millisecond})).(*Source)
				_, stop := testdb.Run(t, source, &telling{}, relay.Config{
					Backoff: relay.Backoff{Initial: 10 * time.Millisecond, Max: 10 * time.Millisecond}, HoldAfter: time.Millisecond})
				db.Await("SELECT count(*) = 4 FROM events WHERE status = 'done'")
				stop()
				if wrong := db.Value("SELECT count(*) FROM events WHERE " + column + "::text <> length(key)::text"); wrong != "0" {
					t.Errorf("%s rows have another partition", wrong)
				}
				if left := len(source.receipts.Partitions); left != 0 {
					t.Errorf("%d receipts are still remembered", left)
				}
			})
		}
	}
}

// Who doesn't tell leaves the column as it is, and who has no column doesn't ask.
func TestABrokerThatTellsNothingLeavesThePartitionAsItIs(t *testing.T) {
	t.Parallel()
	r := &marking.Receipts{}
	r.Accepted(outbox.ID{1}, outbox.Receipt{Partition: 7})
	got := r.Take([]marking.Mark{{Message: outbox.ID{2}}, {Message: outbox.ID{1}}})
	if got[0] != nil || got[1] == nil || *got[1] != "7" {
		t.Errorf("got %v", got)
	}
	if new(Source).Traits().Receipt != nil {
		t.Error("the broker is asked though there is no column")
	}
	if !slices.ContainsFunc(mapping.Presets(), func(p mapping.Preset) bool { return p.Mapping.Done.Partition == "partition_id" }) {
		t.Error("no preset writes the partition back")
	}
}
