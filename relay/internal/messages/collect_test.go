package messages

import (
	"testing"

	"github.com/pgoutbox/outbox/relay"
)

func TestSmallBatchesShareAPageUntilTheLastIsRecycled(t *testing.T) {
	t.Parallel()
	pool := &Pool{}
	page := Collect(pool, &Decoder{})
	row := make([][]byte, ColumnCount)
	row[colID], row[colMessageID], row[colShard], row[colCreatedAt] = make([]byte, 8), make([]byte, 16), make([]byte, 2), make([]byte, 8)
	row[colTopic] = []byte("t")
	var batches []relay.Batch
	for _, text := range []string{"first", "second"} {
		row[colPayload] = []byte(text)
		if _, err := page.Add(row); err != nil {
			t.Fatal(err)
		}
		if page.Len() != 1 || page.Bytes() != len(text) || page.Full() {
			t.Errorf("%d messages of %d bytes wait for a batch, full: %v", page.Len(), page.Bytes(), page.Full())
		}
		batches = append(batches, page.Batch())
	}
	page.Drop()
	batches[0].Recycle()
	if pool.free.Len() != 0 {
		t.Fatal("the page is free though a batch isn't recycled")
	}
	if d := batches[1].Deliveries; len(d) != 1 || string(d[0].Payload) != "second" {
		t.Errorf("the second batch is %v", d)
	}
	batches[1].Recycle()
	if pool.free.Len() != 1 {
		t.Error("the page is not used again")
	}
}
