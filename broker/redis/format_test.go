package redis_test

import (
	"fmt"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/servers"
	goredis "github.com/redis/go-redis/v9"
)

// entries returns the fields of a stream's entries.
func entries(t *testing.T, c *goredis.Client, stream string) (all []map[string]string) {
	t.Helper()
	stored, err := c.XRange(patient(t), stream, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range stored {
		fields := map[string]string{}
		for name, value := range e.Values {
			fields[name] = value.(string)
		}
		all = append(all, fields)
	}
	return all
}

func TestCloudEventsInAStream(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	c := client(t, server.Addr())
	sdkread.Run(t, "ce-", func(t *testing.T, f format.CloudEvents) sdkread.Target {
		stream := newStream(t, c)
		b := newBroker(t, server.Addr(), redis.Config{Format: f})
		return sdkread.Target{Broker: b, Topic: stream, Read: func(t *testing.T, m *outbox.Message) (all []sdkread.Record) {
			if m != nil { // the repeat is recognised
				accepted(t, b.Publish(patient(t), []*outbox.Message{m}))
			}
			for _, fields := range entries(t, c, stream) {
				all = append(all, sdkread.Record{ContentType: fields["content-type"], Headers: fields, Value: []byte(fields["value"])})
				if m != nil && (fields["key"] != m.Key || fields["id"] != "" || fields["payload"] != "") {
					t.Errorf("fields %v", fields)
				}
			}
			return all
		}}
	})
}

func TestDebeziumsLayoutIsTheExtendedFormOfItsRedisSink(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	c := client(t, server.Addr())
	stream := newStream(t, c)
	m := sdkread.Order(stream)
	null := sdkread.Order(stream)
	null.Payload = nil
	layout := format.Debezium{Place: []format.Placement{{Field: "event_type", Alias: "eventType"}}}
	accepted(t, newBroker(t, server.Addr(), redis.Config{Format: layout}).Publish(patient(t), []*outbox.Message{m, null}))
	stored := entries(t, c, stream)
	want := map[string]string{"key": m.Key, "value": string(m.Payload), "ID": m.ID.String(), "EVENTTYPE": "Created", "TENANT": "acme"}
	if len(stored) != 2 || fmt.Sprint(stored[0]) != fmt.Sprint(want) {
		t.Fatalf("entries %v, want %v", stored, want)
	}
	if _, there := stored[1]["value"]; there {
		t.Errorf("a null payload has become %v", stored[1])
	}
}

func TestAHeaderThatWouldBeAFieldOfTheFormatStopsItsKeyAlone(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	c := client(t, server.Addr())
	stream := newStream(t, c)
	batch := brokertest.Messages(stream, 6, 2)
	batch[2].Headers = []outbox.Header{{Name: "value", Value: "x"}}
	errs := newBroker(t, server.Addr(), redis.Config{Format: format.CloudEvents{}}).Publish(patient(t), batch)
	brokertest.CheckRefused(t, batch, errs, 2)
	if stored := entries(t, c, stream); len(stored) != 4 {
		t.Errorf("%d entries", len(stored))
	}
}

func TestTheSizeOfAFormattedEntryIsWhatCounts(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	stream := newStream(t, client(t, server.Addr()))
	b := newBroker(t, server.Addr(), redis.Config{MaxMessageBytes: 1500, Format: format.CloudEvents{Structured: true}})
	m := brokertest.Message(stream, "k", 0)
	m.ContentType, m.Payload = "application/octet-stream", make([]byte, 900) // with base64 it is a third more
	brokertest.CheckFirst(t, b, []*outbox.Message{m}, "refused")
}
