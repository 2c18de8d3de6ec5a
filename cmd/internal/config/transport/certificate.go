package transport

import (
	"crypto/tls"
	"sync"
)

// ownCertificate is the client certificate of the relay. Its files are read again for each connection, because
// certificates that live for hours are replaced while the relay runs.
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

// choose is for tls.Config.GetClientCertificate. As crypto/tls does, it shows nothing that the server says it wouldn't
// accept.
func (c *ownCertificate) choose(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
	pair, _ := c.current()
	if request.SupportsCertificate(pair) != nil {
		return new(tls.Certificate), nil
	}
	return pair, nil
}

// current reads the files, and returns the pair that is good.
func (c *ownCertificate) current() (*tls.Certificate, error) {
	_ = c.read() // half replaced, the two files don't fit each other: the pair before them may still be good
	c.mu.Lock()
	defer c.mu.Unlock()
	pair := c.pair
	return &pair, nil
}
