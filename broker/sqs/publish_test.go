package sqs_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/amazon/amazontest"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// The strict server refuses attributes that are empty, more than ten, or have forbidden characters.
func TestWhatIsNoAttributeOfSQSArrivesAllTheSame(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestElasticMQ(t).URL())
	queue := a.queue(".fifo")
	m := brokertest.Messages(strings.TrimSuffix(queue, ".fifo"), 1, 1)[0]
	m.Key, m.EventType, m.AggregateType, m.AggregateID = strings.Repeat("ключ ", 100), "Order\x02Created", "order", "4711"
	m.ContentType, m.Payload = "text/plain", []byte("a\x00b")
	m.Headers = []outbox.Header{{Name: "empty"}, {Name: "a b", Value: "1"},
		{Name: ".dot", Value: "2"}, {Name: "AWS.x", Value: "3"}, {Name: "noncharacter", Value: "\ufffe \uffff"}}
	for i := range 20 {
		m.Headers = append(m.Headers, outbox.Header{Name: fmt.Sprintf("h-%02d", i), Value: "v"})
	}
	accepted(t, a.broker(sqs.Config{}).Publish(patient(t), []*outbox.Message{m}))
	got, err := a.read(patient(t), queue)
	if err != nil || len(got) != 1 {
		t.Fatalf("%d messages, %v", len(got), err)
	}
	brokertest.SortHeaders(m)
	if g, w := fmt.Sprintf("%+v", got[0]), fmt.Sprintf("%+v", *m); g != w {
		t.Errorf("received %s\nwant %s", g, w)
	}
}

func TestGroupAndDeduplicationIdComeFromKeyAndId(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestElasticMQ(t).URL())
	queue := a.queue(".fifo")
	batch := brokertest.Messages(strings.TrimSuffix(queue, ".fifo"), 3, 3)
	batch[0].Key = "order-4711"
	batch[1].Key = strings.Repeat("x", 129)
	batch[2].Key = ""
	accepted(t, a.broker(sqs.Config{}).Publish(patient(t), batch))
	url, err := a.client.GetQueueUrl(patient(t), &sdk.GetQueueUrlInput{QueueName: &queue})
	if err != nil {
		t.Fatal(err)
	}
	groups := map[string]string{}
	for len(groups) < 3 {
		got, err := a.client.ReceiveMessage(patient(t), &sdk.ReceiveMessageInput{
			QueueUrl: url.QueueUrl, MaxNumberOfMessages: 10, MessageAttributeNames: []string{"All"},
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"},
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range got.Messages {
			m := &got.Messages[i]
			id := aws.ToString(m.MessageAttributes["outbox-id"].StringValue)
			if m.Attributes["MessageDeduplicationId"] != id {
				t.Errorf("deduplication id %q of message %s", m.Attributes["MessageDeduplicationId"], id)
			}
			groups[id] = m.Attributes["MessageGroupId"]
		}
	}
	if g := groups[batch[0].ID.String()]; g != "order-4711" {
		t.Errorf("group %q of a plain key", g)
	}
	if g := groups[batch[1].ID.String()]; !strings.HasPrefix(g, "sha256:") || len(g) != len("sha256:")+64 {
		t.Errorf("group %q of a long key", g)
	}
	if g := groups[batch[2].ID.String()]; g != batch[2].ID.String() {
		t.Errorf("group %q of a message without a key", g)
	}
}

func TestPayloadsAreTextOrBase64AsConfigured(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestElasticMQ(t).URL())
	queue := a.queue(".fifo")
	topic := strings.TrimSuffix(queue, ".fifo")
	text := brokertest.Messages(topic, 2, 2)
	text[1].Payload = []byte("\x01")
	errs := a.broker(sqs.Config{Payload: "text"}).Publish(patient(t), text)
	if len(errs) != 2 || errs[0] != nil || !outbox.IsPermanent(errs[1]) {
		t.Errorf("text: %v", errs)
	}
	all := brokertest.Messages(topic, 1, 1)
	accepted(t, a.broker(sqs.Config{Payload: "base64"}).Publish(patient(t), all))
	got, err := a.read(patient(t), queue)
	if err != nil || len(got) != 2 {
		t.Fatalf("%d messages, %v", len(got), err)
	}
}

func TestAMessageTooLargeForItsQueueIsRefusedBeforeItIsSent(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestElasticMQ(t, relaxed).URL()) // takes any size
	queue := a.queue(".fifo")
	batch := brokertest.Messages(strings.TrimSuffix(queue, ".fifo"), 2, 2)
	batch[1].Payload = []byte(strings.Repeat("x", 1<<20-50)) // with its attributes it is more
	errs := a.broker(sqs.Config{}).Publish(patient(t), batch)
	if len(errs) != 2 || errs[0] != nil || !outbox.IsPermanent(errs[1]) {
		t.Fatalf("outcomes %v", errs)
	}
	contains(t, errs[1], queue, "1048576")
}

func TestARepeatIsDropped(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestElasticMQ(t).URL())
	queue := a.queue(".fifo")
	b := a.broker(sqs.Config{})
	batch := brokertest.Messages(strings.TrimSuffix(queue, ".fifo"), 30, 3)
	for range 3 {
		accepted(t, b.Publish(patient(t), batch))
	}
	if got, err := a.read(patient(t), queue); err != nil || len(got) != len(batch) {
		t.Errorf("%d messages of %d, %v", len(got), len(batch), err)
	}
}

