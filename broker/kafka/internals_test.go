package kafka_test

import (
	"context"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/relay"
)

func TestMessagesCanNotReachWhatIsTheClustersOwnOrARelays(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	topic, cursors := c.topic(1), c.topic(1)+"-cursor"
	c.create(cursors, 1, "cleanup.policy", "compact")
	batch := []*outbox.Message{
		{ID: outbox.NewID(), Topic: "__consumer_offsets", Key: "a"}, {ID: outbox.NewID(),
			Topic: cursors, Key: "b"}, {ID: outbox.NewID(), Topic: topic, Key: "c"},
	}
	errs := c.broker(kafka.Config{}).Publish(patient(t), batch)
	for i, want := range []string{"must not begin with __", "must not end with -cursor"} {
		if !outbox.IsPermanent(errs[i]) {
			t.Errorf("topic %s: %v, want an error for good", batch[i].Topic, errs[i])
		}
		contains(t, errs[i], want, "internal_topics", "change the message's topic")
	}
	if errs[2] != nil {
		t.Errorf("the topic beside them: %v", errs[2])
	}
	for _, err := range c.broker(kafka.Config{InternalTopics: true}).Publish(patient(t), batch[1:]) {
		if err != nil {
			t.Errorf("where it is allowed: %v", err)
		}
	}
	_, err := kafka.New(kafka.Config{Brokers: c.seeds, Topic: "{topic}-cursor"})
	contains(t, err, "must not end with -cursor")
}

// keyed is a format whose keys are anything.
type keyed string

func (k keyed) Bind(format.Binding) (format.Encoder, error) { return k, nil }

func (k keyed) Encode(r *format.Record, m *outbox.Message) error {
	r.Key, r.Value = []byte(k), m.Payload
	return nil
}

func TestNoMessageHasTheKeyOfARelaysCursor(t *testing.T) {
	t.Parallel()
	c := realCluster(t)
	topic := c.topic(1)
	errs := c.broker(kafka.Config{Format: keyed(cursorKey + "x-0-0")}).Publish(patient(t),
		[]*outbox.Message{{ID: outbox.NewID(), Topic: topic}})
	if len(errs) != 1 || !outbox.IsPermanent(errs[0]) {
		t.Fatalf("%v, want an error for good", errs)
	}
	contains(t, errs[0], "begins as those of cursor topics do")
}

func TestTheOwnCursorTopicIsNeverAMessagesWhateverItIsCalled(t *testing.T) {
	t.Parallel()
	w := newExactWorld(t)
	cursors := w.cluster.topic(1)
	if _, err := w.admin.DeleteTopics(patient(t), cursors); err != nil {
		t.Fatal(err)
	}
	e, err := kafka.NewExactlyOnce(kafka.Config{Brokers: w.seeds, InternalTopics: true, CreateTopics: true},
		kafka.ExactlyOnceConfig{ID: w.id, CursorTopic: cursors + "-own"})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	w.write([]*outbox.Message{{ID: outbox.NewID(), Topic: cursors + "-own", Key: w.id + "-0-0", Payload: []byte("garbage")}})
	r := &exactRelay{ExactlyOnce: e, world: w}
	w.acquire(r, &w.table)
	var errs []error
	w.await("the message is answered", func(ctx context.Context) error {
		errs = r.Publish(ctx, messagesOf(w.rows))
		if outbox.IsUnavailable(errs[0]) {
			return errs[0]
		}
		return nil
	})
	if !outbox.IsPermanent(errs[0]) {
		t.Errorf("%v, want an error for good", errs[0])
	}
	contains(t, errs[0], "the destination's cursor topic")
}

// A relay is killed with messages that were published and not settled, and somebody writes to the cursor topic before
// the next one reads it.
func TestWhatSomebodyElseWritesToTheCursorTopicIsSurvived(t *testing.T) {
	t.Parallel()
	w := written(t, 40, 3)
	r := w.relay()
	rows := r.read(30)
	for n := range 10 {
		r.deliver(rows[3*n : 3*n+3])
	}
	r.settle(relay.Settlement{Through: &rows[4], Delivered: 5})
	for _, id := range []string{"-0-0", "-0-1", "-0-2", "-0-3", "-0-mark"} {
		w.put(false, w.id+id, "garbage")                                            // what a message's key can be
		w.put(true, w.id+id, "\x01\x00\x00\x00\x00\x00\x00\x00\x07\x00")            // in a relay's encoding
		w.put(false, cursorKey+w.id+id, "garbage")                                  // by a client of Kafka's
		w.put(false, cursorKey+w.id+id, "\x01\x00\x00\x00\x00\x00\x00\x00\x07\x00") // which would say that nothing was published
	}
	next := w.relay()
	next.deliver(next.read(35))
	w.once(40)
}
