package servers

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Readers are the libraries for other languages with which tests, and the pages' programs, read what is sent: the
// official ones of the formats, and the brokers' clients. npm, pip and Maven name them so. "make servers" installs
// them.
var (
	ReadersNode   = []string{"cloudevents@10.0.0", "standardwebhooks@1.1.1", "kafkajs@2.2.4", "pg@8.23.1"}
	ReadersPython = []string{"cloudevents==2.2.0", "standardwebhooks==1.1.0", "confluent-kafka==2.16.1", "nats-py==2.16.0",
		"pika==1.4.4", "redis==8.1.0", "boto3==1.44.5", "psycopg[binary]==3.3.9"}
	ReadersJava = []string{"org.apache.kafka:kafka-clients:" + KafkaVersion, "org.postgresql:postgresql:42.7.8",
		"org.slf4j:slf4j-nop:1.7.36"}
)

// ReadersDir is where the cache has the libraries: those for Node in node_modules, for Python in python, for Java in
// java.
func ReadersDir(cache string) string {
	sum := sha256.Sum256([]byte(strings.Join(slices.Concat(ReadersNode, ReadersPython, ReadersJava), " ")))
	return filepath.Join(cache, "readers-"+hex.EncodeToString(sum[:6]))
}

// FindReaders returns where the libraries are. The error wraps [ErrNotFound] when they or a language are missing, and
// says which.
func FindReaders() (dir string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir = ReadersDir(cache)
	if _, err := os.Stat(dir); err != nil { // it is filled in one step
		return "", fmt.Errorf("the libraries that read what is sent are %w; run: make servers", ErrNotFound)
	}
	if _, err := FindJava(); err != nil {
		return "", err
	}
	for _, program := range []string{"node", "python3"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%s, which the libraries are for, is %w", program, ErrNotFound)
		}
	}
	return dir, nil
}

// TestReaders returns where the libraries are. The test is skipped, or fails where servers are required, if they aren't
// installed.
func TestReaders(t testing.TB) string {
	t.Helper()
	need(t, "readers")
	dir, err := FindReaders()
	if err != nil {
		missing(t, err)
	}
	return dir
}

// ReaderCommands returns commands that run a script in each of the languages with the libraries at hand: the path of a
// script without its ending, ".js" or ".py", is completed. It needs what [TestReaders] needs.
func ReaderCommands(t testing.TB, script string) map[string]*exec.Cmd {
	t.Helper()
	dir := TestReaders(t)
	node, python := exec.CommandContext(t.Context(), "node", script+".js"), exec.CommandContext(t.Context(), "python3", script+".py")
	node.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"))
	python.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(dir, "python"), "PYTHONDONTWRITEBYTECODE=1")
	return map[string]*exec.Cmd{"node": node, "python": python}
}
