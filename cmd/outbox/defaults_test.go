package main

import (
	"reflect"
	"testing"

	"github.com/pgoutbox/outbox/broker/grpc"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/broker/pubsub"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/broker/registry"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/relay"
)

func TestADefaultOfTheFileIsThatOfTheLibrary(t *testing.T) {
	t.Parallel()
	registryDefault := config.DefaultSchemaRegistry()
	for _, pair := range []struct{ file, library any }{
		{config.DefaultKafka(), kafka.Defaults()},
		{config.DefaultNATS(), nats.Defaults()},
		{config.DefaultRedis(), redis.Defaults()},
		{config.DefaultRabbitMQ(), rabbitmq.Defaults()},
		{config.DefaultWebhook(), webhooks.Defaults()},
		{config.DefaultGRPC(), grpc.Defaults()},
		{config.DefaultPubSub(), pubsub.Defaults()},
		{registryDefault, registry.Defaults()},
		{config.DefaultDestination(), relay.Defaults()},
		{config.DefaultDestination().Delivery, relay.Defaults()},
	} {
		if n := compareDefaults(t, reflect.TypeOf(pair.library).String(), reflect.ValueOf(pair.file), reflect.ValueOf(pair.library)); n == 0 {
			t.Errorf("%T and %T have no default in common", pair.file, pair.library)
		}
	}
}

// compareDefaults compares the fields that have one name, and returns how many there are. One that the file leaves out
// has the library's default.
func compareDefaults(t *testing.T, path string, file, library reflect.Value) (n int) {
	for f, value := range file.Fields() {
		own, found := library.Type().FieldByName(f.Name)
		if !found || value.IsZero() || !own.IsExported() {
			continue
		}
		theirs, at := library.FieldByName(f.Name), path+"."+f.Name
		switch {
		case at == "kafka.Config.Partitions" || at == "kafka.Config.ReplicationFactor": // of created topics; the library leaves them to the cluster
		case value.Kind() == reflect.Struct && theirs.Kind() == reflect.Struct:
			n += compareDefaults(t, at, value, theirs)
		case value.Kind() == reflect.Struct || value.Kind() == reflect.Pointer || value.Kind() == reflect.Slice:
		default:
			n++
			if !theirs.CanConvert(value.Type()) || theirs.Convert(value.Type()).Interface() != value.Interface() {
				t.Errorf("%s is %v by default, and in the file %v", at, theirs.Interface(), value.Interface())
			}
		}
	}
	return n
}
