package servers

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/child"
)

const envRedis = "OUTBOX_TEST_REDIS"

// RedisConfig says what kind of server is wanted. The zero value is one for tests.
type RedisConfig struct {
	// Cluster makes it the node of a cluster that has no slots yet.
	Cluster bool

	// TLS, if set, is for the address that TLSAddr returns.
	TLS *TLS

	// Settings win over what a server has otherwise, as in redis.conf.
	Settings map[string]string
}

// Redis is a single server without authentication, on 127.0.0.1. It writes every change to disk before it answers.
type Redis struct {
	Server
	url    string // of a server from the environment
	secure string
}

// StartRedis starts a server and returns when it answers. The caller must Close it. The error wraps [ErrNotFound] when
// redis-server isn't installed.
func StartRedis(ctx context.Context, config RedisConfig) (*Redis, error) {
	if err := canStart(); err != nil {
		return nil, err
	}
	path, err := FindRedis()
	if err != nil {
		return nil, err
	}
	r := &Redis{}
	r.ready = func(ctx context.Context) error { return redisAnswers(ctx, r.addr) }
	var free []int
	place := func(ports []int) error {
		free = ports
		if config.TLS != nil {
			r.secure = loopback(ports[2])
		}
		return nil
	}
	err = r.launch(ctx, "Redis", "redis", 3, place, func() child.Command { return child.Command{Path: path, Args: redisArgs(r.folder, free, config)} })
	if err != nil {
		return nil, err
	}
	return r, nil
}

func redisArgs(folder string, ports []int, config RedisConfig) []string {
	settings := map[string]string{
		"port":           strconv.Itoa(ports[0]),
		"bind":           "127.0.0.1",
		"dir":            folder,
		"save":           "",
		"appendonly":     "yes",
		"appendfsync":    "always",
		"daemonize":      "no",
		"protected-mode": "no",
	}
	if config.Cluster {
		settings["cluster-enabled"] = "yes"
		settings["cluster-port"] = strconv.Itoa(ports[1])
	}
	if config.TLS != nil {
		settings["tls-port"] = strconv.Itoa(ports[2])
		settings["tls-cert-file"] = config.TLS.Certificate
		settings["tls-key-file"] = config.TLS.Key
		settings["tls-ca-cert-file"] = config.TLS.Authority
		settings["tls-auth-clients"] = "no"
		if config.TLS.DemandClient {
			settings["tls-auth-clients"] = "yes"
		}
	}
	maps.Copy(settings, config.Settings)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "--"+name, settings[name])
	}
	return args
}

// URL returns the address for a client: redis://127.0.0.1:PORT.
func (r *Redis) URL() string {
	if r.url != "" {
		return r.url
	}
	return (&url.URL{Scheme: "redis", Host: r.addr}).String()
}

// TLSAddr returns host:port of the listener with TLS, "" without one.
func (r *Redis) TLSAddr() string { return r.secure }

// TestRedis returns a server that all tests of this binary share, started on first use. A test takes keys with names of
// its own. The test is skipped, or fails where servers are required, if there is no redis-server.
func TestRedis(t testing.TB) *Redis {
	t.Helper()
	return share(t, "redis", func() (*Redis, error) {
		ctx := context.Background()
		if given, err := givenRedis(ctx); given != nil || err != nil {
			return given, err
		}
		return StartRedis(ctx, RedisConfig{})
	})
}

// OwnRedis returns a server that is the test's alone, to be killed and frozen. It is started even if the environment has
// an address. It is closed at the end of the test. At most one config is given.
func OwnRedis(t testing.TB, config ...RedisConfig) *Redis {
	t.Helper()
	skipShort(t)
	r, err := StartRedis(t.Context(), only(t, config))
	return own(t, r, err)
}

// givenRedis returns the server of the environment, nil if there is none.
func givenRedis(ctx context.Context) (*Redis, error) {
	address := os.Getenv(envRedis)
	if address == "" {
		return nil, nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Port() == "" {
		return nil, fmt.Errorf("use the Redis of %s: it must be like redis://host:6379", envRedis)
	}
	if u.Scheme == "redis" {
		if err := redisAnswers(ctx, u.Host); err != nil {
			return nil, fmt.Errorf("use the Redis of %s: %w", envRedis, err)
		}
	}
	return &Redis{Server: Server{name: "Redis at " + u.Host, addr: u.Host, given: envRedis}, url: address}, nil
}

// FindRedis returns the path of a redis-server of version 6.2 or later, from PATH or the usual places. The error wraps
// [ErrNotFound] when there is none.
func FindRedis() (string, error) {
	for _, name := range []string{"redis-server", "/usr/bin/redis-server", "/opt/homebrew/bin/redis-server", "valkey-server"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if version, err := versionOf(path); err == nil && compareVersions(version, "6.2") >= 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("redis-server of version 6.2 or later is %w", ErrNotFound)
}

// redisAnswers says PING and returns nil when there is an answer that isn't about the data being loaded.
func redisAnswers(ctx context.Context, addr string) error {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(line, "+PONG") && !strings.HasPrefix(line, "-NOAUTH") {
		return fmt.Errorf("Redis at %s answers PING with %.40q", addr, line)
	}
	return nil
}
