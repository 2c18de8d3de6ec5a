package faults

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig"
)

// Exactly-once to Kafka: a consumer of committed records gets every message once and in order, whatever happens to
// relays and brokers. settle(0) allows no duplicate.

// onKafkaExactlyOnce starts a Kafka of the test's own, to be delivered to in transactions.
func onKafkaExactlyOnce(t *testing.T) destination {
	server := servers.OwnKafka(t)
	return to(t, rig.KafkaTopic{Addr: server.Addr(), Topic: "events", ExactlyOnce: true}, &server.Server)
}

func TestExactlyOnceSurvivesRelaysThatAreKilled(t *testing.T) {
	w := newWorld(t, onKafkaExactlyOnce)
	w.write(time.Millisecond)
	r := w.relay("relay-1")
	for range 3 { // before, in or after its very first transaction
		time.Sleep(rand.N(500 * time.Millisecond))
		w.must(r.Kill())
		w.must(r.Start())
	}
	n := rounds(t, 8)
	for range n {
		w.flowing()
		time.Sleep(rand.N(50 * time.Millisecond)) // at any moment of a transaction
		w.must(r.Kill())
		w.must(r.Start())
	}
	w.flowing()
	t.Logf("%d faults, of which none excuses a duplicate", n)
	w.settle(0)
}

func TestExactlyOnceSurvivesZombies(t *testing.T) {
	w := newWorld(t, onKafkaExactlyOnce)
	w.write(time.Millisecond)
	w.lease = await.Expiry(2 * time.Second)
	relays := map[string]*rig.Relay{"relay-1": w.relay("relay-1"), "relay-2": w.relay("relay-2")}
	n := rounds(t, 2)
	for range n {
		w.flowing()
		first := w.owner()
		time.Sleep(rand.N(50 * time.Millisecond))
		w.must(relays[first].Freeze())
		w.takenOver(first)
		w.flowing()
		w.must(relays[first].Thaw())
	}
	w.flowing()
	t.Logf("%d faults, of which none excuses a duplicate", n)
	w.settle(0)
}

// One broker of three is killed at a time, and the next one when all replicas are in sync again. Half of the time
// the relay has to go on without it before it comes back.
func TestExactlyOnceSurvivesBrokersThatAreKilled(t *testing.T) {
	var cluster *servers.KafkaCluster
	var target rig.KafkaTopic
	w := newWorld(t, func(t *testing.T) destination {
		cluster = servers.OwnKafkaCluster(t)
		target = rig.KafkaTopic{Addr: cluster.Addr(), Topic: "events", ExactlyOnce: true}
		if err := target.Create(t.Context()); err != nil {
			t.Fatal(err)
		}
		return destination{Target: target, yaml: target.YAML(cluster.Addr())}
	})
	w.write(time.Millisecond)
	w.relay("relay-1")
	n := rounds(t, 2)
	w.flowing()
	for round := range n {
		w.inSync(target)
		time.Sleep(rand.N(50 * time.Millisecond)) // at any moment of a transaction
		broker := cluster.Brokers[rand.IntN(len(cluster.Brokers))]
		began := time.Now()
		w.must(broker.Kill9())
		if round%2 == 0 {
			w.flowing()
		}
		without := time.Since(began)
		w.must(broker.Restart(t.Context()))
		w.flowing()
		t.Logf("round %d: %v, back after %v, flowing after %v", round, broker.Addr(), without, time.Since(began))
	}
	t.Logf("%d faults, of which none excuses a duplicate", n)
	w.settle(0)
}

// inSync waits until every partition has all its replicas.
func (w *world) inSync(target rig.KafkaTopic) {
	w.t.Helper()
	var err error
	await.UntilElse(w.t, func() bool {
		err = target.InSync(w.t.Context())
		return err == nil
	}, func() string { return fmt.Sprintf("all replicas: %v", err) })
}
