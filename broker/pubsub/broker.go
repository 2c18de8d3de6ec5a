package pubsub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/iam/apiv1/iampb"
	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/template"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Broker publishes to Pub/Sub. It satisfies relay.Broker and relay.Pinger, and is safe for concurrent use. It creates
// its client when first used.
type Broker struct {
	cfg   Config
	topic *template.Template
	slots chan struct{} // one for each request in flight

	mu      sync.Mutex
	current *pubsub.TopicAdminClient
	closed  bool
}

// New returns a broker. It checks cfg and reports all its faults together. It doesn't connect; Ping and the first
// Publish do.
func New(cfg Config) (*Broker, error) {
	cfg, topic, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("pubsub: %w", err)
	}
	return &Broker{cfg: cfg, topic: topic, slots: make(chan struct{}, cfg.Requests)}, nil
}

// Publish sends batch by the contract of relay.Broker. docs/brokers/pubsub.md lists the kind of each error, and why.
func (b *Broker) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if len(batch) == 0 {
		return nil
	}
	c := newCall(b, batch)
	c.run(ctx)
	for _, err := range c.errs {
		if err != nil {
			return c.errs
		}
	}
	return nil
}

// Ping checks that the service answers and accepts the credentials, and, if the template has no field, that its topic
// exists, or would be created, and may be published to. It returns the reason if not, and changes nothing.
func (b *Broker) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	client, err := b.client(ctx)
	if err != nil {
		return err
	}
	if b.topic.Constant() {
		id := b.topic.Literals[0]
		_, err := client.GetTopic(ctx, &pubsubpb.GetTopicRequest{Topic: b.path(id)})
		switch {
		case isMissing(err) && b.cfg.CreateTopics:
			return nil
		case err == nil, status.Code(err) == codes.PermissionDenied:
			return outbox.Unavailable(b.mayPublish(ctx, client, id))
		}
		return outbox.Unavailable(b.classify(id, err))
	}
	_, err = client.ListTopics(ctx, &pubsubpb.ListTopicsRequest{Project: "projects/" + b.cfg.Project, PageSize: 1}).Next()
	// a user without the permission was authenticated
	if err == nil || errors.Is(err, iterator.Done) || status.Code(err) == codes.PermissionDenied {
		return nil
	}
	return outbox.Unavailable(fmt.Errorf("pubsub: ask for the topics of project %q: %w", b.cfg.Project, err))
}

// mayPublish asks whether messages may be published to a topic, which needs no permission.
func (b *Broker) mayPublish(ctx context.Context, client *pubsub.TopicAdminClient, id string) error {
	const publish = "pubsub.topics.publish"
	answer, err := client.TestIamPermissions(ctx, &iampb.TestIamPermissionsRequest{Resource: b.path(id), Permissions: []string{publish}})
	if err != nil || slices.Contains(answer.GetPermissions(), publish) {
		return nil // a server that can't tell, such as the emulator, has been asked already whether it answers
	}
	return outbox.TopicUnavailable(fmt.Errorf("pubsub: topic %q: not permitted: grant this account %s, for example by the role "+
		"roles/pubsub.publisher", id, publish))
}

// Close closes the connection. It may be called more than once.
func (b *Broker) Close() error {
	b.mu.Lock()
	client := b.current
	b.closed, b.current = true, nil
	b.mu.Unlock()
	if client == nil {
		return nil
	}
	if err := client.Close(); err != nil {
		return fmt.Errorf("pubsub: close: %w", err)
	}
	return nil
}

// client returns the client, and creates it if there is none. It connects when it is used.
func (b *Broker) client(ctx context.Context) (*pubsub.TopicAdminClient, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, outbox.Unavailable(errors.New("pubsub: the broker is closed"))
	}
	if b.current != nil {
		return b.current, nil
	}
	client, err := pubsub.NewTopicAdminClient(context.WithoutCancel(ctx), b.options()...)
	if err != nil {
		return nil, outbox.Unavailable(fmt.Errorf("pubsub: make a client: %w", err))
	}
	// No retries: a repeat that the engine doesn't know of could overtake a later message.
	client.CallOptions = &pubsub.TopicAdminCallOptions{}
	b.current = client
	return client, nil
}

// discard gives up a client whose connection gives no answers.
func (b *Broker) discard(client *pubsub.TopicAdminClient) {
	b.mu.Lock()
	was := b.current == client
	if was {
		b.current = nil
	}
	b.mu.Unlock()
	if was {
		_ = client.Close() // it is useless anyway
	}
}

func (b *Broker) options() []option.ClientOption {
	options := []option.ClientOption{
		option.WithGRPCConnectionPool((b.cfg.Requests + perConnection - 1) / perConnection),
		option.WithGRPCDialOption(grpc.WithConnectParams(grpc.ConnectParams{
			// The end of an outage should be noticed soon.
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		})),
	}
	if b.cfg.Endpoint != "" {
		options = append(options, option.WithEndpoint(b.cfg.Endpoint))
	}
	if b.cfg.Insecure {
		options = append(options, option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())))
	}
	if b.cfg.CredentialsFile != "" {
		options = append(options, option.WithAuthCredentialsFile(option.ServiceAccount, b.cfg.CredentialsFile))
	}
	if b.cfg.Dial != nil {
		options = append(options, option.WithGRPCDialOption(grpc.WithContextDialer(b.cfg.Dial)))
	}
	return append(options, b.cfg.Options...)
}

// path is the full name of a topic.
func (b *Broker) path(id string) string { return "projects/" + b.cfg.Project + "/topics/" + id }
