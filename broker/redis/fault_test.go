package redis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// A relay that dies publishes again everything behind its cursor: here each life begins where a random part of the last
// one's work was settled, and ends in the middle of a call. Positions are not in the order of delivery, as when an
// early id commits late.
func TestARelayThatDiesAgainAndAgainAddsNothingTwice(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	c := client(t, server.Addr())
	stream := newStream(t, c)
	p := testnet.New(t, server.Addr())
	all := brokertest.Messages(stream, 4000, 40)
	rng := rand.New(rand.NewPCG(1, 2))
	for key := range 40 { // within a key they grow, between keys they don't
		for i := key; i < len(all); i += 40 {
			all[i].Position = int64((40-key)*1000 + i)
		}
	}
	settled := 0
	for life := 0; settled < len(all); life++ {
		b, err := redis.New(p.Addr(), redis.Config{AckTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		end := min(len(all), settled+1000)
		if life%2 == 0 {
			p.CutAfter(rng.IntN(200_000) + 1)
		}
		done := settled
		for part := range slices.Chunk(all[settled:end], 100) {
			errs := b.Publish(patient(t), part)
			brokertest.CheckOutcomes(t, part, errs)
			if errs != nil {
				break
			}
			done += len(part)
		}
		p.CutAfter(0)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		settled += rng.IntN(done - settled + 1)
		if done == len(all) && life > 100 {
			settled = done
		}
	}
	checkExactly(t, c, stream, all)
}

func TestKillingTheServerLosesRepeatsAndDisordersNothing(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t)
	c := client(t, server.Addr())
	stream := newStream(t, c)
	b := newBroker(t, server.Addr(), redis.Config{AckTimeout: 10 * time.Second})
	all := brokertest.Messages(stream, 8000, 50)
	brokertest.DeliverDuring(patient(t), t, b, all, 200, brokertest.KillEvery(4, t, server))
	checkExactly(t, c, stream, all)
}

func TestLostAnswersLeaveTheOutcomeUnknownAndARepeatIsRecognised(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	c := client(t, server.Addr())
	stream := newStream(t, c)
	p := testnet.New(t, server.Addr())
	b := newBroker(t, p.Addr(), redis.Config{AckTimeout: await.Expiry(300 * time.Millisecond)})
	before, batch := brokertest.Messages(stream, 1, 1), brokertest.Messages(stream, 100, 10)
	brokertest.LoseAnswers(t, b, p, before, batch, "outcome unknown", func() bool { return c.XLen(patient(t), stream).Val() == 101 })
	brokertest.Deliver(patient(t), t, b, batch)
	stored, err := read(patient(t), c, stream)
	if err != nil || len(stored) != 101 {
		t.Errorf("%d stored, %v", len(stored), err)
	}
}

func TestTheIndexKeepsTheLastMessagesAndNotMoreThanTwiceTheWindow(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	c := client(t, server.Addr())
	stream := newStream(t, c)
	b := newBroker(t, server.Addr(), redis.Config{DedupWindow: 1000})
	all := brokertest.Messages(stream, 5000, 10)
	for part := range slices.Chunk(all, 100) {
		accepted(t, b.Publish(patient(t), part))
		recent, older := c.SCard(patient(t), "{"+stream+"}:outbox:recent").Val(), c.SCard(patient(t), "{"+stream+"}:outbox:older").Val()
		if recent+older > 2*1000+256 {
			t.Fatalf("%d and %d ids are kept", recent, older)
		}
	}
	accepted(t, b.Publish(patient(t), all[4000:]))
	if n := c.XLen(patient(t), stream).Val(); n != 5000 {
		t.Errorf("%d entries after a repeat within the window", n)
	}
	accepted(t, b.Publish(patient(t), all[:100]))
	if n := c.XLen(patient(t), stream).Val(); n != 5100 {
		t.Errorf("%d entries after a repeat beyond the window: is the index bounded?", n)
	}
}

func TestTheEndOfTheContextInterruptsAFrozenServer(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t)
	c := client(t, server.Addr())
	stream := newStream(t, c)
	b := newBroker(t, server.Addr(), redis.Config{AckTimeout: 20 * time.Second})
	accepted(t, b.Publish(patient(t), brokertest.Messages(stream, 1, 1)))
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	defer server.Thaw()
	ctx, cancel := context.WithCancel(t.Context()) // no deadline that a socket could be given
	time.AfterFunc(100*time.Millisecond, cancel)
	batch := brokertest.Messages(stream, 100, 10)
	errs := b.Publish(ctx, batch)
	brokertest.CheckOutcomes(t, batch, errs)
	if errs == nil || !errors.Is(errs[0], context.Canceled) || !outbox.IsUnavailable(errs[0]) {
		t.Errorf("outcome %v", errs)
	}
}

