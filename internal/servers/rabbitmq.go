package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/child"
)

const envRabbitMQ = "OUTBOX_TEST_RABBITMQ"

// RabbitMQConfig says what kind of server is wanted. The zero value is one for tests.
type RabbitMQConfig struct {
	// TLS, if set, is for the address that TLSAddr returns. With it, clients may also authenticate by their certificate,
	// as the user of its common name.
	TLS *TLS

	// Settings are lines of rabbitmq.conf, which win over what stands there.
	Settings []string

	// Fsync has quorum queues write to the disk, and not to the system's memory alone, before they confirm: for
	// benchmarks. What is confirmed survives a kill either way.
	Fsync bool
}

// RabbitMQ is a single node, with the user guest and without plugins but for that of certificates, on 127.0.0.1.
type RabbitMQ struct {
	Server
	url    string // of a server from the environment
	secure string
	ports  []int
	epmd   *child.Process // Erlang's register of nodes, which a node would otherwise start, and leave behind
}

// StartRabbitMQ starts a node and returns when it answers, after 4 to 8 s. The caller must Close it. The error wraps
// [ErrNotFound] when RabbitMQ or Erlang isn't installed.
func StartRabbitMQ(ctx context.Context, config RabbitMQConfig) (*RabbitMQ, error) {
	if err := canStart(); err != nil {
		return nil, err
	}
	path, epmd, err := FindRabbitMQ()
	if err != nil {
		return nil, err
	}
	r := &RabbitMQ{}
	r.name = "RabbitMQ"
	r.stopSig = syscall.SIGTERM
	if r.folder, err = newFolder("rabbitmq", 0); err != nil {
		return nil, fmt.Errorf("start %s: %w", r.name, err)
	}
	r.command = func() child.Command {
		return child.Command{
			Path:    path,
			Env:     append(os.Environ(), r.environment()...),
			Dir:     r.folder,
			OnDeath: syscall.SIGTERM, // which the script that starts Erlang passes on
		}
	}
	r.ready = func(ctx context.Context) error { return rabbitAnswers(ctx, r.addr) }
	err = r.startFirst(ctx, 4, func(ports []int) error {
		r.ports = ports
		if err := r.configure(config); err != nil {
			return err
		}
		return r.startEpmd(epmd)
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", r.name, errors.Join(err, r.Close()))
	}
	return r, nil
}

// configure writes the files that the node reads.
func (r *RabbitMQ) configure(config RabbitMQConfig) error {
	settings := append([]string{
		"listeners.tcp.default = " + loopback(r.ports[0]),
		"log.console = true",
		"log.file = false",
		"vm_memory_high_watermark.absolute = 1GB",
		"disk_free_limit.absolute = 50MB",
	}, r.secured(config.TLS)...)
	settings = append(settings, config.Settings...)
	var plugins string
	var advanced []string
	if !config.Fsync {
		advanced = append(advanced, "{ra, [{wal_sync_method, none}]}")
	}
	if config.TLS != nil {
		plugins = "rabbitmq_auth_mechanism_ssl"
		advanced = append(advanced, "{ssl, [{bypass_pem_cache, true}]}")
	}
	return errors.Join(
		os.WriteFile(filepath.Join(r.folder, "advanced.config"), []byte("["+strings.Join(advanced, ", ")+"].\n"), 0o644),
		os.WriteFile(filepath.Join(r.folder, "rabbitmq.conf"), []byte(strings.Join(settings, "\n")+"\n"), 0o644),
		os.WriteFile(filepath.Join(r.folder, "plugins"), []byte("["+plugins+"].\n"), 0o644))
}

// secured returns the settings of the listener with TLS, none without it.
func (r *RabbitMQ) secured(config *TLS) []string {
	if config == nil {
		return nil
	}
	r.secure = loopback(r.ports[3])
	return []string{
		"listeners.ssl.default = " + r.secure,
		"ssl_options.cacertfile = " + config.Authority,
		"ssl_options.certfile = " + config.Certificate,
		"ssl_options.keyfile = " + config.Key,
		"ssl_options.verify = verify_peer",
		"ssl_options.fail_if_no_peer_cert = " + strconv.FormatBool(config.DemandClient),
		"ssl_cert_login_from = common_name",
		"auth_mechanisms.1 = PLAIN",
		"auth_mechanisms.2 = EXTERNAL",
	}
}

// environment keeps everything of the node in its folder and on 127.0.0.1.
func (r *RabbitMQ) environment() []string {
	in := func(name string) string { return filepath.Join(r.folder, name) }
	return []string{
		"HOME=" + r.folder,
		"LC_ALL=C.UTF-8",
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_EPMD_PORT=" + strconv.Itoa(r.ports[2]),
		"RABBITMQ_NODENAME=" + r.node(),
		"RABBITMQ_DIST_PORT=" + strconv.Itoa(r.ports[1]),
		"RABBITMQ_CONF_ENV_FILE=" + in("none"),
		"RABBITMQ_CONFIG_FILE=" + in("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + in("advanced.config"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + in("plugins"),
		"RABBITMQ_MNESIA_BASE=" + in("mnesia"),
		"RABBITMQ_LOG_BASE=" + in("log"),
		"RABBITMQ_PID_FILE=" + in("pid"),
		"RABBITMQ_GENERATED_CONFIG_DIR=" + in("generated"),
		"RABBITMQ_FEATURE_FLAGS_FILE=" + in("feature_flags"),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none",
	}
}

func (r *RabbitMQ) node() string { return fmt.Sprintf("outbox%d@localhost", r.ports[0]) }

func (r *RabbitMQ) startEpmd(path string) error {
	if err := r.stopEpmd(); err != nil {
		return err
	}
	var err error
	r.epmd, err = child.Start(child.Command{
		Path:    path,
		Args:    []string{"-port", strconv.Itoa(r.ports[2]), "-address", "127.0.0.1"},
		Dir:     r.folder,
		LogFile: filepath.Join(r.folder, "epmd.log"),
	})
	return err
}

func (r *RabbitMQ) stopEpmd() error {
	if r.epmd == nil {
		return nil
	}
	return r.epmd.Kill()
}

// Close ends the server and removes its data. A server from the environment is left alone. A second Close does nothing.
func (r *RabbitMQ) Close() error { return errors.Join(r.Server.Close(), r.stopEpmd()) }

// URL returns the address for a client: amqp://guest:guest@127.0.0.1:PORT.
func (r *RabbitMQ) URL() string {
	if r.url != "" {
		return r.url
	}
	return (&url.URL{Scheme: "amqp", User: url.UserPassword("guest", "guest"), Host: r.addr}).String()
}

// TLSAddr returns host:port of the listener with TLS, "" without one.
func (r *RabbitMQ) TLSAddr() string { return r.secure }

// Control runs rabbitmqctl on the node.
func (r *RabbitMQ) Control(ctx context.Context, args ...string) error {
	if r.given != "" {
		return fmt.Errorf("can't control %s: it was given by %s", r.name, r.given)
	}
	path, _, err := FindRabbitMQ()
	if err != nil {
		return err
	}
	args = append([]string{"-n", r.node()}, args...)
	err = child.Run(ctx, child.Command{
		Path: filepath.Join(filepath.Dir(path), "rabbitmqctl"),
		Args: args,
		Env:  append(os.Environ(), r.environment()...),
		Dir:  r.folder,
	})
	if err != nil {
		return fmt.Errorf("control %s: %w", r.name, err)
	}
	return nil
}

// TestRabbitMQ returns a node that all tests of this binary share, started on first use. A test takes exchanges and
// queues with names of its own. The test is skipped, or fails where servers are required, if there is no RabbitMQ.
func TestRabbitMQ(t testing.TB) *RabbitMQ {
	t.Helper()
	return share(t, "rabbitmq", func() (*RabbitMQ, error) {
		ctx := context.Background()
		if given, err := givenRabbitMQ(ctx); given != nil || err != nil {
			return given, err
		}
		return StartRabbitMQ(ctx, RabbitMQConfig{})
	})
}

// OwnRabbitMQ returns a node that is the test's alone, to be killed and frozen. It is started even if the environment
// has an address. It is closed at the end of the test. At most one config is given.
func OwnRabbitMQ(t testing.TB, config ...RabbitMQConfig) *RabbitMQ {
	t.Helper()
	skipShort(t)
	r, err := StartRabbitMQ(t.Context(), only(t, config))
	return own(t, r, err)
}

// givenRabbitMQ returns the server of the environment, nil if there is none.
func givenRabbitMQ(ctx context.Context) (*RabbitMQ, error) {
	address := os.Getenv(envRabbitMQ)
	if address == "" {
		return nil, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Port() == "" {
		return nil, fmt.Errorf("use the RabbitMQ of %s: it must be like amqp://user:password@host:5672", envRabbitMQ)
	}
	if u.Scheme == "amqp" {
		if err := rabbitAnswers(ctx, u.Host); err != nil {
			return nil, fmt.Errorf("use the RabbitMQ of %s: %w", envRabbitMQ, err)
		}
	}
	return &RabbitMQ{Server: Server{name: "RabbitMQ at " + u.Host, addr: u.Host, given: envRabbitMQ}, url: address}, nil
}

// FindRabbitMQ returns the paths of rabbitmq-server, as it is without the wrapper that insists on a user of its own, and
// of Erlang's epmd. The error wraps [ErrNotFound] when one of them is missing.
func FindRabbitMQ() (server, epmd string, err error) {
	for _, name := range []string{
		"/usr/lib/rabbitmq/bin/rabbitmq-server",   // Debian, Ubuntu, Red Hat
		"/opt/homebrew/sbin/rabbitmq-server",      // macOS on Arm
		"/usr/local/sbin/rabbitmq-server",         // macOS on Intel
		"/opt/rabbitmq/sbin/rabbitmq-server",      // unpacked, as the official images have it
		"/usr/local/opt/rabbitmq/rabbitmq-server", // unpacked
	} {
		if server, err = exec.LookPath(name); err == nil {
			break
		}
	}
	if server == "" {
		return "", "", fmt.Errorf("RabbitMQ is %w", ErrNotFound)
	}
	if epmd, err = exec.LookPath("epmd"); err != nil {
		return "", "", fmt.Errorf("Erlang's epmd, which RabbitMQ needs, is %w", ErrNotFound)
	}
	return server, epmd, nil
}

// rabbitAnswers offers AMQP 0.9.1 and returns nil when the answer is a method, which is Connection.Start.
func rabbitAnswers(ctx context.Context, addr string) error {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("AMQP\x00\x00\x09\x01")); err != nil {
		return err
	}
	var frame [1]byte
	if _, err := io.ReadFull(conn, frame[:]); err != nil {
		return err
	}
	if frame[0] != 1 {
		return fmt.Errorf("RabbitMQ at %s answers with %q", addr, frame)
	}
	return nil
}
