package kafka_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// uncoupled is a source whose sessions can't say what is settled.
type uncoupled struct{ relay.Source }

func (s uncoupled) Acquire(ctx context.Context) (relay.Session, error) {
	session, err := s.Source.Acquire(ctx)
	return struct{ relay.Session }{session}, err
}

func TestExactlyOnceRefusesWhatCanNotKeepItsPromise(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prepare func(*exactWorld)
		wrap    func(relay.Source) relay.Source
		want    []string
	}{
		"a strategy without a cursor": {
			func(w *exactWorld) { w.create(w.id+"-cursor", 1, "cleanup.policy", "compact") },
			func(s relay.Source) relay.Source { return uncoupled{s} },
			[]string{"keeps no cursor", "snapshot or replication", "exactly_once"},
		},
		"no cursor topic": {
			func(*exactWorld) {}, nil,
			[]string{"doesn't exist", "kafka-topics.sh", "--partitions 1", "cleanup.policy=compact", "create_topics"},
		},
		"another cluster than the destination's": { // which would get a cursor topic, or be told of what it lacks
			func(w *exactWorld) { w.owned = []string{"kafka cluster of before"} }, nil,
			[]string{"another broker"},
		},
		"a cursor topic of two partitions": {
			func(w *exactWorld) { w.create(w.id+"-cursor", 2, "cleanup.policy", "compact") }, nil,
			[]string{"has 2 partitions and must have one"},
		},
		"a cursor topic that forgets": {
			func(w *exactWorld) { w.create(w.id+"-cursor", 1, "cleanup.policy", "compact,delete") }, nil,
			[]string{"cleanup.policy=compact,delete", "would forget", "kafka-configs.sh"},
		},
		"a record that is damaged": {
			func(w *exactWorld) {
				w.create(w.id+"-cursor", 1, "cleanup.policy", "compact")
				w.put(true, cursorKey+w.id+"-0-5", "nonsense")
			}, nil,
			[]string{"-0-5", "damaged"},
		},
		"a record of somebody else where nothing of a relay is left": {
			func(w *exactWorld) {
				w.create(w.id+"-cursor", 1, "cleanup.policy", "compact")
				w.put(false, cursorKey+w.id+"-0-3", "nonsense")
			}, nil,
			[]string{"-0-3", "no relay has written", "offset 0", "kafka-topics.sh", "sent again"},
		},
		"a record of a newer program": {
			func(w *exactWorld) {
				w.create(w.id+"-cursor", 1, "cleanup.policy", "compact")
				w.put(true, cursorKey+w.id+"-0-5", "\x02 a newer record")
			}, nil,
			[]string{"version 2", "newer program"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &exactWorld{cluster: connect(t, servers.TestKafka(t).Addr()), id: "x-" + outbox.NewID().String()}
			test.prepare(w)
			var from relay.Source = &w.table
			if test.wrap != nil {
				from = test.wrap(from)
			}
			_, err := w.open(0).Source(from).Acquire(patient(t))
			contains(t, err, test.want...)
			if !outbox.IsPermanent(err) {
				t.Errorf("the error is not permanent: %v", err)
			}
		})
	}
}

// cursorKey begins the keys that relays give their records.
const cursorKey = "\x00outbox\x00"

