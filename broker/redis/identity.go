package redis

import (
	"context"
	"fmt"
	"strings"
)

// Identity returns the addresses of the servers, each with the database, or with the name of the master for sentinels:
// a server's own id changes at each restart. It sends no request.
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
