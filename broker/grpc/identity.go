package grpc

import (
	"context"
	"strings"
)

// Identity returns the server's address. It sends no request.
func (b *Broker) Identity(context.Context) ([]string, error) {
	target := b.target
	for _, scheme := range []string{"dns:///", "passthrough:///"} {
		target = strings.TrimPrefix(target, scheme)
	}
	return []string{"grpc " + strings.ToLower(target)}, nil
}