func TestAFullServerIsAnOutageAndKeepsTheOrder(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t)
	c := client(t, server.Addr())
	stream := newStream(t, c)
	b := newBroker(t, server.Addr(), redis.Config{})
	if err := c.ConfigSet(patient(t), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	batch := brokertest.Messages(stream, 2000, 3)
	brokertest.CheckFirst(t, b, batch, "unavailable", "OOM", "maxmemory")
	if err := c.ConfigSet(patient(t), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	brokertest.Deliver(patient(t), t, b, batch)
	checkExactly(t, c, stream, batch)
}

func TestReplicasThatAreMissingLeaveTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t)
	c := client(t, server.Addr())
	stream := newStream(t, c)
	b := newBroker(t, server.Addr(), redis.Config{Replicas: 1, WaitTimeout: await.Expiry(50 * time.Millisecond)})
	batch := brokertest.Messages(stream, 10, 2)
	for range 2 { // the second is a repeat, and no less unconfirmed
		errs := b.Publish(patient(t), batch)
		brokertest.CheckOutcomes(t, batch, errs)
		if errs == nil || !outbox.IsUnavailable(errs[0]) {
			t.Fatalf("outcomes %v", errs)
		}
		contains(t, errs[0], "0 of 1 replicas", "outcome unknown")
	}
	host, port, _ := strings.Cut(server.Addr(), ":")
	replica := servers.OwnRedis(t,
		servers.RedisConfig{Settings: map[string]string{"replicaof": host + " " + port, "repl-diskless-sync-delay": "0"}})
	brokertest.Deliver(patient(t), t, b, batch)
	checkExactly(t, client(t, replica.Addr()), stream, batch)

	// Messages that come to the replica itself are an outage, and Ping tells why.
	wrong := newBroker(t, replica.Addr(), redis.Config{})
	errs := wrong.Publish(patient(t), brokertest.Messages(stream, 1, 1))
	if errs == nil || !outbox.IsUnavailable(errs[0]) {
		t.Errorf("outcomes %v", errs)
	}
	contains(t, errs[0], "READONLY")
	contains(t, wrong.Ping(patient(t)), "is a replica")
}

func TestOneTopicsFaultLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t)
	c := client(t, server.Addr())
	good, wrong, denied := newStream(t, c), "not-a-stream", "denied"
	create(t, c, denied)
	if err := c.Set(patient(t), wrong, "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Do(patient(t), "ACL", "SETUSER", "relay", "on", ">secret", "+@all", "~"+good, "~"+wrong, "~*:outbox:*").Err(); err != nil {
		t.Fatal(err)
	}
	b := newBroker(t, server.Addr(), redis.Config{User: "relay", Password: "secret"})
	batch := []*outbox.Message{brokertest.Message(good, "a", 0), brokertest.Message(wrong, "b", 0),
		brokertest.Message(good, "b", 1), brokertest.Message(denied, "c", 0), brokertest.Message(good, "a", 1)}
	errs := b.Publish(patient(t), batch)
	brokertest.CheckOutcomes(t, batch, errs)
	for i, part := range map[int]string{1: "WRONGTYPE", 3: "NOPERM"} {
		if !outbox.IsTopicUnavailable(errs[i]) {
			t.Errorf("message %d: %v", i, errs[i])
		}
		contains(t, errs[i], part)
	}
	if errs[0] != nil || errs[4] != nil {
		t.Errorf("others: %v, %v", errs[0], errs[4])
	}
	stranger := newBroker(t, server.Addr(), redis.Config{User: "relay", Password: "guess"})
	errs = stranger.Publish(patient(t), batch[:1])
	if errs == nil || !outbox.IsUnavailable(errs[0]) || strings.Contains(errs[0].Error(), "guess") {
		t.Errorf("outcomes %v", errs)
	}
}

func TestAKeyKeepsItsOrderInACluster(t *testing.T) {
	t.Parallel()
	server := servers.OwnRedis(t, servers.RedisConfig{Cluster: true})
	c := client(t, server.Addr())
	formCluster(t, c)
	streams := []string{newStream(t, c), newStream(t, c), newStream(t, c)}
	b := newBroker(t, server.Addr(), redis.Config{Cluster: true})
	if err := b.Ping(patient(t)); err != nil {
		t.Error(err)
	}
	var batch []*outbox.Message
	for i := range 3000 {
		batch = append(batch, brokertest.Message(streams[i%7%3], fmt.Sprintf("k%d", i%11), i))
	}
	accepted(t, b.Publish(patient(t), batch))
	for _, stream := range streams {
		checkExactly(t, c, stream, slices.DeleteFunc(slices.Clone(batch), func(m *outbox.Message) bool { return m.Topic != stream }))
	}
	odd := brokertest.Message("a}b", "k", 0)
	brokertest.CheckFirst(t, b, []*outbox.Message{odd}, "refused")
}

func TestStreamsAreTrimmedAndCreatedOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	c := client(t, server.Addr())
	b := newBroker(t, server.Addr(), redis.Config{CreateStreams: true, MaxLen: 500})
	stream := fmt.Sprintf("created-%d", time.Now().UnixNano())
	t.Cleanup(func() { c.Del(context.Background(), stream) })
	for range 20 {
		accepted(t, b.Publish(patient(t), brokertest.Messages(stream, 200, 10)))
	}
	if n := c.XLen(patient(t), stream).Val(); n < 500 || n > 1000 {
		t.Errorf("%d entries", n)
	}
	fixed := newBroker(t, server.Addr(), redis.Config{Stream: "missing-" + stream})
	contains(t, fixed.Ping(patient(t)), "does not exist", "XGROUP CREATE")
}

func TestATopicCanNotBeAnIndexOrANote(t *testing.T) {
	t.Parallel()
	b := newBroker(t, servers.TestRedis(t).Addr(), redis.Config{CreateStreams: true})
	for _, topic := range []string{"{orders}:outbox:recent", "orders:outbox:known", "outbox:once:billing:id:" + outbox.NewID().String()} {
		m := brokertest.Message(topic, "k", 0)
		brokertest.CheckFirst(t, b, []*outbox.Message{m}, "refused")
	}
}
