package secure

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
)

// Explain adds to an error of a TLS handshake what to do about it, if the error alone tells that.
func Explain(err error) error {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &authority):
		return fmt.Errorf("the server's certificate is not trusted: %w; name the authority that signed it (RootCAs, ca_file)", err)
	case errors.As(err, &name):
		return fmt.Errorf("the server's certificate is one for another name: %w; connect by a name that it has, or say "+
			"which to expect (ServerName, server_name)", err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the server's certificate is out of date: %w; renew it, or set the clock right", err)
	case errors.As(err, &record):
		return fmt.Errorf("the server speaks no TLS at this port: %w; connect to its port for TLS, or turn TLS off", err)
	}
	return err
}

// handshake explains why the handshake failed.
func (r *request) handshake(err error) error {
	switch {
	case alert(err) != "" && r.requested:
		err = r.refused(err)
	case alert(err) == "protocol version not supported":
		err = fmt.Errorf("the server takes no TLS 1.2 or later: %w; have it take one", err)
	case ended(err):
		err = fmt.Errorf("the server closed the connection: %w; is this its port for TLS?", err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("the server doesn't answer: %w; is this its port for TLS?", err)
	default:
		err = Explain(err)
	}
	return fmt.Errorf("TLS: %w", err)
}

// refused explains why a server that has asked for a certificate ended the connection without a message. It may have
// sent the reason: with TLS 1.3 the client loses it if it is writing at that moment.
func (r *request) refused(err error) error {
	text := alert(err)
	switch {
	case text == "" && !ended(err) || !r.requested:
		return err
	case strings.Contains(text, "expired"):
		return fmt.Errorf("the client's certificate is out of date: %w; renew it (Certificates, cert_file)", err)
	case r.sent:
		return fmt.Errorf("the server ended the connection when it had seen the client's certificate: %w; give one of "+
			"an authority that it knows (Certificates, cert_file and key_file)", err)
	case r.configured:
		return fmt.Errorf("the server asked for a certificate, and none that the client has is of an authority that it "+
			"knows: %w; give one that is (Certificates, cert_file and key_file)", err)
	}
	return fmt.Errorf("the server asked for a certificate and got none: %w; give the client one (Certificates, cert_file and key_file)",
		err)
}

// withoutTLS explains why the server sent nothing on a connection without TLS.
func withoutTLS(err error) error {
	if !ended(err) {
		return err
	}
	return fmt.Errorf("the server closed the connection before it said anything: %w; if this is its port for TLS, turn TLS on", err)
}

// alert returns the other side's reason for ending TLS, "" if it gave none.
func alert(err error) string {
	var remote *net.OpError
	if !errors.As(err, &remote) || remote.Op != "remote error" {
		return ""
	}
	return strings.TrimPrefix(remote.Err.Error(), "tls: ")
}

// ended reports whether the other side closed the connection.
func ended(err error) bool {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}
