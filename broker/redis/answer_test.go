package redis_test

import (
	"bytes"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/internal/servers"
)

// The server closes the connection because of an argument that is too large, which has the whole chunk in it.
func TestAMessageThatIsTooLargeForTheServerIsRefusedAlone(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t)
	c := client(t, server.Addr())
	if err := c.ConfigSet(patient(t), "proto-max-bulk-len", "1048576").Err(); err != nil {
		t.Fatal(err)
	}
	stream := newStream(t, c)
	b := newBroker(t, server.Addr(), redis.Config{})
	var stored []*outbox.Message
	for call := range 2 {
		batch := brokertest.Messages(stream, 20, 20)
		for i, m := range batch {
			m.Key += string(rune('a' + call))
			if i == 7 {
				m.Payload = bytes.Repeat([]byte("x"), 3<<20)
			} else {
				stored = append(stored, m)
			}
		}
		batch[12].Payload = bytes.Repeat([]byte("y"), 900_000) // fits, alone
		errs := b.Publish(patient(t), batch)
		brokertest.CheckRefused(t, batch, errs, 7)
		contains(t, errs[7], "proto-max-bulk-len")
	}
	checkExactly(t, c, stream, stored)
}

func TestAProbeWantsTheRightToAppend(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t)
	c := client(t, server.Addr())
	good, other := newStream(t, c), newStream(t, c)
	rules := []any{"ACL", "SETUSER", "relay", "on", ">secret", "~" + good, "~{" + good + "}:outbox:*", "+@all", "-@admin"}
	if err := c.Do(patient(t), rules...).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Do(patient(t), "ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "-eval").Err(); err != nil {
		t.Fatal(err)
	}
	for stream, fault := range map[string]string{good: "", other: "allow the user the keys", "{topic}": ""} {
		err := newBroker(t, server.Addr(), redis.Config{Stream: stream, User: "relay", Password: "secret"}).Ping(patient(t))
		if fault != "" {
			contains(t, err, fault)
		} else if err != nil {
			t.Errorf("stream %s: %v", stream, err)
		}
	}
	contains(t, newBroker(t, server.Addr(), redis.Config{User: "mute", Password: "secret"}).Ping(patient(t)), "allow the user the commands")
	if n := c.DBSize(patient(t)).Val(); n != 2 {
		t.Errorf("%d keys: a probe has written something", n)
	}
}
