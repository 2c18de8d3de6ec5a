package servers

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/child"
)

const envElasticMQ = "OUTBOX_TEST_ELASTICMQ"

// ElasticMQVersion is the version that "make servers" installs.
const ElasticMQVersion = "1.7.1"

// ElasticMQDir is where the cache has the jars of ElasticMQ.
func ElasticMQDir(cache string) string {
	return filepath.Join(cache, "elasticmq-"+ElasticMQVersion, "lib")
}

// FindElasticMQ returns a Java and the folder of ElasticMQ's jars. The error wraps [ErrNotFound] when one of them is
// missing, and says which.
func FindElasticMQ() (java, lib string, err error) {
	cache, err := CacheDir()
	if err != nil {
		return "", "", err
	}
	lib = ElasticMQDir(cache)
	if jars, _ := filepath.Glob(filepath.Join(lib, "elasticmq-server_*.jar")); len(jars) == 0 {
		return "", "", fmt.Errorf("ElasticMQ is %w", ErrNotFound)
	}
	java, err = FindJava()
	return java, lib, err
}

// ElasticMQConfig says what kind of server is wanted. The zero value keeps everything in memory and refuses what SQS
// refuses, as far as ElasticMQ knows it: messages above 256 KiB among that.
type ElasticMQConfig struct {
	// Durable keeps queues and messages in files, flushed before a message is accepted, so that they are there after
	// Kill9 and Restart.
	Durable bool

	// Queues are FIFO queues that are there from the start. ElasticMQ answers before it has stored a queue that it was
	// asked to create, and before it has read those that it has stored.
	Queues []string

	// Relaxed lifts the limits.
	Relaxed bool

	// Bench lets Java compile to the full and gives it 512 MB instead of 192.
	Bench bool
}

// ElasticMQ speaks the protocol of Amazon SQS, on 127.0.0.1, and takes any credentials.
type ElasticMQ struct {
	Server
}

// StartElasticMQ starts a server and returns when it answers, after about 2 s. The caller must Close it. The error wraps
// [ErrNotFound] when ElasticMQ or Java isn't installed.
func StartElasticMQ(ctx context.Context, config ElasticMQConfig) (*ElasticMQ, error) {
	if err := canStart(); err != nil {
		return nil, err
	}
	java, lib, err := FindElasticMQ()
	if err != nil {
		return nil, err
	}
	e := &ElasticMQ{}
	e.ready = func(ctx context.Context) error { return awsAnswers(ctx, e.addr, "AmazonSQS.ListQueues") }
	configure := func([]int) error { return os.WriteFile(e.configFile(), []byte(e.configuration(config)), 0o644) }
	err = e.launch(ctx, "ElasticMQ "+ElasticMQVersion, "elasticmq", 1, configure, func() child.Command {
		return child.Command{Path: java, Args: e.arguments(lib, config.Bench)}
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// URL returns the endpoint for a client: http://127.0.0.1:PORT.
func (e *ElasticMQ) URL() string { return "http://" + e.addr }

func (e *ElasticMQ) configFile() string { return filepath.Join(e.folder, "elasticmq.conf") }

func (e *ElasticMQ) arguments(lib string, bench bool) []string {
	args := []string{"-Xms64m", "-Xmx192m", "-XX:TieredStopAtLevel=1"}
	if bench {
		args = []string{"-Xms512m", "-Xmx512m"}
	}
	return slices.Concat(args, []string{
		"-XX:+UseSerialGC", "-Djava.io.tmpdir=" + e.folder, "-XX:-UsePerfData", "-Dconfig.file=" + e.configFile(),
		"-cp", filepath.Join(lib, "*"), "org.elasticmq.server.Main",
	})
}

func (e *ElasticMQ) configuration(config ElasticMQConfig) string {
	limits := "strict"
	if config.Relaxed {
		limits = "relaxed"
	}
	port := strconv.Itoa(e.Port())
	text := `include classpath("application.conf")
node-address { protocol = http, host = "127.0.0.1", port = ` + port + `, context-path = "" }
rest-sqs { enabled = true, bind-port = ` + port + `, bind-hostname = "127.0.0.1", sqs-limits = ` + limits + ` }
rest-stats { enabled = false }
`
	for _, name := range config.Queues {
		text += `queues { "` + name + `" { fifo = true, defaultVisibilityTimeout = 600 seconds } }
`
	}
	if config.Durable {
		// H2 flushes a commit half a second later unless told otherwise.
		text += `messages-storage {
  enabled = true
  driver-class = "org.h2.Driver"
  uri = "jdbc:h2:file:` + filepath.Join(e.folder, "data") + `;WRITE_DELAY=0"
  username = "sa"
  password = ""
}
`
	}
	return text
}

// awsAnswers calls an operation of Amazon's JSON protocol and returns nil if it succeeds.
func awsAnswers(ctx context.Context, addr, operation string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-amz-json-1.0")
	request.Header.Set("X-Amz-Target", operation)
	request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=x/20250101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=x")
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return fmt.Errorf("%s answers %s with %s: %s", addr, operation, response.Status, text)
	}
	return nil
}

// TestElasticMQ returns a server that all tests of this binary share which want the same, started on first use. A test
// takes queues with names of its own. The test is skipped, or fails where servers are required, if there is no
// ElasticMQ. At most one config is given.
func TestElasticMQ(t testing.TB, config ...ElasticMQConfig) *ElasticMQ {
	t.Helper()
	want := only(t, config)
	return share(t, fmt.Sprintf("elasticmq %+v", want), func() (*ElasticMQ, error) {
		ctx := context.Background() // it outlives the test that needs it first
		if addr := os.Getenv(envElasticMQ); addr != "" {
			if err := awsAnswers(ctx, addr, "AmazonSQS.ListQueues"); err != nil {
				return nil, fmt.Errorf("use the ElasticMQ of %s: %w", envElasticMQ, err)
			}
			return &ElasticMQ{Server{name: "ElasticMQ at " + addr, addr: addr, given: envElasticMQ}}, nil
		}
		return StartElasticMQ(ctx, want)
	})
}

// OwnElasticMQ returns a server that is the test's alone, to be killed and frozen. It is started even if the environment
// has an address. It is closed at the end of the test. At most one config is given.
func OwnElasticMQ(t testing.TB, config ...ElasticMQConfig) *ElasticMQ {
	t.Helper()
	skipShort(t)
	e, err := StartElasticMQ(t.Context(), only(t, config))
	return own(t, e, err)
}
