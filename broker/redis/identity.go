package redis

import (
	"context"
	"fmt"
	"strings"
)

// Identity returns the addresses of the servers, each with the database, or with the name of the master for sentinels:
// what a server says of itself is another thing after each restart. It asks no server.
func (b *Broker) Identity(context.Context) ([]string, error) {
	kind, of := "redis", fmt.Sprintf("database %d", b.cfg.Database)
	if b.cfg.SentinelMaster != "" {
		kind, of = "redis sentinel", fmt.Sprintf("master %s, %s", b.cfg.SentinelMaster, of)
	}
	var names []string
	for _, address := range b.addresses {
		names = append(names, fmt.Sprintf("%s %s, %s", kind, strings.ToLower(address), of))
	}
	return names, nil
}
