package kafka

import (
	"context"

	"github.com/pgoutbox/outbox"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Identity returns the cluster's id, which it keeps whatever its servers and their addresses are.
func (b *Broker) Identity(ctx context.Context) ([]string, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none; nil stands for all
	resp, err := req.RequestWith(ctx, b.control)
	if err != nil {
		return nil, outbox.Unavailable(b.down(err))
	}
	if resp.ClusterID == nil || *resp.ClusterID == "" {
		return nil, nil // a server of another make
	}
	return []string{"kafka cluster " + *resp.ClusterID}, nil
}
