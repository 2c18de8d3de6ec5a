package find

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/testdb"
)

// A dead letter can be shown and dealt with whatever its texts are.
func TestDeadLettersWithoutAUTF8FormAreListed(t *testing.T) {
	t.Parallel()
	for encoding, bad := range testdb.Encodings {
		if bad == "" {
			continue
		}
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t).NewEncoded(encoding)
			db.Install()
			db.Exec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, headers, created_at, attempts, reason, error)
				SELECT 'd', 'l', 1, gen_random_uuid(), b, b, 1, jsonb_build_object('a', b), now(), 0, 'invalid', 'e' FROM (SELECT ` + bad + ` AS b) b`)
			cfg := db.Config()
			cfg.RuntimeParams["client_encoding"] = "UTF8"
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			list, err := DeadLetters(t.Context(), conn, Selection{All: true}, Page{})
			if err != nil || len(list) != 1 || !strings.HasPrefix(list[0].Key, `a\`) || list[0].Topic != list[0].Key || !json.Valid(list[0].Headers) {
				t.Errorf("%+v, %v", list, err)
			}
		})
	}
}
