package relay_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

func TestMain(m *testing.M) { servers.Main(m) }

func TestALaneIsShortHasItsKeyAloneAndIsTheSameInSQL(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), servers.TestDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("ü", 600)
	id := outbox.NewID()
	of := map[string]string{}
	for _, c := range []struct{ key, aggregate, lane string }{
		{"", "", id.String()},
		{"k", "a", "k"},
		{"", "a", "a"},
		{strings.Repeat("k", outbox.MaxKeyBytes), "", strings.Repeat("k", outbox.MaxKeyBytes)},
		{strings.Repeat("k", outbox.MaxKeyBytes+1), "", ""},
		{strings.Repeat("k", 1<<20), "", ""},
		{long, "", ""},
		{long + "x", "", ""},
		{(&relay.Delivery{Message: outbox.Message{Key: long}}).Lane(), "", ""}, // a key like another's lane
		{"~sha256:", "", ""},
		{"~sha256", "", "~sha256"},
	} {
		d := relay.Delivery{Message: outbox.Message{ID: id, Key: c.key, AggregateID: c.aggregate}}
		lane := d.Lane()
		if c.lane != "" && lane != c.lane {
			t.Errorf("lane %.80q, want %.80q", lane, c.lane)
		}
		if len(lane) > outbox.MaxKeyBytes {
			t.Errorf("key %.20q: its lane has %d bytes", c.key, len(lane))
		}
		if before, taken := of[lane]; taken {
			t.Errorf("%.80q and %.80q have one lane", before, c.key)
		}
		of[lane] = c.key
		var there string
		err := conn.QueryRow(t.Context(), "SELECT "+schema.LaneSQL+" FROM (SELECT $1::text, $2::text, $3::text::uuid) "+
			"m (key, aggregate_id, message_id)",
			c.key, c.aggregate, id.String()).Scan(&there)
		if err != nil || there != lane {
			t.Errorf("key %.20q: the lane is %.80q in SQL, %.80q here (%v)", c.key, there, lane, err)
		}
	}
}
