package load

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/internal/value"
)

// unknown returns the fault of a key that a section doesn't have, with the key that is probably meant.
func unknown(t reflect.Type, name string) string {
	names := fields.Keys(t)
	if t == reflect.TypeFor[brokers.Broker]() {
		if meant := nameHere(name); meant != "" {
			return "unknown key; its name here is " + meant
		}
	}
	if near, found := value.Nearest(name, names); found {
		return fmt.Sprintf("unknown key; did you mean %q?", near)
	}
	if places := elsewhere(reflect.TypeFor[config.Config](), "", name); len(places) > 0 && len(places) < 4 {
		return "unknown key here; it belongs to " + strings.Join(places, " or ")
	}
	if len(names) == 0 {
		return "unknown key; nothing can be set here"
	}
	return "unknown key; possible here: " + strings.Join(names, ", ")
}

// otherNames are other common names of brokers, and of ways to them, in small letters and without - and _.
var otherNames = map[string]string{
	"webhook": "http", "webhooks": "http", "https": "http", "rest": "http", "url": "http", "callback": "http",
	"amqp": "rabbitmq", "amqps": "rabbitmq", "rabbit": "rabbitmq", "lavinmq": "rabbitmq",
	"jetstream": "nats", "natsjetstream": "nats", "natsio": "nats",
	"redpanda": "kafka", "msk": "kafka", "confluent": "kafka", "apachekafka": "kafka",
	"eventhub": "kafka (Event Hubs speaks its protocol)", "eventhubs": "kafka (Event Hubs speaks its protocol)",
	"azure":  "kafka (Event Hubs speaks its protocol)",
	"valkey": "redis", "redisstream": "redis", "redisstreams": "redis", "streams": "redis",
	"aws": "sqs or sns", "amazon": "sqs or sns", "localstack": "sqs or sns", "awssqs": "sqs", "amazonsqs": "sqs",
	"elasticmq": "sqs", "awssns": "sns", "amazonsns": "sns",
	"gcp": "pubsub", "google": "pubsub", "gcppubsub": "pubsub", "googlepubsub": "pubsub", "cloudpubsub": "pubsub",
	"console": "stdout", "log": "stdout", "jsonl": "file", "json": "file", "ndjson": "file",
	"s3": "archive (in a local directory)", "gcs": "archive (in a local directory)",
}

// nameHere is the name, in this configuration, of a broker that is called otherwise elsewhere; "" for none.
func nameHere(name string) string {
	name = strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(name))
	if slices.Contains(fields.Keys(reflect.TypeFor[brokers.Broker]()), name) {
		return name
	}
	return otherNames[name]
}

// elsewhere returns the sections that have a key of that name.
func elsewhere(t reflect.Type, path, name string) []string {
	switch {
	case scalar.Is(t):
	case t.Kind() == reflect.Pointer:
		return elsewhere(t.Elem(), path, name)
	case t.Kind() == reflect.Slice:
		return elsewhere(t.Elem(), path+"[]", name)
	case t.Kind() == reflect.Struct:
		var places []string
		if slices.Contains(fields.Keys(t), name) {
			if path == "" {
				places = append(places, "the top level")
			} else {
				places = append(places, path)
			}
		}
		for _, f := range reflect.VisibleFields(t) {
			if f.Type == reflect.TypeFor[[]config.Entry]() || f.Type == reflect.TypeFor[[]config.Discovery]() {
				continue // what stands there stands at the top level, too
			}
			places = append(places, elsewhere(f.Type, fields.Join(path, fields.Key(f)), name)...)
		}
		return places
	}
	return nil
}
