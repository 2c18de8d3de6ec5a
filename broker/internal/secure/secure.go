// Package secure adds TLS to connections, and explains what to do when it fails.
package secure

import (
	"context"
	"crypto/tls"
	"net"
)

// Config returns a copy of cfg whose minimum version is TLS 1.2, unless cfg sets one; nil for nil.
func Config(cfg *tls.Config) *tls.Config {
	if cfg == nil {
		return nil
	}
	own := cfg.Clone()
	if own.MinVersion == 0 {
		own.MinVersion = tls.VersionTLS12
	}
	return own
}

// Connect returns conn with TLS, after a handshake that ctx bounds; without TLS if cfg is nil. The server must have the
// name in cfg, else the host of address. On an error, Connect closes conn.
//
// A client without TLS learns that the server requires it when it waits for the server's first bytes, and so does one
// with TLS 1.3 whose certificate is refused. So until these bytes have come, errors of the returned connection say what
// to do.
func Connect(ctx context.Context, conn net.Conn, cfg *tls.Config, address string) (net.Conn, error) {
	if cfg == nil {
		return greet(conn, true, withoutTLS), nil
	}
	own := Config(cfg)
	if own.ServerName == "" {
		own.ServerName, _, _ = net.SplitHostPort(address)
	}
	request := watch(own)
	client := tls.Client(conn, own)
	if err := client.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, request.handshake(err)
	}
	return greet(client, false, request.refused), nil
}

// request is what the server asks of the client, and what the client gave.
type request struct {
	requested, sent bool
	configured      bool // there are certificates, whether or not the server knows their authority
}

// watch makes cfg record what happens, without changing its behaviour.
func watch(cfg *tls.Config) *request {
	r := &request{configured: len(cfg.Certificates) > 0 || cfg.GetClientCertificate != nil}
	choose := cfg.GetClientCertificate
	if choose == nil {
		choose = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return pick(info, cfg.Certificates), nil
		}
	}
	cfg.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		chosen, err := choose(info)
		r.requested = true
		r.sent = chosen != nil && len(chosen.Certificate) > 0
		return chosen, err
	}
	return r
}

// pick returns the first certificate that the server may accept, or an empty one if there is none, as crypto/tls does.
func pick(info *tls.CertificateRequestInfo, certificates []tls.Certificate) *tls.Certificate {
	for i := range certificates {
		if info.SupportsCertificate(&certificates[i]) == nil {
			return &certificates[i]
		}
	}
	return new(tls.Certificate)
}
