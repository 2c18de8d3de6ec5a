package mapped

import (
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// Whatever a column holds, in whatever encoding, the row is delivered, or is a dead letter if it can't be a message or
// can't be read. The limits of other people's tables are their own: a long key is delivered.
func TestNoFieldStopsAMappedTable(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	for _, name := range []string{"advisory", "skiplocked", "lease"} {
		for encoding, bad := range testdb.Encodings {
			t.Run(name+" "+encoding, func(t *testing.T) {
				t.Parallel()
				db := testdb.New(t).NewEncoded(encoding)
				db.Exec(eventsTable)
				db.RunFields(testdb.FieldsRun{
					Table: "events", Bad: bad,
					Open: func(relay string) relay.Source {
						s := opened(t)(strategies()[name](db.Config(),
							Config{Name: relay, PollIdle: 5 * time.Millisecond, Lease: time.Minute}))
						return s
					},
					Dead: "SELECT message_id::text, reason, error FROM dead_events",
					Expect: func(f testdb.Field) testdb.Field {
						switch {
						case strings.Contains(f.Dead, "can't be read as UTF-8"):
							f.Dead = "can't be read as UTF-8"
						case strings.Contains(f.Dead, "the limit is"), strings.HasPrefix(f.Dead,
							"Topic contains"), strings.Contains(f.Name, "with a line") && f.Column != "headers":
							f.Dead = ""
						case f.Column == "headers" && f.Dead != "", f.Column == "deliver_at", f.Name == "empty topic":
							f.Name = "" // what the tests of decode say
						}
						if f.Name == "endless topic" {
							f.Name = "" // the table has an index of topics
						}
						return f
					},
				})
			})
		}
	}
}
