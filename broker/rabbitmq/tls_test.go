package rabbitmq_test

import (
	"crypto/tls"
	"io"
	"net"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/internal/authority"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// TestTLS has one server for all, which demands a certificate of its clients: RabbitMQ takes seconds to start.
func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := authority.New(t), authority.New(t)
	shown := ours.Server(t, "127.0.0.1")
	server := servers.OwnRabbitMQ(t, servers.RabbitMQConfig{TLS: &servers.TLS{
		Certificate: shown.File, Key: shown.KeyFile, Authority: ours.File(), DemandClient: true,
	}})
	relay := ours.Client(t, "relay").Certificate
	t.Run("messages arrive, and each fault says what to do", func(t *testing.T) {
		testFaultsOfTLS(t, server, ours, theirs, relay)
	})
	t.Run("a certificate authenticates the user of its name", func(t *testing.T) {
		testExternal(t, server, ours, relay)
	})
	t.Run("a new certificate is met by connecting again", func(t *testing.T) {
		testRenewal(t, server, shown, ours, theirs, relay)
	})
}

func amqps(address string) string { return "amqps://guest:guest@" + address }

func testFaultsOfTLS(t *testing.T, server *servers.RabbitMQ, ours, theirs *authority.Authority, relay tls.Certificate) {
	both := []tls.Certificate{relay}
	stranger := theirs.Client(t, "relay").Certificate
	always := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &stranger, nil }
	for name, c := range map[string]struct {
		url  string
		tls  *tls.Config
		want []string // nothing: messages arrive
	}{
		"an authority of one's own": {amqps(server.TLSAddr()), &tls.Config{RootCAs: ours.Pool(), Certificates: both}, nil},
		"the same in TLS 1.2": {amqps(server.TLSAddr()),
			&tls.Config{RootCAs: ours.Pool(), Certificates: both, MaxVersion: tls.VersionTLS12}, nil},
		"an unknown authority": {amqps(server.TLSAddr()),
			&tls.Config{RootCAs: theirs.Pool(), Certificates: both}, []string{"not trusted", "ca_file"}},
		"the system's authorities": {amqps(server.TLSAddr()), nil, []string{"not trusted", "ca_file"}},
		"another name": {amqps(server.TLSAddr()), &tls.Config{RootCAs: ours.Pool(),
			Certificates: both, ServerName: "rabbit.example"}, []string{"another name", "rabbit.example", "server_name"}},
		"no certificate": {amqps(server.TLSAddr()),
			&tls.Config{RootCAs: ours.Pool()}, []string{"asked for a certificate and got none", "cert_file"}},
		"no certificate in TLS 1.2": {amqps(server.TLSAddr()),
			&tls.Config{RootCAs: ours.Pool(), MaxVersion: tls.VersionTLS12}, []string{"asked for a certificate and got none", "cert_file"}},
		"a certificate held back": {amqps(server.TLSAddr()), &tls.Config{RootCAs: ours.Pool(),
			Certificates: []tls.Certificate{stranger}}, []string{"none that the client has", "cert_file"}},
		"a stranger's certificate": {amqps(server.TLSAddr()), &tls.Config{RootCAs: ours.Pool(), GetClientCertificate: always},
			[]string{"had seen the client's certificate", "authority that it knows"}},
		"the port for TLS without it": {"amqp://guest:guest@" + server.TLSAddr(), nil, []string{"speaks TLS at this port", "turn TLS on"}},
		"the port without TLS for it": {amqps(server.Addr()),
			&tls.Config{RootCAs: ours.Pool()}, []string{"speaks no TLS at this port", "turn TLS off"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, server.URL(), nil)
			b := newBroker(t, c.url, rabbitmq.Config{TLS: c.tls})
			batch := brokertest.Messages(q.name, 10, 3)
			if c.want != nil {
				brokertest.CheckOutage(t, b, batch, c.want...)
				return
			}
			accepted(t, b.Publish(patient(t), batch))
			checkOrder(t, q, batch)
		})
	}
}

func testExternal(t *testing.T, server *servers.RabbitMQ, ours *authority.Authority, relay tls.Certificate) {
	as := func(who tls.Certificate) rabbitmq.Config {
		return rabbitmq.Config{External: true, TLS: &tls.Config{RootCAs: ours.Pool(), Certificates: []tls.Certificate{who}}}
	}
	q := newQueue(t, server.URL(), nil)
	url := "amqps://" + server.TLSAddr()
	err := newBroker(t, url, as(relay)).Ping(patient(t))
	if !outbox.IsUnavailable(err) {
		t.Errorf("a user who is not there: %v, want an outage", err)
	}
	contains(t, err, "the user of its name")
	batch := brokertest.Messages(q.name, 10, 3)
	accepted(t, newBroker(t, url, as(ours.Client(t, "guest").Certificate)).Publish(patient(t), batch))
	checkOrder(t, q, batch)
}

func testRenewal(t *testing.T, server *servers.RabbitMQ, shown authority.Certificate,
	ours, theirs *authority.Authority, relay tls.Certificate) {
	q := newQueue(t, server.URL(), nil)
	p := testnet.New(t, server.TLSAddr())
	all := brokertest.Messages(q.name, 300, 10)
	brokertest.CheckRenewal(t, shown, ours, theirs, all, func(cfg *tls.Config) brokertest.Publisher {
		cfg.Certificates = []tls.Certificate{relay}
		return newBroker(t, amqps(p.Addr()), rabbitmq.Config{TLS: cfg})
	}, p.Cut)
	checkOrder(t, q, all)
}

func TestTLSThatIsConfiguredIsNeverLeftOut(t *testing.T) {
	t.Parallel()
	_, err := rabbitmq.New("amqps://a,amqp://b", rabbitmq.Config{TLS: &tls.Config{}})
	contains(t, err, "server 2", "amqps://")
}

func TestAServerThatKnowsNoCertificatesAsUsersSaysSo(t *testing.T) {
	t.Parallel()
	ours := authority.New(t)
	cfg := &tls.Config{Certificates: []tls.Certificate{ours.Server(t, "127.0.0.1").Certificate}}
	address := brokertest.Serve(t, func(plain net.Conn) {
		conn := tls.Server(plain, cfg)
		// Connection.Start 0.9, without properties, and PLAIN as the only mechanism.
		start := "\x00\x0a\x00\x0a" + "\x00\x09" + "\x00\x00\x00\x00" + "\x00\x00\x00\x05PLAIN" + "\x00\x00\x00\x05en_US"
		if _, err := io.ReadFull(conn, make([]byte, 8)); err != nil {
			return
		}
		_, _ = conn.Write([]byte("\x01\x00\x00\x00\x00\x00" + string(rune(len(start))) + start + "\xce"))
		_, _ = io.Copy(io.Discard, conn)
	})
	b := newBroker(t, "amqps://"+address, rabbitmq.Config{External: true, TLS: &tls.Config{RootCAs: ours.Pool()}})
	err := b.Ping(patient(t))
	if !outbox.IsUnavailable(err) {
		t.Errorf("%v, want an outage", err)
	}
	contains(t, err, "rabbitmq_auth_mechanism_ssl")
}
