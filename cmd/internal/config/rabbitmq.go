package config

import (
	"net/url"
	"reflect"
	"slices"
	"strings"
)

// RabbitMQ configures RabbitMQ.
type RabbitMQ struct {
	URL            URL             `json:"url" jsonschema:"Server URL, amqp:// or amqps://, or several of one cluster separated by commas."`
	URLFile        string          `json:"url_file" jsonschema:"File that holds the URL, instead of url."`
	Exchange       string          `json:"exchange" jsonschema:"Template of the exchange, with the fields {topic}, {key}, {event_type}, {aggregate_type} and {aggregate_id}. Empty: the routing key names the queue."`
	RoutingKey     string          `json:"routing_key" jsonschema:"Template of the routing key, with the same fields."`
	CreateExchange string          `json:"create_exchange" jsonschema:"Kind of which the exchange is created when it is missing: topic, direct, fanout. Empty: it isn't."`
	CreateQueues   []RabbitMQQueue `json:"create_queues" jsonschema:"Quorum queues that are created when they are missing."`
	User           string          `json:"user" jsonschema:"User to authenticate as, instead of the URL's."`
	Password       Secret          `json:"password" jsonschema:"The user's password."`
	PasswordFile   string          `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	External       bool            `json:"external" jsonschema:"Whether to authenticate by the client's certificate."`
	TLS            TLS             `json:"tls" jsonschema:"Transport security, for amqps:// URLs."`
}

// RabbitMQQueue is a queue to be created.
type RabbitMQQueue struct {
	Name      string   `json:"name" jsonschema:"Name of the queue. Required."`
	Bindings  []string `json:"bindings" jsonschema:"Routing keys, or patterns of them, that bind it to the exchange."`
	MaxLength int      `json:"max_length" min:"0" jsonschema:"Messages from which on it refuses more, so that the relay waits. 0: no limit."`
}

// DefaultRabbitMQ returns the settings of a RabbitMQ that is only named.
func DefaultRabbitMQ() RabbitMQ {
	return RabbitMQ{URL: NewURL("amqp://127.0.0.1:5672/"), RoutingKey: "{topic}"}
}

// defaultOfQueues sets v to its default if it is a Redis or a RabbitMQ, and reports whether it is.
func defaultOfQueues(v reflect.Value) bool {
	switch p := v.Addr().Interface().(type) {
	case *Redis:
		*p = DefaultRedis()
	case *RabbitMQ:
		*p = DefaultRabbitMQ()
	default:
		return false
	}
	return true
}

func (l *loader) rabbitmq(r *RabbitMQ, path string) {
	fields := []string{"topic", "key", "event_type", "aggregate_type", "aggregate_id"}
	secure := true
	for i, server := range strings.Split(r.URL.Text(), ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		l.check(err == nil && u.Hostname() != "" && slices.Contains([]string{"amqp", "amqps"}, u.Scheme), path+".url",
			"server %d: not a valid URL such as amqp://127.0.0.1:5672/; special characters in a user name, password or virtual host must be percent-encoded", i+1)
		secure = secure && strings.HasPrefix(strings.TrimSpace(server), "amqps:")
	}
	if r.Exchange != "" {
		l.template(path+".exchange", r.Exchange, fields...)
	}
	l.template(path+".routing_key", r.RoutingKey, fields...)
	named := r.Exchange != "" && !strings.Contains(r.Exchange, "{")
	l.check(r.CreateExchange == "" || named, path+".create_exchange", "given, but exchange is not the name of one")
	for i, q := range r.CreateQueues {
		at := element(path+".create_queues", i)
		l.check(q.Name != "", at+".name", "not given")
		l.check(len(q.Bindings) == 0 || named, at+".bindings", "given, but exchange is not the name of one")
		l.check(len(q.Bindings) > 0 || !named, at+".bindings", "none is given; nothing of exchange %q would reach the queue", r.Exchange)
	}
	l.check(r.Password.Empty() || r.User != "", path+".user", "not given, but a password is")
	l.check(!r.External || r.User == "", path+".user", "given, but external is true; keep one way to authenticate")
	l.check(!r.External || secure, path+".external", "needs a client's certificate, so every URL must begin with amqps://")
	l.check(!r.TLS.Enabled || secure, path+".tls.enabled", "true, but not every URL begins with amqps://")
	l.tls(r.TLS, path+".tls")
}
