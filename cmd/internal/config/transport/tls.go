// Package transport has the sections of transport security, with certificates that may be replaced while the relay
// runs.
package transport

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"

	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/internal/settings"
)

// TLS configures transport security.
type TLS struct {
	Enabled            bool   `json:"enabled" jsonschema:"Whether TLS is used."`
	CAFile             string `json:"ca_file" jsonschema:"PEM file of the certificate authorities to trust. Empty: those of the system."`
	CertFile           string `json:"cert_file" jsonschema:"PEM file of the client's certificate. It and key_file are read again for each connection, so they may be replaced."`
	KeyFile            string `json:"key_file" jsonschema:"PEM file of the client's key."`
	ServerName         string `json:"server_name" jsonschema:"Name that the server's certificate must have. Empty: the host that is connected to."`
	InsecureSkipVerify bool   `json:"insecure_skip_verify" jsonschema:"Accept any certificate. For tests alone."`
}

// Config is nil when TLS is not enabled. Faults are of the field TLS.
func (t TLS) Config(faults *settings.Faults) *tls.Config {
	if !t.Enabled {
		return nil
	}
	cfg := &tls.Config{ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify, MinVersion: tls.VersionTLS12}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		faults.Add("TLS.CAFile", findings.Unreadable(t.CAFile, err))
		cfg.RootCAs = x509.NewCertPool()
		faults.Need(cfg.RootCAs.AppendCertsFromPEM(pem) || err != nil, "TLS.CAFile", "%s has no certificate in PEM form", t.CAFile)
	}
	faults.Need(t.CertFile != "" || t.KeyFile == "", "TLS.CertFile", "not given, but key_file is")
	faults.Need(t.KeyFile != "" || t.CertFile == "", "TLS.KeyFile", "not given, but cert_file is")
	if t.CertFile != "" && t.KeyFile != "" {
		own := &ownCertificate{certFile: t.CertFile, keyFile: t.KeyFile}
		certErr, keyErr := findings.Readable(t.CertFile), findings.Readable(t.KeyFile)
		faults.Add("TLS.CertFile", certErr)
		faults.Add("TLS.KeyFile", keyErr)
		if errors.Join(certErr, keyErr) == nil {
			faults.Add("TLS.CertFile", own.read())
		}
		cfg.GetClientCertificate = own.choose
	}
	return cfg
}

// Advise warns about settings that have no effect, and about a server that anybody may be.
func (t TLS) Advise(r *findings.Report, path string) {
	off := t
	off.Enabled = false
	r.Advise(t.Enabled || off == TLS{}, path, "has no effect, since tls.enabled is false")
	r.Advise(!t.Enabled || !t.InsecureSkipVerify, path+".insecure_skip_verify", "any server is trusted, whatever its certificate")
}
