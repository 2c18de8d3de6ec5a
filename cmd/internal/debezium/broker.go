package debezium

import (
	"fmt"
	"regexp"
	"strings"
)

// broker returns the section broker. For some brokers it changes the format.
func (r *reader) broker(f *layout) (map[string]any, error) {
	kind := r.take("sink.type", "kafka")
	section := map[string]any{}
	set := func(key, value string) {
		if value != "" {
			section[key] = value
		}
	}
	switch kind {
	case "kafka":
		r.kafka(section)
	case "http":
		set("url", r.take("sink.http.url", ""))
	case "redis":
		section["addresses"] = []string{r.take("sink.redis.address", "localhost:6379")}
		section["create_streams"] = true
		set("user", r.take("sink.redis.user", ""))
		r.secret("sink.redis.password", "broker.redis.password_file")
		if r.take("sink.redis.ssl.enabled", "false") == "true" {
			section["tls"] = map[string]bool{"enabled": true}
		}
		f.Compact = r.take("sink.redis.message.format", "compact") != "extended"
	case "nats-jetstream":
		kind = "nats"
		set("url", r.take("sink.nats-jetstream.url", "nats://localhost:4222"))
		set("user", r.take("sink.nats-jetstream.auth.user", ""))
		r.secret("sink.nats-jetstream.auth.password", "broker.nats.password_file")
		section["subject"] = "{topic}"
		if r.take("sink.nats-jetstream.create-stream", "false") == "true" {
			section["stream"], section["create_stream"] = "DebeziumStream", true // the name that its sink has
			subjects := strings.ReplaceAll(r.take("sink.nats-jetstream.subjects", "*.*.*"), " ", "")
			section["stream_subjects"] = strings.Split(subjects, ",")
			if r.take("sink.nats-jetstream.storage", "memory") == "memory" {
				r.note("Debezium's stream is kept in memory, where a restart of the server loses it. If it isn't there, the relay " +
					"creates one on disk.")
			}
		}
	case "rabbitmq":
		const connection = "sink.rabbitmq.connection."
		host := joined(r.take(connection+"host", "localhost"), r.take(connection+"port", "5672"))
		section["url"] = "amqp://" + host + "/" + escaped(strings.TrimPrefix(r.take(connection+"virtual.host", ""), "/"))
		set("user", r.take(connection+"username", ""))
		r.secret(connection+"password", "broker.rabbitmq.password_file")
		set("exchange", r.take("sink.rabbitmq.exchange", ""))
		set("routing_key", r.take("sink.rabbitmq.routingKey", ""))
	case "pubsub":
		set("project", r.take("sink.pubsub.project.id", ""))
	case "sqs":
		queue := r.take("sink.sqs.queue.url", "")
		region := r.take("sink.sqs.region", "")
		if m := regionOf.FindStringSubmatch(queue); m != nil && region == "" {
			region = m[1]
		}
		set("region", region)
		if queue != "" {
			name := queue[strings.LastIndexByte(queue, '/')+1:]
			section["queue"] = name
			if !strings.HasSuffix(name, ".fifo") {
				section["unordered"] = true
			}
		}
	default:
		return nil, fmt.Errorf("the sink is %s, and the relay has none for it: it has Kafka (Event Hubs speaks its protocol), "+
			"NATS JetStream, RabbitMQ, Redis, SQS, SNS, Pub/Sub, HTTP and gRPC", kind)
	}
	return map[string]any{kind: section}, nil
}

// secret notes where a secret belongs, which isn't copied.
func (r *reader) secret(name, place string) {
	if r.take(name, "") != "" {
		r.note("%s isn't copied. Name a file that holds it in %s.", r.theirs(name), place)
	}
}

// regionOf finds the region in the URL of a queue.
var regionOf = regexp.MustCompile(`^https://sqs\.([a-z0-9-]+)\.amazonaws\.com`)

var login = regexp.MustCompile(`username="([^"]*)"`)

func (r *reader) kafka(section map[string]any) {
	const producer = "sink.kafka.producer."
	servers := r.take(producer+"bootstrap.servers", "")
	if servers == "" {
		servers = "${KAFKA_BROKERS:-localhost:9092}"
		r.note("The addresses of Kafka are the worker's. Give them as KAFKA_BROKERS, or in broker.kafka.brokers.")
	}
	section["brokers"] = strings.Split(strings.ReplaceAll(servers, " ", ""), ",")
	if id := r.take(producer+"client.id", ""); id != "" {
		section["client_id"] = id
	}
	if compression := r.take(producer+"compression.type", "none"); compression != "none" {
		section["compression"] = compression
	}
	protocol := r.take(producer+"security.protocol", "PLAINTEXT")
	if strings.HasSuffix(protocol, "SSL") {
		section["tls"] = map[string]bool{"enabled": true}
	}
	mechanism := r.take(producer+"sasl.mechanism", "")
	jaas := r.take(producer+"sasl.jaas.config", "")
	if strings.HasPrefix(protocol, "SASL") {
		sasl := map[string]string{"mechanism": strings.ToLower(mechanism)}
		if found := login.FindStringSubmatch(jaas); found != nil {
			sasl["username"] = found[1]
		}
		section["sasl"] = sasl
		r.note("The password of Kafka isn't copied. Name a file that holds it in broker.kafka.sasl.password_file.")
	}
}
