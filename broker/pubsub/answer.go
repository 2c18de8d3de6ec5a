package pubsub

import (
	"context"
	"fmt"
	"time"

	pubsub "cloud.google.com/go/pubsub/v2/apiv1"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/search"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// longestPause bounds the pause that the service may ask for.
const longestPause = time.Minute

// classify turns the answer to a request into an error of the right kind. docs/brokers/pubsub.md has the table with
// reasons.
func (b *Broker) classify(topic string, err error) error {
	if err == nil {
		return nil
	}
	s, _ := status.FromError(err)
	fault := fmt.Errorf("pubsub: topic %q: %w", topic, err)
	if (s.Code() == codes.ResourceExhausted || s.Code() == codes.OutOfRange) && search.OfSize(s.Message()) {
		return outbox.Permanent(fault) // the emulator, or a server between
	}
	switch s.Code() {
	case codes.InvalidArgument:
		return outbox.Permanent(fault)
	case codes.NotFound:
		return outbox.TopicUnavailable(fmt.Errorf("pubsub: topic %q doesn't exist in project %q: create it, for example "+
			"by: gcloud pubsub topics create %s --project %s (%w)",
			topic, b.cfg.Project, topic, b.cfg.Project, err))
	case codes.PermissionDenied, codes.FailedPrecondition:
		return outbox.TopicUnavailable(fault)
	case codes.AlreadyExists, codes.OutOfRange:
		return fault
	case codes.Unimplemented:
		return outbox.Unavailable(fmt.Errorf("%w; is the endpoint that of Pub/Sub?", fault))
	case codes.Unauthenticated:
		return outbox.Unavailable(fmt.Errorf("%w; see that the credentials are right, and the clock", fault))
	case codes.ResourceExhausted:
		// This is a quota of the project or the region.
		return outbox.RetryAfter(outbox.Unavailable(fault), pause(s))
	}
	return outbox.RetryAfter(outbox.Unavailable(fmt.Errorf("%w (outcome unknown)", fault)), pause(s))
}

// pause returns the pause that the service asks for, 0 if none.
func pause(s *status.Status) time.Duration {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return min(info.GetRetryDelay().AsDuration(), longestPause)
		}
	}
	return 0
}

func isMissing(err error) bool { return status.Code(err) == codes.NotFound }

func (b *Broker) create(ctx context.Context, client *pubsub.TopicAdminClient, topic string) error {
	_, err := client.CreateTopic(ctx, &pubsubpb.Topic{Name: b.path(topic)})
	switch status.Code(err) {
	case codes.OK:
		b.cfg.Logger.Info("created topic", "topic", topic)
	case codes.AlreadyExists: // another relay was faster
		return nil
	}
	return err
}
