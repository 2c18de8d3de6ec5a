package http

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
)

// Identity returns the receiver's address. Of its path, which may be a secret, it has a hash, and nothing of a query or
// of fields. It sends no request.
func (b *Broker) Identity(context.Context) ([]string, error) {
	origin := strings.ToLower(strings.TrimSuffix(b.endpoint.origin.String(), "/"))
	path, _, _ := strings.Cut(b.endpoint.template.Literals[0], "?")
	if _, rest, ok := strings.Cut(path, "://"); ok {
		_, path, _ = strings.Cut(rest, "/")
	}
	if path = strings.Trim(path, "/"); path == "" {
		return []string{"http " + origin}, nil
	}
	return []string{fmt.Sprintf("http %s, path %.4x", origin, sha256.Sum256([]byte(path)))}, nil
}
