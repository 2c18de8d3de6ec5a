package servers

// TLS has a server listen with TLS as well, on a port of its own. The files are PEM. New ones in their place take
// effect for connections from then on: with RabbitMQ at once, with Redis when it is told, by CONFIG SET of a file's
// name.
type TLS struct {
	// Certificate and Key are the server's own.
	Certificate, Key string

	// Authority is whose clients are known.
	Authority string

	// DemandClient refuses clients that show no certificate of the Authority.
	DemandClient bool
}

// secured is a server with such a listener.
type secured struct{ secure string }

// TLSAddr returns host:port of the listener with TLS, "" without one.
func (s *secured) TLSAddr() string { return s.secure }

func (s *secured) secureBy(config *TLS, port int) {
	if config != nil {
		s.secure = loopback(port)
	}
}
