package rabbitmq

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/pgoutbox/outbox"
	"github.com/rabbitmq/amqp091-go"
)

// Identity returns the name that the cluster gives itself, and the addresses of the servers, each with the virtual
// host.
func (b *Broker) Identity(ctx context.Context) ([]string, error) {
	l, err := b.shared.Get(ctx)
	if err != nil {
		return nil, outbox.Unavailable(err)
	}
	var names []string
	if cluster, ok := l.conn.Properties["cluster_name"].(string); ok && cluster != "" {
		names = append(names, fmt.Sprintf("rabbitmq cluster %s, vhost %s", cluster, l.conn.Config.Vhost))
	}
	for _, s := range b.servers {
		u, err := amqp091.ParseURI(s.url)
		if err != nil {
			continue // New has parsed it
		}
		names = append(names, fmt.Sprintf("rabbitmq %s, vhost %s",
			strings.ToLower(net.JoinHostPort(u.Host, strconv.Itoa(u.Port))), l.conn.Config.Vhost))
	}
	return names, nil
}
