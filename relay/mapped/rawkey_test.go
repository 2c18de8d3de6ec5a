package mapped

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
)

// What a bytea can hold: frames of Avro that are valid UTF-8 and ones that aren't, a NUL, and a text that looks like
// the digits of another key.
var binaryKeys = []string{"\x00\x00\x00\x00\x01\x06abc", "\x00\x00\x00\x00\x01\x80\x02", "\x00\xff\xfe", "00fffe", "plain"}

// The encoding of a key is that of its column, whatever is in a row: bytes or digits, and never both. So no two keys
// become one, and retries, holds and dead letters keep a key's order as they do for text.
func TestBinaryKeysHaveOneEncodingWhateverIsInThem(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	encodings := map[bool]func(string) string{
		true:  func(key string) string { return key },
		false: func(key string) string { return hex.EncodeToString([]byte(key)) },
	}
	for name := range strategies() {
		for raw, encoded := range encodings {
			t.Run(fmt.Sprint(name, "/raw=", raw), func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				db.Exec(`ALTER TABLE events ALTER key TYPE bytea USING key::bytea; ALTER TABLE dead_events ALTER key TYPE bytea USING key::bytea`)
				const each = 10
				for n := range each {
					for i, key := range binaryKeys {
						db.Exec(`INSERT INTO events (topic, key, payload, part) VALUES ('t', $1, convert_to($2, 'UTF8'), $3)`, []byte(key), fmt.Sprint(n), i%4)
					}
				}
				source, err := changed(func(m *mapping.Mapping) { m.RawKey = raw })[name](db.Config(),
					Config{Name: "one", PollIdle: 5 * time.Millisecond})
				must(t, err)
				broker := relaytest.NewMemory()
				broker.Fail(encoded(binaryKeys[1]), 4, errors.New("not now"))
				broker.Fail(encoded(binaryKeys[2]), 1, outbox.Permanent(errors.New("never")))
				ctx, stop := testdb.Run(t, source, broker, relay.Config{HoldAfter: time.Millisecond,
					Backoff: relay.Backoff{Initial: 5 * time.Millisecond, Max: 10 * time.Millisecond}})
				want := len(binaryKeys)*each - 1
				if err := broker.Wait(ctx, func() bool { return len(broker.Messages()) >= want }); err != nil {
					t.Errorf("%d of %d messages came: %v", len(broker.Messages()), want, err)
				}
				stop()
				came := make(map[string][]string)
				for _, m := range broker.Messages() {
					came[m.Key] = append(came[m.Key], string(m.Payload))
				}
				all := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
				for i, key := range binaryKeys {
					want := all
					if i == 2 {
						want = all[1:]
					}
					if got := came[encoded(key)]; !slices.Equal(got, want) {
						t.Errorf("of key %q came %v, want %v", encoded(key), got, want)
					}
				}
				if got := db.Value("SELECT string_agg(encode(key, 'hex'), ',') FROM dead_events"); got != "00fffe" {
					t.Errorf("dead letters have the keys %s", got)
				}
			})
		}
	}
}
