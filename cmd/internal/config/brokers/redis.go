package brokers

import (
	"strings"
	"time"

	"github.com/pgoutbox/outbox/broker/redis"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/config/transport"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// Redis configures Redis, by itself, behind sentinels or as a cluster.
type Redis struct {
	Addresses            []string      `json:"addresses" jsonschema:"Address (host:port) of the server, or several of a cluster's nodes or of sentinels. Required."`
	Cluster              bool          `json:"cluster" jsonschema:"Whether the addresses are of a Redis Cluster."`
	SentinelMaster       string        `json:"sentinel_master" jsonschema:"Name of the master that the sentinels at the addresses know. Empty: they are no sentinels."`
	SentinelUser         string        `json:"sentinel_user" jsonschema:"User to authenticate as to the sentinels."`
	SentinelPassword     scalar.Secret `json:"sentinel_password" jsonschema:"Password for the sentinels."`
	SentinelPasswordFile string        `json:"sentinel_password_file" jsonschema:"File that holds the password, instead of sentinel_password."`
	Database             int           `json:"database" min:"0" max:"1000000" jsonschema:"Number of the database."`
	User                 string        `json:"user" jsonschema:"User to authenticate as. Empty: the default user, if there is a password."`
	Password             scalar.Secret `json:"password" jsonschema:"Password."`
	PasswordFile         string        `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	TLS                  transport.TLS `json:"tls" jsonschema:"Transport security."`
	Stream               string        `json:"stream" jsonschema:"Template of the stream's name, with the fields {topic}, {key}, {event_type}, {aggregate_type} and {aggregate_id}. A brace itself is doubled, as in {{orders}}:{topic}."`
	CreateStreams        bool          `json:"create_streams" jsonschema:"Whether the first message of a stream creates it."`
	DedupWindow          int           `json:"dedup_window" min:"-1" max:"100000000" jsonschema:"Messages of a stream, the last ones, among which a repeat is recognised. -1: none."`
	MaxLen               int           `json:"max_len" min:"0" jsonschema:"Entries that a stream is trimmed to, about. 0: it isn't."`
	MaxAge               time.Duration `json:"max_age" min:"0" jsonschema:"Age beyond which entries are trimmed, about. Left out: none are."`
	Replicas             int           `json:"replicas" min:"0" max:"100" jsonschema:"Replicas that must have a message before it counts as delivered."`
	Fsync                bool          `json:"fsync" jsonschema:"Whether a message must be on disk before it counts as delivered. Needs Redis 7.2."`
}

// SetDefaults gives the defaults of the adapter.
func (r *Redis) SetDefaults() { fields.Adopt(r, redis.Defaults()) }

func (*Redis) shares() bool { return true }

func (r *Redis) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	redis.SilenceClient()
	cfg := redis.Config{Connections: max(16, 4*o.Groups)} // a relay of each shard group makes four calls at once
	o.configure(&cfg, *r, r.TLS, &faults)
	broker, err := redis.New(strings.Join(r.Addresses, ","), cfg)
	return withFaults(broker, err, &faults)
}

// Advise warns about settings that have no effect or show what should be hidden.
func (r *Redis) Advise(report *findings.Report, path string) {
	report.Advise(r.Password.Empty() || r.TLS.Enabled, path+".password", "is sent unencrypted, since tls.enabled is false")
}
