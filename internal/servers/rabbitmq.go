package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pgoutbox/outbox/internal/child"
)

// RabbitMQConfig configures a server. The zero value is one for tests.
type RabbitMQConfig struct {
	// TLS, if set, is for the address that TLSAddr returns. With it, clients may also authenticate by their
	// certificate, as the user of its common name.
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
	secured
	epmd *child.Process // Erlang's register of nodes, which a node would otherwise start, and leave behind
}

// startRabbitMQ starts a node and returns when it answers, after 4 to 8 s. The error wraps [ErrNotFound] when RabbitMQ
// or Erlang isn't installed.
func startRabbitMQ(ctx context.Context, config RabbitMQConfig) (*RabbitMQ, error) {
	path, epmd, err := FindRabbitMQ()
	r := &RabbitMQ{}
	return orNone(r, r.launch(ctx, err, kind{
		name:  "RabbitMQ",
		free:  4,
		place: func() error { return errors.Join(r.configure(config), r.startEpmd(epmd)) },
		command: func() child.Command {
			return child.Command{
				Path:    path,
				Env:     append(os.Environ(), r.environment()...),
				OnDeath: syscall.SIGTERM, // which the script that starts Erlang passes on
			}
		},
		ready:   rabbitAnswers,
		closing: r.stopEpmd,
	}))
}

// configure writes the files that the node reads.
func (r *RabbitMQ) configure(config RabbitMQConfig) error {
	settings := append([]string{
		"listeners.tcp.default = " + loopback(r.ports[0]),
		"log.console = true",
		"log.file = false",
		"vm_memory_high_watermark.absolute = 1GB",
		"disk_free_limit.absolute = 50MB",
	}, r.securedBy(config.TLS)...)
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

// securedBy returns the settings of the listener with TLS, none without it.
func (r *RabbitMQ) securedBy(config *TLS) []string {
	r.secureBy(config, r.ports[3])
	if config == nil {
		return nil
	}
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

// URL returns the address for a client: amqp://guest:guest@127.0.0.1:PORT.
func (r *RabbitMQ) URL() string { return cmp.Or(r.url, "amqp://guest:guest@"+r.addr) }

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
	return shareGiven(t, &RabbitMQ{}, givenRabbitMQ, startRabbitMQ, nil)
}

// OwnRabbitMQ returns a node that is the test's alone, to be killed and frozen. It is started even if the environment
// has an address. It is closed at the end of the test. At most one config is given.
func OwnRabbitMQ(t testing.TB, config ...RabbitMQConfig) *RabbitMQ {
	t.Helper()
	return own(t, startRabbitMQ, config)
}

// FindRabbitMQ returns the paths of rabbitmq-server, as it is without the wrapper that insists on a user of its own,
// and of Erlang's epmd. The error wraps [ErrNotFound] when one of them is missing.
func FindRabbitMQ() (server, epmd string, err error) {
	server = lookUp(
		"/usr/lib/rabbitmq/bin/rabbitmq-server",   // Debian, Ubuntu, Red Hat
		"/opt/homebrew/sbin/rabbitmq-server",      // macOS on Arm
		"/usr/local/sbin/rabbitmq-server",         // macOS on Intel
		"/opt/rabbitmq/sbin/rabbitmq-server",      // unpacked, as the official images have it
		"/usr/local/opt/rabbitmq/rabbitmq-server", // unpacked
	)
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
	conn, err := dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
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