func TestStandardQueuesAreUsedWhenAllowed(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestElasticMQ(t).URL())
	queue := a.queue("")
	if _, err := sqs.New(sqs.Config{Queue: "{topic}", AWS: amazontest.Anyone()}); err == nil {
		t.Error("a template of standard queues was taken without Unordered")
	} else {
		contains(t, err, "unordered", ".fifo")
	}
	b := a.broker(sqs.Config{Queue: "{topic}", Unordered: true})
	batch := brokertest.Messages(queue, 100, 5)
	accepted(t, b.Publish(patient(t), batch))
	if got, err := a.read(patient(t), queue); err != nil || len(got) != len(batch) {
		t.Errorf("%d messages of %d, %v", len(got), len(batch), err)
	}
}

func TestQueuesComeFromTheTableOrTheTemplate(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestElasticMQ(t).URL())
	tabled, dotted := a.queue(".fifo"), a.queue(".fifo")
	b := a.broker(sqs.Config{Queues: map[string]string{"billing": tabled}})
	batch := brokertest.Messages("billing", 2, 2)
	batch[1].Topic = strings.ReplaceAll(strings.TrimSuffix(dotted, ".fifo"), "-", ".") // a dot becomes a hyphen
	accepted(t, b.Publish(patient(t), batch))
	for i, queue := range []string{tabled, dotted} {
		got, err := a.read(patient(t), queue)
		if err != nil || len(got) != 1 || got[0].Topic != batch[i].Topic {
			t.Errorf("queue %s: %v, %v", queue, got, err)
		}
	}
	batch[0].Topic = "no name"
	brokertest.CheckFirst(t, b, batch[:1], "refused")
}

func TestAQueueIsCreatedWhenAsked(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestElasticMQ(t).URL())
	name := "t-" + outbox.NewID().String()
	batch := brokertest.Messages(name, 1, 1)
	brokertest.CheckFirst(t, a.broker(sqs.Config{}), batch, "topic unavailable", name, "aws sqs create-queue")
	if err := a.broker(sqs.Config{Queue: name + ".fifo", CreateQueues: &sqs.QueueSettings{}}).Ping(patient(t)); err != nil {
		t.Errorf("a queue that the first message creates: %v", err)
	}
	contains(t, a.broker(sqs.Config{Queue: name + ".fifo"}).Ping(patient(t)), "doesn't exist") // still
	accepted(t, a.broker(sqs.Config{CreateQueues: &sqs.QueueSettings{}}).Publish(patient(t), batch))
	if got, err := a.read(patient(t), name+".fifo"); err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestAQueueThatIsDeletedIsLookedForAgain(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestElasticMQ(t).URL())
	queue := a.queue(".fifo")
	b := a.broker(sqs.Config{CreateQueues: &sqs.QueueSettings{}})
	topic := strings.TrimSuffix(queue, ".fifo")
	accepted(t, b.Publish(patient(t), brokertest.Messages(topic, 1, 1)))
	url, err := a.client.GetQueueUrl(patient(t), &sdk.GetQueueUrlInput{QueueName: &queue})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.client.DeleteQueue(patient(t), &sdk.DeleteQueueInput{QueueUrl: url.QueueUrl}); err != nil {
		t.Fatal(err)
	}
	batch := brokertest.Messages(topic, 1, 1)
	brokertest.CheckFirst(t, b, batch, "topic unavailable")
	accepted(t, b.Publish(patient(t), batch))
}

func TestPingNamesAMissingQueue(t *testing.T) {
	t.Parallel()
	a := connect(t, servers.TestElasticMQ(t).URL())
	brokertest.CheckPing(t, a.broker(sqs.Config{Queue: "nowhere.fifo"}), "nowhere.fifo", "doesn't exist")
}

func TestLostAnswersLeaveUnknownOutcomesAndNothingIsLostOrInverted(t *testing.T) {
	t.Parallel()
	server := servers.TestElasticMQ(t)
	a := connect(t, server.URL())
	queue := a.queue(".fifo")
	topic := strings.TrimSuffix(queue, ".fifo")
	p := testnet.New(t, server.Addr())
	b := connect(t, "http://"+p.Addr()).broker(sqs.Config{Timeout: 5 * time.Second})
	repeats := brokertest.CutAnswers(t, b, p, brokertest.Messages(topic, 1, 1), brokertest.Messages(topic, 100, 10),
		func() ([]outbox.Message, error) { return a.read(patient(t), queue) })
	if repeats != 0 {
		t.Errorf("%d messages came twice", repeats)
	}
}

func TestNoAnswerWithinTheTimeoutIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	server := servers.TestElasticMQ(t)
	a := connect(t, server.URL())
	topic := strings.TrimSuffix(a.queue(".fifo"), ".fifo")
	p := testnet.New(t, server.Addr())
	b := open(t, "http://"+p.Addr(), sqs.Config{Timeout: await.Expiry(300 * time.Millisecond)})
	defer b.Close()
	p.Freeze()
	for i, err := range b.Publish(patient(t), brokertest.Messages(topic, 5, 5)) {
		if !outbox.IsUnavailable(err) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	p.Thaw()
}

func TestFaultsOfTheConfigurationAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := sqs.New(sqs.Config{
		Queue: "{topic}", Queues: map[string]string{"a": "b.c.fifo"}, Account: "me", Payload: "xml", Requests: -1, Timeout: -1,
		Endpoint: "x", CreateQueues: &sqs.QueueSettings{Retention: time.Second}, AWS: &aws.Config{},
	})
	contains(t, err, "standard queue", `"b.c.fifo"`, "12 digits",
		`"xml"`, "Requests: ", "Timeout: ", "Endpoint: ", "Region: ", "CreateQueues.Retention: ")
	_, err = sqs.New(sqs.Config{Queue: "{key}.fifo", AWS: amazontest.Anyone()})
	contains(t, err, "{key}")
}
