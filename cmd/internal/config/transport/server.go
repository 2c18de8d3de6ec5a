package transport

import (
	"crypto/tls"

	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
)

// ServerTLS is the certificate of a listener.
type ServerTLS struct {
	CertFile string `json:"cert_file" jsonschema:"PEM file of the certificate. It and key_file are read again for each connection, so they may be replaced."`
	KeyFile  string `json:"key_file" jsonschema:"PEM file of the key."`
}

// Config is nil without a certificate. The files are readable, as Check has found.
func (t ServerTLS) Config() *tls.Config {
	if t.CertFile == "" {
		return nil
	}
	own := &ownCertificate{certFile: t.CertFile, keyFile: t.KeyFile}
	return &tls.Config{MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.current() }}
}

// Check reports what is wrong with the files.
func (t ServerTLS) Check(r *findings.Report, path string) {
	r.Check(t.CertFile != "" || t.KeyFile == "", path+".cert_file", "not given, but key_file is")
	r.Check(t.KeyFile != "" || t.CertFile == "", path+".key_file", "not given, but cert_file is")
	if t.CertFile != "" && t.KeyFile != "" {
		own := &ownCertificate{certFile: t.CertFile, keyFile: t.KeyFile}
		err := own.read()
		r.Check(err == nil, path, "the certificate can't be used: %v", err)
	}
}
