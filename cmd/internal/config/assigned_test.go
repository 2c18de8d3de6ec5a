package config_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/broker/grpc"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/broker/pubsub"
	"github.com/pgoutbox/outbox/broker/rabbitmq"
	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/broker/registry"
	"github.com/pgoutbox/outbox/broker/sns"
	"github.com/pgoutbox/outbox/broker/sqs"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/oauth"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/value"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped"
	"github.com/pgoutbox/outbox/relay/replication"
	"github.com/pgoutbox/outbox/route"
)

// What is assigned by name would have no effect after a field of the library got another name. Each setting that
// isn't assigned is named here, and has code of its own.
func TestEachSettingReachesTheLibrary(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		section, library any
		others           string
	}{
		{brokers.Kafka{}, kafka.Config{}, "sasl " +
			"exactly_once transactional_id cursor_topic"},
		{brokers.SASL{}, kafka.SASL{}, "password_file oauth"},
		{brokers.OAuth{}, oauth.Config{}, "client_secret_file parameters extensions"},
		{brokers.NATS{}, nats.Config{}, "url url_file create_stream stream_subjects replicas token_file password_file"},
		{brokers.RabbitMQ{}, rabbitmq.Config{}, "url url_file password_file"},
		{brokers.RabbitMQQueue{}, rabbitmq.Queue{}, ""},
		{brokers.Redis{}, redis.Config{}, "addresses sentinel_password_file password_file"},
		{brokers.SQS{}, sqs.Config{}, "create_queues"},
		{brokers.SNS{}, sns.Config{}, ""},
		{brokers.PubSub{}, pubsub.Config{}, ""},
		{brokers.GRPC{}, grpc.Config{}, "target"},
		{brokers.Webhook{}, webhooks.Config{}, "url url_file secret secret_file previous_secret previous_secret_file " +
			"bearer_token_file password_file api_key_header api_key api_key_file allow_networks proxy_file"},
		{brokers.Archive{}, jsonl.ArchiveConfig{}, "directory"},
		{brokers.SchemaRegistry{}, registry.Config{}, "password_file token_file"},
		{brokers.RegistrySchema{}, registry.Schema{}, ""},
		{config.Delivery{}, relay.Config{}, "outage.after"},
		{config.Columns{}, mapping.Mapping{}, "header_columns"},
		{config.Source{}, mapping.Mapping{}, "strategy preset columns lock purge notify max_holds transactions"},
		{config.Purge{}, mapped.PurgeConfig{}, ""},
		{config.Replication{}, replication.Config{}, "failover"},
		{config.CloudEvents{}, format.CloudEvents{}, "mode"},
		{config.Extension{}, format.Extension{}, ""},
		{config.Debezium{}, format.Debezium{}, ""},
		{config.Placement{}, format.Placement{}, ""},
		{config.Route{}, route.Table{}, ""},
		{config.RouteRule{}, route.Rule{}, ""},
		{config.HeaderRule{}, route.HeaderRule{}, ""},
		{config.Match{}, route.Match{}, ""},
	} {
		section := reflect.TypeOf(c.section)
		var others []string
		for f := range section.Fields() {
			others = append(others, unassigned(section, reflect.TypeOf(c.library), []int{f.Index[0]}, fields.Key(f))...)
		}
		if got := strings.Join(others, " "); got != c.others {
			t.Errorf("%v: not assigned: %s\nwant: %s", section, got, c.others)
		}
	}
}

// unassigned returns the paths of the settings at an index of a section, and below, that Assign does nothing with.
func unassigned(section, library reflect.Type, index []int, path string) (paths []string) {
	s, l := reflect.New(section).Elem(), reflect.New(library)
	v := s.FieldByIndex(index)
	switch {
	case v.Type().Name() == "TLS": // has a method that makes what the library takes
		return nil
	case v.Kind() == reflect.Struct && !scalar.IsSecret(v.Type()):
		for f := range v.Type().Fields() {
			below := append(index[:len(index):len(index)], f.Index[0])
			paths = append(paths, unassigned(section, library, below, path+"."+fields.Key(f))...)
		}
		if len(paths) == v.NumField() && strings.Count(path, ".") == 0 {
			return []string{path}
		}
		return paths
	case scalar.IsSecret(v.Type()):
		_ = value.Set(v, "x")
	case v.Kind() == reflect.String:
		v.SetString("x")
	case v.Kind() == reflect.Bool:
		v.SetBool(true)
	case v.CanInt():
		v.SetInt(1)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	}
	if fields.Assign(l.Interface(), s.Interface()); l.Elem().IsZero() {
		return []string{path}
	}
	return nil
}
