package messages

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"
)

// FuzzRow decodes rows of any bytes: what isn't a message is invalid and says so, whatever it has, and the rest is
// within the limits.
func FuzzRow(f *testing.F) {
	f.Add([]byte("t"), []byte("k"), []byte("a"), []byte("e"), []byte("p"), []byte("{\"a\": \"b\"}"), int64(0))
	f.Add([]byte(""), []byte("\xff"), []byte("a\nb"), []byte(nil), []byte(nil), []byte("[]"), int64(math.MaxInt64))
	f.Add([]byte("a b"), bytes.Repeat([]byte("x"), 1025), []byte("\x00"), []byte("ü"), []byte{}, []byte("\x02"), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, topic, key, aggregateID, eventType, payload, headers []byte, at int64) {
		moment := binary.BigEndian.AppendUint64(nil, uint64(at))
		row := make([][]byte, ColumnCount)
		row[colID], row[colMessageID], row[colShard], row[colCreatedAt] = moment, make([]byte, 16), []byte{0, 1}, moment
		row[colTopic], row[colKey], row[colAggregateID], row[colEventType] = topic, key, aggregateID, eventType
		row[colPayload], row[colHeaders], row[colDeliverAt] = payload, headers, moment
		var pg Page
		var d Decoder
		dl, err := d.Decode(&pg, row)
		if err != nil {
			t.Fatal(err)
		}
		if dl.Lane() == "" || dl.Invalid == nil && (dl.Validate() != nil || dl.DeliverAt.Year() > 9999) ||
			dl.Invalid != nil && dl.Invalid.Error() == "" {
			t.Errorf("%+v", dl)
		}
	})
}
