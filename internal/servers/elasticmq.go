package servers

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/pgoutbox/outbox/internal/child"
)

// ElasticMQVersion is the version that "make servers" installs.
const ElasticMQVersion = "1.7.1"

// ElasticMQDir is where the cache has the jars of ElasticMQ.
func ElasticMQDir(cache string) string {
	return filepath.Join(cache, "elasticmq-"+ElasticMQVersion, "lib")
}

// FindElasticMQ returns a Java and the folder of ElasticMQ's jars. The error wraps [ErrNotFound] when one of them is
// missing, and says which.
func FindElasticMQ() (java, lib string, err error) {
	return findJars("ElasticMQ", ElasticMQDir, "elasticmq-server_*.jar")
}

// ElasticMQConfig configures a server. The zero value keeps everything in memory, and refuses what SQS refuses, as far
// as ElasticMQ knows it, such as messages above 256 KiB.
type ElasticMQConfig struct {
	// Durable keeps queues and messages in files, flushed before a message is accepted, so that they are there after
	// Kill9 and Restart.
	Durable bool

	// Queues are FIFO queues that are there from the start. ElasticMQ answers before it has stored a queue that it was
	// asked to create, and before it has read those that it has stored.
	Queues []string

	// Relaxed lifts the limits.
	Relaxed bool

	// Bench gives Java 512 MB instead of 192.
	Bench bool
}

// ElasticMQ speaks the protocol of Amazon SQS, on 127.0.0.1, and takes any credentials.
type ElasticMQ struct {
	Server
}

// startElasticMQ starts a server and returns when it answers, after about 2 s. The error wraps [ErrNotFound] when
// ElasticMQ or Java isn't installed.
func startElasticMQ(ctx context.Context, config ElasticMQConfig) (*ElasticMQ, error) {
	java, lib, err := FindElasticMQ()
	e := &ElasticMQ{}
	file := func() string { return filepath.Join(e.folder, "elasticmq.conf") }
	return orNone(e, e.launch(ctx, err, kind{
		name:  "ElasticMQ " + ElasticMQVersion,
		place: func() error { return os.WriteFile(file(), []byte(e.configuration(config)), 0o644) },
		command: func() child.Command {
			args := javaArgs(e.folder, lib, "192m", config.Bench)
			return child.Command{Path: java, Args: append(args, "-Dconfig.file="+file(), "org.elasticmq.server.Main")}
		},
		ready: elasticAnswers,
	}))
}

// URL returns the endpoint for a client: http://127.0.0.1:PORT.
func (e *ElasticMQ) URL() string { return "http://" + e.addr }

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

// elasticAnswers lists the queues in Amazon's JSON protocol and returns nil if that succeeds.
func elasticAnswers(ctx context.Context, addr string) error {
	return answersHTTP(ctx, http.MethodPost, "http://"+addr+"/", "{}", http.Header{
		"Content-Type":  {"application/x-amz-json-1.0"},
		"X-Amz-Target":  {"AmazonSQS.ListQueues"},
		"Authorization": {"AWS4-HMAC-SHA256 Credential=x/20250101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=x"},
	})
}

// TestElasticMQ returns a server that all tests of this binary share which want the same, started on first use. A test
// takes queues with names of its own. The test is skipped, or fails where servers are required, if there is no
// ElasticMQ. At most one config is given.
func TestElasticMQ(t testing.TB, config ...ElasticMQConfig) *ElasticMQ {
	t.Helper()
	return shareGiven(t, &ElasticMQ{}, givenElasticMQ, startElasticMQ, config)
}

// OwnElasticMQ returns a server that is the test's alone, to be killed and frozen. It is started even if the
// environment has an address. It is closed at the end of the test. At most one config is given.
func OwnElasticMQ(t testing.TB, config ...ElasticMQConfig) *ElasticMQ {
	t.Helper()
	return own(t, startElasticMQ, config)
}
