package http_test

import (
	"slices"
	"strings"
	"testing"

	webhooks "github.com/pgoutbox/outbox/broker/http"
)

func TestAReceiverIsKnownByItsAddressWithoutSecrets(t *testing.T) {
	t.Parallel()
	names := func(url string) []string {
		b, err := webhooks.New(url, webhooks.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		names, err := b.Identity(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(strings.Join(names, ""), "secret") {
			t.Errorf("the identity of %s is %q", url, names)
		}
		return names
	}
	const url = "https://Example.com/hooks/secret/{topic}?token=secret&t={topic}"
	one := names(url)
	for _, same := range []string{"https://secret:secret@example.com/hooks/secret/{topic}", "https://example.com/hooks/secret/?x=y"} {
		if got := names(same); !slices.Equal(got, one) {
			t.Errorf("%s is %q, and %s %q", url, one, same, got)
		}
	}
	for _, other := range []string{"https://example.com/hooks/{topic}", "https://example.com", "http://example.com/hooks/secret/{topic}",
		"https://example.com:8443/hooks/secret/{topic}"} {
		if got := names(other); slices.Equal(got, one) {
			t.Errorf("%s and %s are both %q", url, other, got)
		}
	}
}
