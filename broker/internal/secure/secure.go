// Package secure puts TLS on top of connections, and says what to do where it does not come about.
package secure

import (
	"context"
	"crypto/tls"
	"net"
)

// Config returns a copy of cfg that takes no version before TLS 1.2, unless cfg names one; nil for nil.
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

// Connect returns conn with TLS on top, after a handshake that ctx ends; without TLS if cfg is nil. The server is
// expected to have the name in cfg, else the host of address. An error closes conn.
//
// A client without TLS learns that the server has it, and one with TLS 1.3 that its certificate is refused, when it waits
// for the server's first word. So until that has come, errors of the returned connection say what to do.
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

// request is what the server wants to see of the client, and what it is shown.
type request struct {
	asked, shown bool
	given        bool // there are certificates, whether or not the server knows their authority
}

// watch has cfg note what happens, and changes nothing of it.
func watch(cfg *tls.Config) *request {
	r := &request{given: len(cfg.Certificates) > 0 || cfg.GetClientCertificate != nil}
	choose := cfg.GetClientCertificate
	if choose == nil {
		choose = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return pick(info, cfg.Certificates), nil
		}
	}
	cfg.GetClientCertificate = func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		chosen, err := choose(info)
		r.asked = true
		r.shown = chosen != nil && len(chosen.Certificate) > 0
		return chosen, err
	}
	return r
}

// pick returns the first certificate that the server may accept, an empty one if there is none, as crypto/tls does.
func pick(info *tls.CertificateRequestInfo, certificates []tls.Certificate) *tls.Certificate {
	for i := range certificates {
		if info.SupportsCertificate(&certificates[i]) == nil {
			return &certificates[i]
		}
	}
	return new(tls.Certificate)
}
