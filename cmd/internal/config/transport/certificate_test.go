package transport

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/pgoutbox/outbox/internal/authority"
	"github.com/pgoutbox/outbox/internal/settings"
)

func TestACertificateThatWasReplacedIsShownFromTheNextConnectionOn(t *testing.T) {
	t.Parallel()
	signer := authority.New(t)
	first, second := signer.Client(t, "first"), signer.Client(t, "second")
	folder := t.TempDir()
	files := TLS{Enabled: true, CertFile: filepath.Join(folder, "cert.pem"), KeyFile: filepath.Join(folder, "key.pem")}
	replace := func(from, to string) {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	replace(first.File, files.CertFile)
	replace(first.KeyFile, files.KeyFile)
	var faults settings.Faults
	client := files.Config(&faults)
	if err := faults.Err(); err != nil {
		t.Fatal(err)
	}
	client.RootCAs = signer.Pool()
	client.ServerName = "server.example"
	server := &tls.Config{
		Certificates: []tls.Certificate{signer.Server(t, "server.example").Certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: signer.Pool(),
	}
	shows := func(want string) {
		t.Helper()
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		met := make(chan error, 1)
		go func() { met <- tls.Client(near, client).HandshakeContext(t.Context()) }()
		answering := tls.Server(far, server)
		if err := answering.HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-met; err != nil {
			t.Fatal(err)
		}
		if got := answering.ConnectionState().PeerCertificates[0].Subject.CommonName; got != want {
			t.Errorf("the relay shows the certificate of %q, want %q", got, want)
		}
	}
	shows("first")
	replace(second.File, files.CertFile)
	shows("first") // whose key is still there
	replace(second.KeyFile, files.KeyFile)
	shows("second")
}
