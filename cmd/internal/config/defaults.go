package config

import (
	"reflect"
	"time"
)

// Default returns the configuration of an empty file. It isn't valid: a
// database and a destination must be given. Name is set by [Load], from the
// host's name.
func Default() Config {
	return Config{
		Log:       Log{Level: "info", Format: "auto"},
		HTTP:      HTTP{Listen: "127.0.0.1:9187"},
		Retention: Retention{Enabled: true, Interval: 30 * time.Second},
	}
}

// DefaultDestination returns what a destination has unless told otherwise.
func DefaultDestination() Destination {
	return Destination{
		ShardGroups: 1,
		Delivery: Delivery{
			MaxAttempts:      10,
			OnExhausted:      "dead_letter",
			Backoff:          Backoff{Initial: 100 * time.Millisecond, Max: time.Minute},
			Outage:           Outage{Initial: 100 * time.Millisecond, Max: time.Second},
			HoldAfter:        time.Second,
			MaxInFlight:      9000,
			MaxInFlightBytes: 5 << 20,
			Batch:            3000,
		},
		Lease:        3 * time.Second,
		Poll:         Poll{Busy: time.Millisecond, Idle: 100 * time.Millisecond},
		DrainTimeout: 10 * time.Second,
	}
}

// DefaultKafka returns the settings of a Kafka broker that is only named.
func DefaultKafka() Kafka {
	return Kafka{
		Topic:             "{topic}",
		ClientID:          "outbox",
		SASL:              SASL{Mechanism: "scram-sha-512"},
		Compression:       "none",
		Partitions:        1,
		ReplicationFactor: -1,
	}
}

// DefaultNATS returns the settings of a NATS broker that is only named.
func DefaultNATS() NATS {
	return NATS{
		URL:      NewURL("nats://127.0.0.1:4222"),
		Subject:  "{topic}",
		Replicas: 1,
	}
}

// newDefault returns a value of a type, with its defaults, that can be set.
func newDefault(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	switch p := v.Addr().Interface().(type) {
	case *Config:
		*p = Default()
	case *Destination:
		*p = DefaultDestination()
	case *Kafka:
		*p = DefaultKafka()
	case *OAuth:
		*p = DefaultOAuth()
	case *NATS:
		*p = DefaultNATS()
	case *Replication:
		*p = DefaultReplication()
	case *Source:
		*p = DefaultSource()
	case *Purge:
		*p = DefaultPurge()
	case *Notify:
		*p = DefaultNotify()
	case *NotifyWebhook:
		*p = DefaultNotifyWebhook()
	case *NotifyCommand:
		*p = DefaultNotifyCommand()
	case *Webhook:
		*p = DefaultWebhook()
	case *GRPC:
		*p = DefaultGRPC()
	default:
		if !defaultOfCloud(v) && !defaultOfQueues(v) {
			defaultOfRouting(v)
		}
	}
	return v
}
