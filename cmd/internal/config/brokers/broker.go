// Package brokers has the sections of brokers, each with how its adapter is opened, and the clients that destinations
// share.
package brokers

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
)

// Broker has exactly one member that is not nil.
type Broker struct {
	Kafka  *Kafka  `json:"kafka" jsonschema:"Apache Kafka."`
	NATS   *NATS   `json:"nats" jsonschema:"NATS JetStream."`
	SQS    *SQS    `json:"sqs" jsonschema:"Amazon SQS."`
	SNS    *SNS    `json:"sns" jsonschema:"Amazon SNS."`
	PubSub *PubSub `json:"pubsub" jsonschema:"Google Cloud Pub/Sub."`
	Stdout *Stdout `json:"stdout" jsonschema:"JSON lines on standard output."`
	File   *File   `json:"file" jsonschema:"JSON lines in a file."`

	Archive *Archive `json:"archive" jsonschema:"An archive: compressed files of JSON lines in a directory."`

	Webhook *Webhook `json:"http" jsonschema:"Webhooks, by the rules of Standard Webhooks."`
	GRPC    *GRPC    `json:"grpc" jsonschema:"A server of the gRPC service outbox.v1.Delivery."`

	Redis    *Redis    `json:"redis" jsonschema:"Redis streams."`
	RabbitMQ *RabbitMQ `json:"rabbitmq" jsonschema:"RabbitMQ, over AMQP 0.9.1."`
}

var (
	_ = []findings.Adviser{(*Kafka)(nil), (*OAuth)(nil), (*NATS)(nil), (*Redis)(nil), (*Webhook)(nil)}
	_ = []sharing{(*Kafka)(nil), (*NATS)(nil), (*RabbitMQ)(nil), (*Redis)(nil), (*PubSub)(nil), (*GRPC)(nil)}
)

// Chosen returns the only section that is there, and its field.
func (b Broker) Chosen() (kind section, field string, err error) {
	var chosen []string
	for f, v := range reflect.ValueOf(b).Fields() {
		if !v.IsNil() {
			kind, field, chosen = v.Interface().(section), f.Name, append(chosen, fields.Key(f))
		}
	}
	switch len(chosen) {
	case 0:
		return nil, "", fmt.Errorf("none is given; name one of %s", strings.Join(fields.Keys(reflect.TypeOf(b)), ", "))
	case 1:
		return kind, field, nil
	}
	return nil, "", fmt.Errorf("%s are given; keep one, or make a destination of each", strings.Join(chosen, " and "))
}

// nameOf returns the name of a section.
func nameOf(kind section) string {
	for f := range reflect.TypeFor[Broker]().Fields() {
		if f.Type == reflect.TypeOf(kind) {
			return fields.Key(f)
		}
	}
	return ""
}

// Kind is the name of the section that is there, "" if none is.
func (b Broker) Kind() string {
	for f, v := range reflect.ValueOf(b).Fields() {
		if !v.IsNil() {
			return fields.Key(f)
		}
	}
	return ""
}