// put writes a record to the cursor topic, as a relay would in a transaction or not.
func (w *exactWorld) put(transaction bool, key, value string) {
	w.t.Helper()
	options := []kgo.Opt{kgo.SeedBrokers(w.seeds...), kgo.DisableClientMetrics()}
	if transaction {
		options = append(options, kgo.TransactionalID(w.id+"-test"))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		w.t.Fatal(err)
	}
	defer client.Close()
	if transaction {
		if err := client.BeginTransaction(); err != nil {
			w.t.Fatal(err)
		}
	}
	record := &kgo.Record{Topic: w.id + "-cursor", Key: []byte(key), Value: []byte(value)}
	if err := client.ProduceSync(patient(w.t), record).FirstErr(); err != nil {
		w.t.Fatal(err)
	}
	if transaction {
		if err := client.EndTransaction(patient(w.t), kgo.TryCommit); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestExactlyOnceRefusesAClusterWhoseTransactionsCanBeTorn(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.ControlKey(int16(kmsg.ApiVersions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		f.KeepControl()
		resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
		for key := range int16(80) {
			if r := kmsg.RequestForKey(key); r != nil {
				k := kmsg.NewApiVersionsResponseApiKey()
				k.ApiKey, k.MaxVersion = key, r.MaxVersion()
				resp.ApiKeys = append(resp.ApiKeys, k)
			}
		}
		feature := kmsg.NewApiVersionsResponseFinalizedFeature()
		feature.Name, feature.MaxVersionLevel = "transaction.version", 1
		resp.FinalizedFeatures = append(resp.FinalizedFeatures, feature)
		return resp, nil, true
	})
	w := &exactWorld{cluster: f.cluster, id: "x"}
	_, err := w.open(0).Source(&w.table).Acquire(patient(t))
	contains(t, err, "transaction.version 2", "the cluster has 1", "kafka-features.sh")
	if !outbox.IsPermanent(err) {
		t.Errorf("the error is not permanent: %v", err)
	}
}

func TestTheCursorTopicIsCreatedIfThatIsAllowed(t *testing.T) {
	t.Parallel()
	c := connect(t, servers.TestKafka(t).Addr())
	w := &exactWorld{cluster: c, id: "x-" + outbox.NewID().String(), topic: c.topic(1)}
	w.write(brokertest.Messages(w.topic, 3, 1))
	e, err := kafka.NewExactlyOnce(kafka.Config{Brokers: w.seeds, CreateTopics: true}, kafka.ExactlyOnceConfig{ID: w.id})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r := &exactRelay{ExactlyOnce: e, world: w}
	w.acquire(r, &w.table)
	r.deliver(r.read(3))
	w.once(3)
	configs, err := c.admin.DescribeTopicConfigs(patient(t), w.id+"-cursor")
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range configs {
		for _, setting := range topic.Configs {
			if setting.Key == "cleanup.policy" && setting.MaybeValue() != "compact" {
				t.Errorf("cleanup.policy is %s", setting.MaybeValue())
			}
		}
	}
}

func TestMessagesMustComeFromTheSession(t *testing.T) {
	t.Parallel()
	w := written(t, 1, 1)
	r := w.open(0)
	errs := r.Publish(patient(t), messagesOf(w.rows))
	unavailable(t, errs, 1)
	contains(t, errs[0], "there is no session")
	w.acquire(r, &w.table)
	errs = r.Publish(patient(t), messagesOf(w.rows))
	unavailable(t, errs, 1)
	contains(t, errs[0], "not read by this destination's session")
	r.deliver(r.read(1))
	w.once(1)
}

func TestADestinationOfAnotherOutboxWithTheSameIDIsFoundOut(t *testing.T) {
	t.Parallel()
	w := written(t, 20, 2)
	r := w.relay()
	rows := r.read(20)
	r.deliver(rows[:10])
	foreign := &exactWorld{cluster: w.cluster, id: w.id, topic: w.topic}
	foreign.write(brokertest.Messages(w.topic, 10, 2))
	other := foreign.relay()
	other.deliver(other.read(10))
	w.await("the relay says that its ids were taken away", func(ctx context.Context) error {
		errs := r.Publish(ctx, messagesOf(rows[10:]))
		unavailable(t, errs, 10)
		if text := errs[0].Error(); !strings.Contains(text, "another program publishes") || !strings.Contains(text, "transactional_id") {
			return errs[0]
		}
		return nil
	})
}

func TestATransactionThatHangsInTheCursorTopicIsNamed(t *testing.T) {
	t.Parallel()
	w := written(t, 1, 1)
	client, err := kgo.NewClient(kgo.SeedBrokers(w.seeds...), kgo.TransactionalID(w.id+"-foreign"), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	record := &kgo.Record{Topic: w.id + "-cursor", Key: []byte("foreign")}
	if err := client.ProduceSync(patient(t), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	r := w.relay() // which goes on trying
	rows := r.read(1)
	errs := r.Publish(patient(t), messagesOf(rows))
	unavailable(t, errs, 1)
	contains(t, errs[0], "cursor topic", "began at offset 0", "hangs", "docs/brokers/kafka.md")
	if err := client.EndTransaction(patient(t), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	r.deliver(rows)
	w.once(1)
}

func TestACursorTopicThatIsDeletedIsMissedAndMayBeMadeAnew(t *testing.T) {
	t.Parallel()
	w := written(t, 200, 3)
	r := w.relay()
	rows := r.read(200)
	for n := range 8 { // all ids know the topic
		r.deliver(rows[2*n : 2*n+2])
	}
	if _, err := w.admin.DeleteTopics(patient(t), w.id+"-cursor"); err != nil {
		t.Fatal(err)
	}
	w.await("the broker has heard of it", func(ctx context.Context) error {
		topics, err := w.admin.ListTopics(ctx, w.id+"-cursor")
		if err == nil && topics.Has(w.id+"-cursor") {
			err = errors.New("it is there")
		}
		return err
	})
	next := 16
	w.await("the relay says that the topic is gone", func(ctx context.Context) error {
		errs := r.Publish(ctx, messagesOf(rows[next:next+1]))
		if errs == nil { // its log may take records a moment longer, and the relay knows that it has this one
			next++
			return errors.New("published")
		}
		unavailable(t, errs, 1)
		if text := errs[0].Error(); !strings.Contains(text, "was deleted; create it again") || !strings.Contains(text, "kafka-topics.sh") {
			return errs[0]
		}
		return nil
	})
	w.create(w.id+"-cursor", 1, "cleanup.policy", "compact")
	r.deliver(rows)
	w.once(200)
}

func TestAllFaultsOfAnExactlyOnceConfigAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := kafka.NewExactlyOnce(kafka.Config{}, kafka.ExactlyOnceConfig{Group: -1, CursorTopic: "no topic"})
	contains(t, err, "Brokers: none is given", "transactional id", "Group: -1", "CursorTopic: ")
	if n := strings.Count(err.Error(), "\n"); n < 3 {
		t.Errorf("%d lines: %v", n+1, err)
	}
}
