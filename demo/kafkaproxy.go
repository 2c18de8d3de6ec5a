package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// kafkaProxy stands before each broker of a cluster. Brokers tell their clients where the others are, so it puts its own
// addresses into those answers. While down it breaks all connections.
type kafkaProxy struct {
	mu     sync.Mutex
	down   bool
	closed bool
	fronts map[string]net.Listener // by the broker's address
	order  []string                // of the seeds
	conns  map[net.Conn]bool
	work   sync.WaitGroup
}

func startKafkaProxy(seeds []string) (*kafkaProxy, error) {
	p := &kafkaProxy{fronts: make(map[string]net.Listener), conns: make(map[net.Conn]bool)}
	for _, seed := range seeds {
		seed = withPort(seed)
		if _, err := p.front(seed); err != nil {
			return nil, errors.Join(err, p.close())
		}
		p.order = append(p.order, seed)
	}
	return p, nil
}

// seeds are the addresses for a client to begin with.
func (p *kafkaProxy) seeds() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, broker := range p.order {
		all = append(all, p.fronts[broker].Addr().String())
	}
	return all
}

// front returns the address that stands for a broker.
func (p *kafkaProxy) front(broker string) (net.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if listener := p.fronts[broker]; listener != nil {
		return listener.Addr(), nil
	}
	if p.closed {
		return nil, net.ErrClosed
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the relays: %w", err)
	}
	p.fronts[broker] = listener
	p.work.Go(func() { p.accept(listener, broker) })
	return listener.Addr(), nil
}

func (p *kafkaProxy) accept(listener net.Listener, broker string) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		if !p.track(client) {
			continue
		}
		p.work.Go(func() {
			defer p.forget(client)
			server, err := net.DialTimeout("tcp", broker, 5*time.Second)
			if err != nil || !p.track(server) {
				return
			}
			defer p.forget(server)
			p.join(client, server)
		})
	}
}

// track returns false, and closes conn, when there is to be no connection.
func (p *kafkaProxy) track(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down || p.closed {
		conn.Close()
		return false
	}
	p.conns[conn] = true
	return true
}

func (p *kafkaProxy) forget(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	conn.Close()
	delete(p.conns, conn)
}

func (p *kafkaProxy) takeDown() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for conn := range p.conns {
		conn.Close()
	}
	return nil
}

func (p *kafkaProxy) bringUp() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
	return nil
}

func (p *kafkaProxy) close() error {
	p.mu.Lock()
	p.closed = true
	var errs []error
	for _, listener := range p.fronts {
		errs = append(errs, listener.Close())
	}
	for conn := range p.conns {
		conn.Close()
	}
	p.mu.Unlock()
	p.work.Wait()
	return errors.Join(errs...)
}

// asked is what a response must be read as.
type asked struct {
	mu sync.Mutex
	by map[int32]question // by correlation id
}

type question struct{ key, version int16 }

// join passes requests on as they are, and responses with the addresses in them replaced, until one side hangs up.
func (p *kafkaProxy) join(client, server net.Conn) {
	questions := &asked{by: make(map[int32]question)}
	var both sync.WaitGroup
	both.Go(func() {
		defer server.Close()
		defer client.Close()
		_ = eachFrame(client, server, func(request []byte) ([]byte, error) {
			questions.note(request)
			return request, nil
		})
	})
	defer both.Wait()
	defer server.Close()
	defer client.Close()
	_ = eachFrame(server, client, func(response []byte) ([]byte, error) {
		return p.translate(response, questions.take(response))
	})
}

// eachFrame copies frames, each of which begins with its length, until either side ends.
func eachFrame(from io.Reader, to io.Writer, change func([]byte) ([]byte, error)) error {
	const largest = 128 << 20
	var buffer []byte
	for {
		var length [4]byte
		if _, err := io.ReadFull(from, length[:]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(length[:])
		if n > largest {
			return fmt.Errorf("a frame of %d bytes: not Kafka", n)
		}
		if uint32(cap(buffer)) < n {
			buffer = make([]byte, n)
		}
		frame := buffer[:n]
		if _, err := io.ReadFull(from, frame); err != nil {
			return err
		}
		changed, err := change(frame)
		if err != nil {
			return err
		}
		if _, err := to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(changed))), changed...)); err != nil {
			return err
		}
	}
}

func (a *asked) note(request []byte) {
	if len(request) < 8 {
		return
	}
	q := question{int16(binary.BigEndian.Uint16(request)), int16(binary.BigEndian.Uint16(request[2:]))}
	if !hasAddresses(q.key) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.by[int32(binary.BigEndian.Uint32(request[4:]))] = q
}

func (a *asked) take(response []byte) *question {
	if len(response) < 4 {
		return nil
	}
	id := int32(binary.BigEndian.Uint32(response))
	a.mu.Lock()
	defer a.mu.Unlock()
	q, found := a.by[id]
	if !found {
		return nil
	}
	delete(a.by, id)
	return &q
}

// hasAddresses tells whether the responses to a kind of request may name brokers.
func hasAddresses(key int16) bool {
	switch kmsg.Key(key) {
	case kmsg.Produce, kmsg.Metadata, kmsg.FindCoordinator, kmsg.DescribeCluster:
		return true
	}
	return false
}

// translate replaces the addresses in a response.
func (p *kafkaProxy) translate(frame []byte, q *question) ([]byte, error) {
	if q == nil {
		return frame, nil
	}
	response := kmsg.ResponseForKey(q.key)
	response.SetVersion(q.version)
	header := 4 // the correlation id
	if response.IsFlexible() {
		// After it come tagged fields, of which there are none so far.
		if len(frame) <= header || frame[header] != 0 {
			return nil, errors.New("a response's header has fields that the demo doesn't know")
		}
		header++
	}
	if err := response.ReadFrom(frame[header:]); err != nil {
		return nil, err
	}
	if err := p.replace(response); err != nil {
		return nil, err
	}
	return response.AppendTo(append([]byte(nil), frame[:header]...)), nil
}

func (p *kafkaProxy) replace(response kmsg.Response) error {
	var errs []error
	switch r := response.(type) {
	case *kmsg.MetadataResponse:
		for i := range r.Brokers {
			errs = append(errs, p.replaceAddress(&r.Brokers[i].Host, &r.Brokers[i].Port))
		}
	case *kmsg.ProduceResponse:
		for i := range r.Brokers {
			errs = append(errs, p.replaceAddress(&r.Brokers[i].Host, &r.Brokers[i].Port))
		}
	case *kmsg.DescribeClusterResponse:
		for i := range r.Brokers {
			errs = append(errs, p.replaceAddress(&r.Brokers[i].Host, &r.Brokers[i].Port))
		}
	case *kmsg.FindCoordinatorResponse:
		if r.Host != "" {
			errs = append(errs, p.replaceAddress(&r.Host, &r.Port))
		}
		for i := range r.Coordinators {
			if r.Coordinators[i].Host != "" {
				errs = append(errs, p.replaceAddress(&r.Coordinators[i].Host, &r.Coordinators[i].Port))
			}
		}
	}
	return errors.Join(errs...)
}

func (p *kafkaProxy) replaceAddress(host *string, port *int32) error {
	front, err := p.front(net.JoinHostPort(*host, strconv.Itoa(int(*port))))
	if err != nil {
		return err
	}
	address := front.(*net.TCPAddr)
	*host, *port = address.IP.String(), int32(address.Port)
	return nil
}
