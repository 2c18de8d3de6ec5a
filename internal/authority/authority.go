// Package authority signs certificates for tests: of servers, of clients, and of those that are not trusted.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates. It lives in memory and in a folder of its test.
type Authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	folder      string
}

// New returns an authority that no system trusts.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{folder: t.TempDir()}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "authority " + rand.Text()[:8]},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	c := a.sign(t, template)
	a.key = c.PrivateKey.(*ecdsa.PrivateKey)
	a.certificate = c.Leaf
	write(t, a.File(), "CERTIFICATE", c.Leaf.Raw)
	return a
}

// File returns the path of the authority's own certificate, in PEM.
func (a *Authority) File() string { return filepath.Join(a.folder, "authority.pem") }

// Pool returns the authority as one to be trusted.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// Certificate is a certificate with its key, in memory and in PEM files.
type Certificate struct {
	tls.Certificate
	File, KeyFile string
}

// Server returns a certificate for a server of these names, each a host's name or an IP address.
func (a *Authority) Server(t testing.TB, names ...string) Certificate {
	t.Helper()
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "server"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return a.sign(t, template)
}

// Expired returns a certificate for the server 127.0.0.1 that expired an hour ago.
func (a *Authority) Expired(t testing.TB) Certificate {
	t.Helper()
	return a.sign(t, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "server"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter:    time.Now().Add(-time.Hour),
	})
}

// Client returns a certificate for the client of this name.
func (a *Authority) Client(t testing.TB, name string) Certificate {
	t.Helper()
	return a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// Install writes c over the files of old, as a renewal does.
func (c Certificate) Install(t testing.TB, old Certificate) {
	t.Helper()
	for from, to := range map[string]string{c.KeyFile: old.KeyFile, c.File: old.File} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// sign completes the template and signs it; the authority's own, which comes first, by itself.
func (a *Authority) sign(t testing.TB, template *x509.Certificate) Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		t.Fatal(err)
	}
	template.NotBefore = time.Now().Add(-24 * time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(24 * time.Hour)
	}
	parent, by := a.certificate, a.key
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(a.folder, template.SerialNumber.Text(36))
	c := Certificate{
		Certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf},
		File:        base + ".pem",
		KeyFile:     base + ".key",
	}
	write(t, c.File, "CERTIFICATE", der)
	write(t, c.KeyFile, "PRIVATE KEY", private)
	return c
}

func write(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
}
