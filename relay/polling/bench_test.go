package polling

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/relay"
)

// BenchmarkBacklog drains messages of 256 bytes, written as single transactions, with a settlement per
// batch and a consumer that does nothing.
func BenchmarkBacklog(b *testing.B) {
	const rows = 1_000_000
	db := newDatabase(b)
	db.Exec(`CREATE PROCEDURE fill(n integer) LANGUAGE plpgsql AS $$ BEGIN FOR i IN 1..n LOOP
		INSERT INTO outbox.messages (topic, key, event_type, content_type, payload, headers)
		VALUES ('orders', 'order-' || i % 50000, 'order.placed', 'application/json', decode(repeat(md5(i::text), 16), 'hex'), '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}');
		IF i % 20 = 0 THEN COMMIT; END IF; END LOOP; END $$`)
	db.Exec(fmt.Sprintf(`CALL fill(%d)`, rows))
	db.Exec(`VACUUM ANALYZE outbox.messages`)
	for b.Loop() {
		db.Exec(`DELETE FROM outbox.cursors`)
		s := testdb.Acquire(b, db.source("bench", SnapshotConfig{}))
		start := time.Now()
		n := 0
		for n < rows {
			batch, err := s.Next(b.Context(), 5000)
			if err != nil {
				b.Fatal(err)
			}
			n += len(batch.Deliveries)
			last := batch.Deliveries[len(batch.Deliveries)-1]
			if err := s.Settle(b.Context(), relay.Settlement{Through: &last, Delivered: len(batch.Deliveries)}); err != nil {
				b.Fatal(err)
			}
			batch.Recycle()
		}
		b.ReportMetric(float64(n)/time.Since(start).Seconds(), "messages/s")
		if err := s.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEmptyPoll is what an idle relay does.
func BenchmarkEmptyPoll(b *testing.B) {
	db := newDatabase(b)
	s := testdb.Acquire(b, db.source("bench", SnapshotConfig{})).(*snapshotSession)
	base := s.cursor.base
	b.ReportAllocs()
	for b.Loop() {
		found, err := s.reader.pollWindow(b.Context(), &base, 5000, 1<<20)
		if err != nil {
			b.Fatal(err)
		}
		base = found.next
	}
}

// BenchmarkSmallWindow is what a message costs that comes alone: a poll, a write of the cursor.
func BenchmarkSmallWindow(b *testing.B) {
	db := newDatabase(b)
	writer := db.Connect()
	s := testdb.Acquire(b, db.source("bench", SnapshotConfig{PollBusy: time.Microsecond}))
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		if _, err := writer.Exec(b.Context(), `INSERT INTO outbox.messages (topic, payload) VALUES ('t', 'x')`); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		batch, err := s.Next(b.Context(), 5000)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Settle(b.Context(), relay.Settlement{Through: &batch.Deliveries[0], Delivered: 1}); err != nil {
			b.Fatal(err)
		}
		batch.Recycle()
	}
}
