package http_test

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	webhooks "github.com/pgoutbox/outbox/broker/http"
	"golang.org/x/net/dns/dnsmessage"
)

// A name that resolves to a private address when the connection is made, whatever it was before, is refused;
// so is an IPv4 address within an IPv6 one.
func TestANameThatResolvesToAPrivateAddressIsNotConnectedTo(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	s := server(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	url := "http://receiver.example:" + port + "/"
	for _, resolved := range []string{"127.0.0.1", "::ffff:127.0.0.1", "::1", "169.254.169.254"} {
		b, err := webhooks.New(url, webhooks.Config{Keys: keys(), Resolver: nameServer(t, netip.MustParseAddr(resolved))})
		if err != nil {
			t.Fatal(err)
		}
		errs := b.Publish(patient(t), messages(1, 1))
		if len(errs) != 1 || kind(errs[0]) != "unavailable" || !strings.Contains(errs[0].Error(), "is not allowed") {
			t.Errorf("%s: outcome %v", resolved, errs)
		}
		if err := b.Ping(patient(t)); err == nil {
			t.Errorf("%s: ping connects", resolved)
		}
		_ = b.Close()
	}
	if n := asked.Load(); n != 0 {
		t.Fatalf("%d requests came through", n)
	}
	// The same way is open when it is allowed, so it was the guard that closed it.
	allowed := newBroker(t, url, webhooks.Config{Resolver: nameServer(t, netip.MustParseAddr("127.0.0.1"))})
	accepted(t, allowed.Publish(patient(t), messages(1, 1)))
}

func TestAPrivateAddressInTheURLIsAFaultAtOnce(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://127.0.0.1/", "http://[::1]:8080/", "https://169.254.169.254/latest", "http://[::ffff:10.0.0.1]/"} {
		if _, err := webhooks.New(url, webhooks.Config{}); err == nil || !strings.Contains(err.Error(), "AllowNetworks") {
			t.Errorf("%s: %v", url, err)
		}
	}
	b, err := webhooks.New("http://localhost:1/", webhooks.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if errs := b.Publish(patient(t), messages(1, 1)); len(errs) != 1 || !strings.Contains(errs[0].Error(), "is not allowed") {
		t.Errorf("outcome %v", errs)
	}
}

// nameServer answers every question with one address.
func nameServer(t *testing.T, ip netip.Addr) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer, err := nameAnswer(buf[:n], ip); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func nameAnswer(question []byte, ip netip.Addr) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(question); err != nil {
		return nil, err
	}
	m.Response, m.Additionals = true, nil
	q := m.Questions[0]
	head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}
	switch {
	case q.Type == dnsmessage.TypeA && ip.Is4():
		m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AResource{A: ip.As4()}}}
	case q.Type == dnsmessage.TypeAAAA && !ip.Is4():
		m.Answers = []dnsmessage.Resource{{Header: head, Body: &dnsmessage.AAAAResource{AAAA: ip.As16()}}}
	}
	return m.Pack()
}
