package servers

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/child"
)

// RedisConfig configures a server. The zero value is one for tests.
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
	secured
}

// startRedis starts a server and returns when it answers. The error wraps [ErrNotFound] when redis-server isn't
// installed.
func startRedis(ctx context.Context, config RedisConfig) (*Redis, error) {
	path, err := FindRedis()
	r := &Redis{}
	return orNone(r, r.launch(ctx, err, kind{
		name: "Redis",
		free: 3,
		place: func() error {
			r.secureBy(config.TLS, r.ports[2])
			return nil
		},
		command: func() child.Command { return child.Command{Path: path, Args: redisArgs(r.folder, r.ports, config)} },
		ready:   redisAnswers,
	}))
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
func (r *Redis) URL() string { return cmp.Or(r.url, "redis://"+r.addr) }

// TestRedis returns a server that all tests of this binary share, started on first use. A test takes keys with names of
// its own. The test is skipped, or fails where servers are required, if there is no redis-server.
func TestRedis(t testing.TB) *Redis {
	t.Helper()
	return shareGiven(t, &Redis{}, givenRedis, startRedis, nil)
}

// OwnRedis returns a server that is the test's alone, to be killed and frozen. It is started even if the environment
// has an address. It is closed at the end of the test. At most one config is given.
func OwnRedis(t testing.TB, config ...RedisConfig) *Redis {
	t.Helper()
	return own(t, startRedis, config)
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
	conn, err := dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
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
