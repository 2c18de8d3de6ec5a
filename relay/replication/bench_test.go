package replication

import (
	"strconv"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/testdb"
)

// BenchmarkReadingTheLog reads rows of 256 bytes, by transactions of one row and of a hundred, and settles every
// batch. An operation is a message.
func BenchmarkReadingTheLog(b *testing.B) {
	for _, rows := range []int{1, 100} {
		b.Run(strconv.Itoa(rows)+" rows a transaction", func(b *testing.B) {
			db := newDatabase(b)
			cfg := Config{}
			cfg.Table.Lease = time.Minute
			source, _ := db.source("d", cfg)
			s := acquire(b, source)
			streaming(b, s)
			if err := s.Close(b.Context()); err != nil {
				b.Fatal(err)
			}
			conn := db.Connect()
			if _, err := conn.Exec(b.Context(), "SET synchronous_commit = off"); err != nil {
				b.Fatal(err)
			}
			// A DO block may commit, and is one round trip.
			_, err := conn.Exec(b.Context(), `DO $$ BEGIN
				FOR i IN 1 .. `+strconv.Itoa(max(b.N/rows, 1))+` LOOP
					INSERT INTO outbox.messages (topic, key, payload)
						SELECT 't', k::text, decode(repeat('ab', 256), 'hex') FROM generate_series(1, `+strconv.Itoa(min(rows, b.N))+`) k;
					COMMIT;
				END LOOP; END $$`)
			if err != nil {
				b.Fatal(err)
			}
			total := max(b.N/rows, 1) * min(rows, b.N)
			b.ResetTimer()
			s = acquire(b, source)
			for n := 0; n < total; {
				got, err := s.Next(b.Context(), 2500)
				if err != nil {
					b.Fatal(err)
				}
				if k := len(got.Deliveries); k > 0 {
					n += k
					testdb.Settle(b, s, &got.Deliveries[k-1])
					got.Recycle()
				}
			}
		})
	}
}
