package servers

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/child"
)

// NATSConfig configures a server. The zero value is one for tests.
type NATSConfig struct {
	// Storage is an empty folder for the data, such as a small file system that can be filled up. It stays
	// the caller's. Default: a folder of the server's own.
	Storage string
}

// NATS is a server with JetStream, stored in files, without authentication, on 127.0.0.1.
type NATS struct {
	Server
}

// StartNATS starts a server and returns when it answers. The caller must Close it. The error wraps [ErrNotFound] when
// nats-server isn't installed.
func StartNATS(ctx context.Context, config NATSConfig) (*NATS, error) {
	path, err := FindNATS()
	n := &NATS{}
	return orNone(n, n.launch(ctx, err, kind{
		name: "nats-server",
		command: func() child.Command {
			data := filepath.Join(cmp.Or(config.Storage, n.folder), "data")
			args := []string{"-a", "127.0.0.1", "-p", strconv.Itoa(n.Port()), "-js", "-sd", data}
			return child.Command{Path: path, Args: args}
		},
		ready: natsAnswers,
	}))
}

// TestNATS returns a server that all tests of this binary share, started on first use. A test takes streams and
// subjects with names of its own. The test is skipped, or fails where servers are required, if there is no nats-server.
func TestNATS(t testing.TB) *NATS {
	t.Helper()
	return shareGiven(t, &NATS{}, givenNATS, StartNATS, nil)
}

// OwnNATS returns a server that is the test's alone, to be killed and frozen. It is started even if the environment has
// an address. It is closed at the end of the test. At most one config is given.
func OwnNATS(t testing.TB, config ...NATSConfig) *NATS {
	t.Helper()
	return own(t, StartNATS, config)
}

// URL returns the address for a client: nats://127.0.0.1:PORT.
func (n *NATS) URL() string { return cmp.Or(n.url, "nats://"+n.addr) }

// natsAnswers says PING and returns nil after the PONG of a server with JetStream.
func natsAnswers(ctx context.Context, addr string) error {
	conn, err := dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
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
