package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"

	"github.com/pgoutbox/outbox/cmd/internal/config"
)

// tlsConfig is nil when TLS is not enabled.
func tlsConfig(t config.TLS) (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	cfg := &tls.Config{ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify, MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read tls.ca_file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca_file %s has no certificate in PEM form", t.CAFile)
		}
	}
	if t.CertFile != "" {
		own := &ownCertificate{certFile: t.CertFile, keyFile: t.KeyFile}
		if err := own.read(); err != nil {
			return nil, fmt.Errorf("read tls.cert_file and tls.key_file: %w", err)
		}
		cfg.GetClientCertificate = own.choose
	}
	return cfg, nil
}

// ownCertificate is what the relay shows of itself. Files are read again for each connection, because certificates that
// live for hours are replaced while the relay runs.
type ownCertificate struct {
	certFile, keyFile string

	mu   sync.Mutex
	pair tls.Certificate
}

func (c *ownCertificate) read() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pair = pair
	return nil
}

// choose is for tls.Config.GetClientCertificate. As crypto/tls does, it shows nothing that the server says it wouldn't accept.
func (c *ownCertificate) choose(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	_ = c.read() // half replaced, the two files don't fit each other: the pair before them may still be good
	c.mu.Lock()
	pair := c.pair
	c.mu.Unlock()
	if request.SupportsCertificate(&pair) != nil {
		return new(tls.Certificate), nil
	}
	return &pair, nil
}
