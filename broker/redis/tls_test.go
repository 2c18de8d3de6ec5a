package redis_test

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/internal/authority"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testnet"
)

// secured starts a server that listens with TLS as well, and shows the returned certificate.
func secured(t *testing.T, by *authority.Authority, demandClient bool) (*servers.Redis, authority.Certificate) {
	t.Helper()
	shown := by.Server(t, "127.0.0.1")
	return servers.OwnRedis(t, servers.RedisConfig{TLS: &servers.TLS{
		Certificate: shown.File, Key: shown.KeyFile, Authority: by.File(), DemandClient: demandClient,
	}}), shown
}

func TestMessagesArriveOverTLSAndEachFaultOfItSaysWhatToDo(t *testing.T) {
	t.Parallel()
	ours, theirs := authority.New(t), authority.New(t)
	open, _ := secured(t, ours, false)
	closed, _ := secured(t, ours, true)
	own, stranger := ours.Client(t, "relay").Certificate, theirs.Client(t, "relay").Certificate
	for name, c := range map[string]struct {
		server  *servers.Redis
		address string
		tls     *tls.Config
		want    []string // nothing: messages arrive
	}{
		"an authority of one's own": {open, open.TLSAddr(), &tls.Config{RootCAs: ours.Pool()}, nil},
		"with the client's": {closed, closed.TLSAddr(),
			&tls.Config{RootCAs: ours.Pool(), Certificates: []tls.Certificate{own}}, nil},
		"TLS 1.2 with the client's": {closed, closed.TLSAddr(),
			&tls.Config{RootCAs: ours.Pool(), Certificates: []tls.Certificate{own}, MaxVersion: tls.VersionTLS12}, nil},
		"an unknown authority": {open, open.TLSAddr(), &tls.Config{RootCAs: theirs.Pool()}, []string{"not trusted", "ca_file"}},
		"another name": {open, open.TLSAddr(),
			&tls.Config{RootCAs: ours.Pool(), ServerName: "redis.example"}, []string{"another name", "redis.example", "server_name"}},
		"no certificate": {closed, closed.TLSAddr(),
			&tls.Config{RootCAs: ours.Pool()}, []string{"asked for a certificate and got none", "cert_file"}},
		"no certificate in TLS 1.2": {closed, closed.TLSAddr(),
			&tls.Config{RootCAs: ours.Pool(), MaxVersion: tls.VersionTLS12}, []string{"asked for a certificate and got none", "cert_file"}},
		"a stranger's certificate": {closed, closed.TLSAddr(), &tls.Config{RootCAs: ours.Pool(),
			Certificates: []tls.Certificate{stranger}}, []string{"had seen the client's certificate", "authority that it knows"}},
		"the port for TLS without it": {open, open.TLSAddr(), nil, []string{"before it said anything", "turn TLS on"}},
		"the port without TLS for it": {open, open.Addr(), &tls.Config{RootCAs: ours.Pool()},
			[]string{"doesn't answer", "its port for TLS"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reader := client(t, c.server.Addr()) // without TLS
			stream := newStream(t, reader)
			b := newBroker(t, c.address, redis.Config{TLS: c.tls, ConnectTimeout: connectTimeout(c.want)})
			batch := brokertest.Messages(stream, 10, 3)
			if c.want != nil {
				brokertest.CheckOutage(t, b, batch, c.want...)
				return
			}
			accepted(t, b.Publish(patient(t), batch))
			checkExactly(t, reader, stream, batch)
		})
	}
}

// connectTimeout is short for what is expected to fail: Redis doesn't answer a handshake at its other port.
func connectTimeout(want []string) time.Duration {
	if len(want) > 0 && want[0] == "doesn't answer" {
		return await.Expiry(200 * time.Millisecond)
	}
	return 0
}

func TestANewCertificateIsMetByConnectingAgain(t *testing.T) {
	t.Parallel()
	ours, theirs := authority.New(t), authority.New(t)
	server, shown := secured(t, ours, false)
	c := client(t, server.Addr())
	stream := newStream(t, c)
	p := testnet.New(t, server.TLSAddr())
	all := brokertest.Messages(stream, 300, 10)
	brokertest.CheckRenewal(t, shown, ours, theirs, all, func(cfg *tls.Config) brokertest.Publisher {
		return newBroker(t, p.Addr(), redis.Config{TLS: cfg})
	}, func() {
		if err := c.ConfigSet(patient(t), "tls-cert-file", shown.File).Err(); err != nil {
			t.Fatal(err)
		}
		p.Cut()
	})
	checkExactly(t, c, stream, all)
}

func TestAClusterIsSpokenToWithTLS(t *testing.T) {
	t.Parallel()
	ours := authority.New(t)
	shown, own := ours.Server(t, "127.0.0.1"), ours.Client(t, "relay")
	server := servers.OwnRedis(t, servers.RedisConfig{Cluster: true,
		Settings: map[string]string{"cluster-announce-ip": "127.0.0.1", "tls-cluster": "yes"}, TLS: &servers.TLS{
			Certificate: shown.File, Key: shown.KeyFile, Authority: ours.File(), DemandClient: true,
		}})
	c := client(t, server.Addr())
	formCluster(t, c)
	stream := newStream(t, c)
	b := newBroker(t, server.TLSAddr(), redis.Config{Cluster: true, TLS: &tls.Config{
		RootCAs: ours.Pool(), Certificates: []tls.Certificate{own.Certificate},
	}})
	batch := brokertest.Messages(stream, 100, 10)
	accepted(t, b.Publish(patient(t), batch))
	checkExactly(t, c, stream, batch)
}
