package secure_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/secure"
	"github.com/pgoutbox/outbox/internal/authority"
	"github.com/pgoutbox/outbox/internal/await"
)

// serve has a listener that hands each connection to greet, and returns its address.
func serve(t *testing.T, greet func(net.Conn)) string {
	t.Helper()
	return brokertest.Serve(t, greet)
}

// hello is a server that answers a line with a line, over TLS.
func hello(cfg *tls.Config) func(net.Conn) {
	return func(conn net.Conn) {
		server := tls.Server(conn, cfg)
		var line [6]byte
		if _, err := io.ReadFull(server, line[:]); err == nil {
			_, _ = server.Write([]byte("welcome"))
		}
		_, _ = io.Copy(io.Discard, conn) // what the client says after that is heard, so that nothing is reset
	}
}

// enter connects, says a line and returns what the server says, and the connection.
func enter(t *testing.T, address string, cfg *tls.Config) (string, net.Conn, error) {
	t.Helper()
	plain, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := secure.Connect(await.Context(t), plain, cfg, address)
	if err != nil {
		return "", nil, err
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		return "", conn, err
	}
	answer := make([]byte, len("welcome"))
	n, err := conn.Read(answer)
	return string(answer[:n]), conn, err
}

func TestEveryWayToFailSaysWhatToDo(t *testing.T) {
	t.Parallel()
	ours, theirs := authority.New(t), authority.New(t)
	client, stranger := ours.Client(t, "relay").Certificate, theirs.Client(t, "relay").Certificate
	always := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &stranger, nil }
	good := &tls.Config{Certificates: []tls.Certificate{ours.Server(t, "127.0.0.1").Certificate}}
	demanding := good.Clone()
	demanding.ClientAuth, demanding.ClientCAs = tls.RequireAndVerifyClientCert, ours.Pool()
	old := &tls.Config{Certificates: []tls.Certificate{ours.Expired(t).Certificate}}
	trusting := &tls.Config{RootCAs: ours.Pool()}

	for name, c := range map[string]struct {
		server *tls.Config
		client *tls.Config
		want   []string // nothing: welcome
	}{
		"a trusted server":      {good, trusting, nil},
		"the right certificate": {demanding, &tls.Config{RootCAs: ours.Pool(), Certificates: []tls.Certificate{stranger, client}}, nil},
		"a certificate unasked": {good, &tls.Config{RootCAs: ours.Pool(), Certificates: []tls.Certificate{stranger}}, nil},
		"another authority":     {good, &tls.Config{RootCAs: theirs.Pool()}, []string{"not trusted", "ca_file"}},
		"another name": {good, &tls.Config{RootCAs: ours.Pool(), ServerName: "broker.example"},
			[]string{"another name", "broker.example", "server_name"}},
		"an expired server": {old, trusting, []string{"out of date", "renew"}},
		"no certificate":    {demanding, trusting, []string{"got none", "cert_file"}},
		"one that isn't asked for": {demanding, &tls.Config{RootCAs: ours.Pool(), Certificates: []tls.Certificate{stranger}},
			[]string{"none that the client has", "cert_file"}},
		"one of a stranger": {demanding, &tls.Config{RootCAs: ours.Pool(), GetClientCertificate: always},
			[]string{"had seen the client's certificate", "authority that it knows"}},
	} {
		for version, text := range map[uint16]string{tls.VersionTLS12: "TLS 1.2", tls.VersionTLS13: "TLS 1.3"} {
			t.Run(name+" in "+text, func(t *testing.T) {
				t.Parallel()
				server := c.server.Clone()
				server.MinVersion, server.MaxVersion = version, version
				answer, conn, err := enter(t, serve(t, hello(server)), c.client)
				if c.want == nil {
					if err != nil || answer != "welcome" || secure.Fault(conn) != nil {
						t.Errorf("answer %q, error %v, fault %v", answer, err, secure.Fault(conn))
					}
					return
				}
				for _, want := range c.want {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("error %v, want one that says %q", err, want)
					}
				}
				if conn != nil && !errors.Is(err, secure.Fault(conn)) {
					t.Errorf("error %v, but fault %v", err, secure.Fault(conn))
				}
				if errors.Unwrap(err) != nil && conn != nil {
					t.Errorf("a library that unwraps once loses the explanation, and shows %v", errors.Unwrap(err))
				}
			})
		}
	}
	if trusting.GetClientCertificate != nil || trusting.ServerName != "" {
		t.Error("what was given was changed")
	}
}

func TestOneEndWithoutTLSIsNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		server func(net.Conn)
		client *tls.Config
		want   string
	}{
		"a client without, an alert": {func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 6))
			_, _ = conn.Write([]byte{21, 3, 3, 0, 2, 2, 10}) // unexpected message, as Erlang says it
		}, nil, "speaks TLS at this port"},
		"a client without, a reset": {func(conn net.Conn) {
			_, _ = conn.Read(make([]byte, 1))
			_ = conn.(*net.TCPConn).SetLinger(0) // as Redis does
		}, nil, "before it said anything"},
		"a server that greets":   {func(conn net.Conn) { _, _ = conn.Write([]byte("+OK welcome\r\n")) }, &tls.Config{}, "speaks no TLS"},
		"a server that hangs up": {func(net.Conn) {}, &tls.Config{}, "its port for TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer, _, err := enter(t, serve(t, c.server), c.client)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("answer %q, error %v, want one that says %q", answer, err, c.want)
			}
		})
	}
}

func TestAServerThatNeverAnswersTheHandshakeIsAskedAboutItsPort(t *testing.T) {
	t.Parallel()
	silent := serve(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	plain, err := net.Dial("tcp", silent)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Expiry(50*time.Millisecond))
	defer cancel()
	_, err = secure.Connect(ctx, plain, &tls.Config{}, silent)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "its port for TLS") {
		t.Errorf("error %v", err)
	}
	if _, err := plain.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the connection was left open: %v", err)
	}
}

func TestAfterItsFirstWordAServerMayGoWithoutBeingExplained(t *testing.T) {
	t.Parallel()
	ours := authority.New(t)
	cfg := &tls.Config{Certificates: []tls.Certificate{ours.Server(t, "127.0.0.1").Certificate}, ClientAuth: tls.RequestClientCert}
	goodbye := func(conn net.Conn) {
		server := tls.Server(conn, cfg)
		_, _ = server.Read(make([]byte, 6))
		_, _ = server.Write([]byte("welcome"))
	}
	answer, conn, err := enter(t, serve(t, goodbye), &tls.Config{RootCAs: ours.Pool()})
	if answer != "welcome" || err != nil {
		t.Fatalf("answer %q, error %v", answer, err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "certificate") {
		t.Errorf("error %v", err)
	}
	if fault := secure.Fault(conn); fault != nil {
		t.Errorf("fault %v", fault)
	}
}

func TestAConnectionWithoutTLSCanStillBeLookedAt(t *testing.T) {
	t.Parallel()
	address := serve(t, func(conn net.Conn) { fmt.Fprint(conn, "welcome") })
	_, conn, err := enter(t, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := conn.(syscall.Conn); !ok {
		t.Error("go-redis finds out by the system's socket whether an idle connection still stands, and can't")
	}
}

func TestNoVersionBeforeTLS12IsTakenUnlessItIsNamed(t *testing.T) {
	t.Parallel()
	if secure.Config(nil) != nil {
		t.Error("a config out of nothing")
	}
	for given, want := range map[uint16]uint16{0: tls.VersionTLS12,
		tls.VersionTLS10: tls.VersionTLS10, tls.VersionTLS13: tls.VersionTLS13} {
		cfg := &tls.Config{MinVersion: given}
		if got := secure.Config(cfg); got.MinVersion != want || cfg.MinVersion != given {
			t.Errorf("from %x on is taken where %x was given, and that is now %x", got.MinVersion, given, cfg.MinVersion)
		}
	}
}
