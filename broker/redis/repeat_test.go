package redis_test

import (
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// A relay stands still between two scripts of a call, and goes on when its successor has sent everything. Its later
// script must not take for new what was new when the call began.
func TestAZombieInTheMiddleOfACallAddsNothingTwice(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	c := client(t, server.Addr())
	stream := newStream(t, c)
	p := testnet.New(t, server.Addr())
	zombie := newBroker(t, p.Addr(), redis.Config{AckTimeout: 30 * time.Second})
	accepted(t, zombie.Publish(patient(t), brokertest.Messages(stream, 1, 1)))
	p.Distance(400 * time.Millisecond) // between the two scripts of the key
	batch := brokertest.Messages(stream, 1500, 1)
	ended := make(chan []error, 1)
	go func() { ended <- zombie.Publish(patient(t), batch) }()
	await.Until(t, "the first script has run", func() bool { return c.XLen(patient(t), stream).Val() > 1 })
	if err := p.Freeze(); err != nil {
		t.Fatal(err)
	}
	if n := c.XLen(patient(t), stream).Val(); n == 1501 {
		t.Fatal("both scripts ran at once")
	}
	successor := newBroker(t, server.Addr(), redis.Config{})
	accepted(t, successor.Publish(patient(t), batch))
	if err := p.Thaw(); err != nil {
		t.Fatal(err)
	}
	accepted(t, <-ended)
	if n := c.XLen(patient(t), stream).Val(); n != 1501 {
		t.Errorf("%d entries of 1501", n)
	}
}

func TestRepeatsAreRecognisedWhateverTheirIdsAreLike(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	c := client(t, server.Addr())
	random := func(batch []*outbox.Message) {
		for _, m := range batch {
			_, _ = rand.Read(m.ID[:])
		}
	}
	for name, change := range map[string]func([]*outbox.Message){
		"growing": func([]*outbox.Message) {},
		"random":  random,
		"falling": slices.Reverse[[]*outbox.Message],
		"all from one time": func(batch []*outbox.Message) {
			for _, m := range batch {
				copy(m.ID[:6], "\x01\x02\x03\x04\x05\x06")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stream := newStream(t, c)
			b := newBroker(t, server.Addr(), redis.Config{DedupWindow: 1000})
			all := brokertest.Messages(stream, 3000, 3000)
			change(all)
			for part := range slices.Chunk(all, 300) {
				accepted(t, b.Publish(patient(t), part))
				accepted(t, b.Publish(patient(t), part))
			}
			accepted(t, b.Publish(patient(t), all[2000:]))
			checkExactly(t, c, stream, all)
		})
	}
}

// An older relay, an operator or an eviction may change the sets and not what is known of them, or the other way round.
func TestRepeatsAreRecognisedWhenWhatIsKnownOfTheIdsIsWrong(t *testing.T) {
	t.Parallel()
	server := servers.TestRedis(t)
	c := client(t, server.Addr())
	for name, wrong := range map[string]func(t *testing.T, index string, late *outbox.Message){
		"lost": func(t *testing.T, index string, late *outbox.Message) {
			if err := c.SAdd(patient(t), index+"recent", late.ID[:]).Err(); err != nil {
				t.Error(err)
			}
			if err := c.Del(patient(t), index+"known").Err(); err != nil {
				t.Error(err)
			}
		},
		"behind the last ids": func(t *testing.T, index string, late *outbox.Message) {
			if err := c.SAdd(patient(t), index+"recent", late.ID[:]).Err(); err != nil {
				t.Error(err)
			}
		},
		"behind the older ids": func(t *testing.T, index string, late *outbox.Message) {
			if err := c.SAdd(patient(t), index+"older", late.ID[:]).Err(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stream := newStream(t, c)
			b := newBroker(t, server.Addr(), redis.Config{})
			batch := brokertest.Messages(stream, 100, 100)
			accepted(t, b.Publish(patient(t), batch))
			late := brokertest.Message(stream, "late", 0)
			late.ID[0] = 0xff // above all that is known
			wrong(t, "{"+stream+"}:outbox:", late)
			accepted(t, b.Publish(patient(t), append(slices.Clone(batch), late)))
			accepted(t, b.Publish(patient(t), batch))
			if n := c.XLen(patient(t), stream).Val(); n != 100 {
				t.Errorf("%d entries of 100", n)
			}
		})
	}
}
