package servers

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/internal/child"
)

// NATSConfig says what kind of server is wanted. The zero value is one for tests.
type NATSConfig struct {
	// Storage is an empty folder for the data, such as a small file system that can be filled up. It stays
	// the caller's. Default: a folder of the server's own.
	Storage string
}

// NATS is a server with JetStream, stored in files, without authentication, on 127.0.0.1.
type NATS struct {
	Server
	url string // of a server from the environment
}

// StartNATS starts a server and returns when it answers. The caller must Close it. The error wraps [ErrNotFound] when
// nats-server isn't installed. At most one config is given.
func StartNATS(ctx context.Context, config ...NATSConfig) (*NATS, error) {
	if err := canStart(); err != nil {
		return nil, err
	}
	path, err := FindNATS()
	if err != nil {
		return nil, err
	}
	n := &NATS{}
	n.ready = func(ctx context.Context) error { return natsAnswers(ctx, n.addr) }
	err = n.launch(ctx, "nats-server", "nats", 1, func([]int) error { return nil }, func() child.Command {
		data := filepath.Join(n.folder, "data")
		for _, c := range config {
			if c.Storage != "" {
				data = filepath.Join(c.Storage, "data")
			}
		}
		return child.Command{Path: path, Args: []string{"-a", "127.0.0.1", "-p", strconv.Itoa(n.Port()), "-js", "-sd", data}}
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// URL returns the address for a client: nats://127.0.0.1:PORT.
func (n *NATS) URL() string {
	if n.url != "" {
		return n.url
	}
	return (&url.URL{Scheme: "nats", Host: n.addr}).String()
}

// natsAnswers says PING and returns nil after the PONG of a server with JetStream.
func natsAnswers(ctx context.Context, addr string) error {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	lines := bufio.NewReader(conn)
	line, err := lines.ReadString('\n')
	if err != nil {
		return err
	}
	info, isInfo := strings.CutPrefix(line, "INFO ")
	var server struct {
		JetStream bool `json:"jetstream"`
	}
	if err := json.Unmarshal([]byte(info), &server); !isInfo || err != nil {
		return fmt.Errorf("%s greets with %.40q: not NATS", addr, line)
	}
	if !server.JetStream {
		return fmt.Errorf("NATS at %s is there without JetStream", addr)
	}
	if _, err := conn.Write([]byte("CONNECT {\"verbose\":false}\r\nPING\r\n")); err != nil {
		return err
	}
	if line, err = lines.ReadString('\n'); err != nil {
		return err
	}
	if strings.TrimSpace(line) != "PONG" {
		return fmt.Errorf("NATS at %s answers PING with %.40q", addr, line)
	}
	return nil
}
