package brokertest

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/authority"
	"github.com/pgoutbox/outbox/internal/await"
)

// PingPublisher is the part of a broker that CheckOutage needs.
type PingPublisher interface {
	Publisher
	Ping(ctx context.Context) error
}

// CheckOutage requires that b can deliver nothing of batch because of an outage, and that Publish and Ping say why.
func CheckOutage(t testing.TB, b PingPublisher, batch []*outbox.Message, why ...string) {
	t.Helper()
	errs := b.Publish(Patient(t), batch)
	CheckOutcomes(t, batch, errs)
	if errs == nil {
		t.Fatal("messages were accepted")
	}
	for i, err := range append(errs, b.Ping(Patient(t))) { // Ping's is the last
		if errors.Is(err, outbox.ErrSkipped) {
			continue
		}
		if !outbox.IsUnavailable(err) {
			t.Errorf("outcome %d of %d: %v, want an outage", i, len(errs), err)
		}
		Contains(t, err, why...)
	}
}

// CheckPing requires that Ping finds an outage, and says why.
func CheckPing(t testing.TB, b PingPublisher, why ...string) {
	t.Helper()
	err := b.Ping(Patient(t))
	if !outbox.IsUnavailable(err) {
		t.Errorf("ping: %v, want an outage", err)
	}
	Contains(t, err, why...)
}

// CheckRenewal delivers batch while the server shows one certificate after another: a renewed one, one of a stranger,
// and again one of ours. open returns a broker with the configuration. installed is called when the server's files have
// been replaced: it makes the server read them, and cuts its connections.
func CheckRenewal(t *testing.T, shown authority.Certificate, ours, theirs *authority.Authority, batch []*outbox.Message,
	open func(*tls.Config) Publisher, installed func()) {
	t.Helper()
	var seen atomic.Value
	b := open(&tls.Config{RootCAs: ours.Pool(), VerifyConnection: func(state tls.ConnectionState) error {
		seen.Store(state.PeerCertificates[0].SerialNumber.String())
		return nil
	}})
	install := func(by authority.Certificate) {
		t.Helper()
		by.Install(t, shown)
		installed()
	}
	third := len(batch) / 3
	Accepted(t, b.Publish(Patient(t), batch[:third]))
	if seen.Load() != shown.Leaf.SerialNumber.String() {
		t.Fatalf("certificate %v was shown, want %v", seen.Load(), shown.Leaf.SerialNumber)
	}

	renewed := ours.Server(t, "127.0.0.1")
	install(renewed)
	Deliver(Patient(t), t, b, batch[third:2*third])
	if seen.Load() != renewed.Leaf.SerialNumber.String() {
		t.Errorf("certificate %v was shown, want %v", seen.Load(), renewed.Leaf.SerialNumber)
	}

	rest := batch[2*third:]
	install(theirs.Server(t, "127.0.0.1"))
	await.Until(t, "the stranger is noticed", func() bool {
		errs := b.Publish(Patient(t), rest)
		CheckOutcomes(t, rest, errs)
		if errs == nil || !outbox.IsUnavailable(errs[0]) {
			t.Fatalf("outcomes %v, want an outage", errs)
		}
		return strings.Contains(errs[0].Error(), "not trusted") // at first it may be that the connection was cut
	})

	install(ours.Server(t, "127.0.0.1"))
	Deliver(Patient(t), t, b, rest)
}
