package project

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// service is one of a compose file, as far as it matters here.
type service struct {
	Image       string `yaml:"image"`
	Environment any    `yaml:"environment"`
	Ports       []any  `yaml:"ports"`
	Command     any    `yaml:"command"`
}

// compose reads the first compose file of a folder. Without one, name is "".
func compose(dir string) (name string, services map[string]service, err error) {
	for _, name := range []string{"compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if os.IsNotExist(err) {
			continue
		}
		var file struct {
			Services map[string]service `yaml:"services"`
		}
		if err == nil {
			err = yaml.Unmarshal(text, &file)
		}
		if err != nil {
			return name, nil, fmt.Errorf("%s can't be read: %w", name, err)
		}
		return name, file.Services, nil
	}
	return "", nil, nil
}

// is reports whether the image is of one of the programs, without registry and tag.
func (s service) is(programs ...string) bool {
	name, _, _ := strings.Cut(path.Base(s.Image), "@")
	name, _, _ = strings.Cut(name, ":")
	return slices.Contains(programs, name)
}

// variable is one of the environment, or other if it isn't given here.
func (s service) variable(name, other string) string {
	switch all := s.Environment.(type) {
	case map[string]any:
		if value, given := all[name]; given && value != nil {
			return fmt.Sprint(value)
		}
	case []any:
		for _, one := range all {
			if value, given := strings.CutPrefix(fmt.Sprint(one), name+"="); given {
				return value
			}
		}
	}
	return other
}

// A port as in "127.0.0.1:5433:5432/tcp" or "${PORT:-5433}:5432".
var published = regexp.MustCompile(`^(?:[0-9.]+:)?(?:([0-9]+)|\$\{[A-Za-z_0-9]+:?-([0-9]+)\}):([0-9]+)(?:/tcp)?$`)

// address is the address on this machine of a port of the service.
func (s service) address(port string) string {
	for _, one := range s.Ports {
		if long, ok := one.(map[string]any); ok {
			if fmt.Sprint(long["target"]) == port && long["published"] != nil {
				return "localhost:" + fmt.Sprint(long["published"])
			}
			continue
		}
		if m := published.FindStringSubmatch(fmt.Sprint(one)); m != nil && m[3] == port {
			return "localhost:" + m[1] + m[2]
		}
	}
	return "localhost:" + port
}

// A listener that is meant for programs on this machine, as in EXTERNAL://localhost:19092.
var advertised = regexp.MustCompile(`://(?:localhost|127\.0\.0\.1):([0-9]+)`)

// kafka is the address on this machine: what the server tells its clients here, because they go where it says.
func (s service) kafka() string {
	for _, place := range []string{s.variable("KAFKA_ADVERTISED_LISTENERS", s.variable("KAFKA_CFG_ADVERTISED_LISTENERS", "")),
		fmt.Sprint(s.Command)} {
		if m := advertised.FindStringSubmatch(place); m != nil {
			return "localhost:" + m[1]
		}
	}
	return s.address("9092")
}

// database is the URL of a PostgreSQL, with the password only if it stands in the compose file.
func (s service) database() string {
	user := s.variable("POSTGRES_USER", "postgres")
	who := url.User(user)
	if password := s.variable("POSTGRES_PASSWORD", ""); password != "" && !strings.ContainsAny(password, "${}") {
		who = url.UserPassword(user, password)
	}
	return (&url.URL{Scheme: "postgres", User: who, Host: s.address("5432"), Path: s.variable("POSTGRES_DB", user)}).String()
}

// sections are those of the configuration by the programs that images have, in order of preference.
var sections = []struct {
	programs []string
	section  func(service) string
}{
	{[]string{"kafka", "cp-kafka", "confluent-local", "redpanda"}, func(s service) string {
		return fmt.Sprintf("kafka: {brokers: [%q], create_topics: true}", s.kafka())
	}},
	{[]string{"nats"}, func(s service) string {
		return fmt.Sprintf(`nats: {url: "nats://%s", stream: OUTBOX, create_stream: true, `+
			`subject: "outbox.{topic}", stream_subjects: ["outbox.>"]}`, s.address("4222"))
	}},
	{[]string{"rabbitmq"}, func(s service) string {
		who := url.UserPassword(s.variable("RABBITMQ_DEFAULT_USER", "guest"), s.variable("RABBITMQ_DEFAULT_PASS", "guest"))
		return fmt.Sprintf("rabbitmq: {url: %q, exchange: outbox, create_exchange: topic, "+
			"create_queues: [{name: outbox, bindings: [\"#\"]}]}", (&url.URL{Scheme: "amqp", User: who, Host: s.address("5672")}).String())
	}},
	{[]string{"redis", "valkey", "redis-stack", "redis-stack-server"}, func(s service) string {
		return fmt.Sprintf("redis: {addresses: [%q], create_streams: true}", s.address("6379"))
	}},
	{[]string{"localstack", "localstack-pro"}, sqsAt("4566")},
	{[]string{"elasticmq", "elasticmq-native"}, sqsAt("9324")},
}

func sqsAt(port string) func(service) string {
	return func(s service) string {
		return fmt.Sprintf(`sqs: {queue: "{topic}.fifo", region: us-east-1, endpoint: "http://%s", create_queues: true}`, s.address(port))
	}
}
