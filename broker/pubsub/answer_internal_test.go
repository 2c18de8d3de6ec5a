package pubsub

import (
	"context"
	"net"
	"strings"
	"testing"

	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestThePageHasTheKindOfEveryCode(t *testing.T) {
	t.Parallel()
	b := &Broker{cfg: Config{Project: "p"}}
	answers := brokertest.Answers{}
	for name, code := range map[string]codes.Code{
		"CANCELLED": codes.Canceled, "UNKNOWN": codes.Unknown, "INVALID_ARGUMENT": codes.InvalidArgument,
		"DEADLINE_EXCEEDED": codes.DeadlineExceeded, "NOT_FOUND": codes.NotFound, "ALREADY_EXISTS": codes.AlreadyExists,
		"PERMISSION_DENIED": codes.PermissionDenied, "RESOURCE_EXHAUSTED": codes.ResourceExhausted,
		"FAILED_PRECONDITION": codes.FailedPrecondition, "ABORTED": codes.Aborted, "OUT_OF_RANGE": codes.OutOfRange,
		"UNIMPLEMENTED": codes.Unimplemented, "INTERNAL": codes.Internal, "UNAVAILABLE": codes.Unavailable,
		"DATA_LOSS": codes.DataLoss, "UNAUTHENTICATED": codes.Unauthenticated,
	} {
		answers["`"+name+"`"] = b.classify("t", status.Error(code, "no"))
	}
	answers["`RESOURCE_EXHAUSTED` about size"] = b.classify("t",
		status.Error(codes.ResourceExhausted, "grpc: received message larger than max (10000000 vs. 4194304)"))
	answers.Page(t, "../../docs/brokers", "pubsub.md", "codes")
}

// project is a service where topics exist, and messages may be published to those that begin with "open".
type project struct {
	pubsubpb.UnimplementedPublisherServer
	iampb.UnimplementedIAMPolicyServer
}

func (project) GetTopic(_ context.Context, r *pubsubpb.GetTopicRequest) (*pubsubpb.Topic, error) {
	return &pubsubpb.Topic{Name: r.GetTopic()}, nil
}

func (project) TestIamPermissions(_ context.Context, r *iampb.TestIamPermissionsRequest) (*iampb.TestIamPermissionsResponse, error) {
	granted := &iampb.TestIamPermissionsResponse{}
	if strings.Contains(r.GetResource(), "/topics/open") {
		granted.Permissions = r.GetPermissions()
	}
	return granted, nil
}

func TestAProbeWantsTheRightToPublish(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pubsubpb.RegisterPublisherServer(server, project{})
	iampb.RegisterIAMPolicyServer(server, project{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	for topic, fault := range map[string]string{"open": "", "closed": "roles/pubsub.publisher"} {
		b, err := New(Config{Project: "p-12345", Topic: topic, Endpoint: listener.Addr().String(), Insecure: true})
		err = brokertest.Opened(t, b, err).Ping(brokertest.Patient(t))
		if fault != "" {
			brokertest.Contains(t, err, topic, fault)
		} else if err != nil {
			t.Errorf("a topic that may be published to: %v", err)
		}
	}
}
