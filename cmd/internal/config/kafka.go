package config

import (
	"math"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/cmd/internal/oauth"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// Kafka configures a Kafka cluster.
type Kafka struct {
	Brokers           []string `json:"brokers" jsonschema:"Addresses (host:port, or host for port 9092) to begin with. Required."`
	Topic             string   `json:"topic" jsonschema:"Template of the topic, with the fields {topic}, {event_type} and {aggregate_type}."`
	InternalTopics    bool     `json:"internal_topics" jsonschema:"Whether messages may go to topics that begin with __, as the cluster's own do, or end with -cursor, as those of exactly-once destinations do. Otherwise such a message is refused."`
	ClientID          string   `json:"client_id" jsonschema:"Name of the client in the cluster's logs and quotas."`
	TLS               TLS      `json:"tls" jsonschema:"Transport security."`
	SASL              SASL     `json:"sasl" jsonschema:"Authentication; used when a username or oauth is given."`
	Compression       string   `json:"compression" enum:"none,gzip,snappy,lz4,zstd" jsonschema:"Compression of batches."`
	CreateTopics      bool     `json:"create_topics" jsonschema:"Whether missing topics are created."`
	Partitions        int      `json:"partitions" min:"1" max:"100000" jsonschema:"Partitions of created topics."`
	ReplicationFactor int      `json:"replication_factor" min:"-1" max:"32767" jsonschema:"Replicas of created topics; -1 leaves it to the cluster."`
	ExactlyOnce       bool     `json:"exactly_once" jsonschema:"Publish in transactions, so that consumers with isolation.level=read_committed see every message once."`
	TransactionalID   string   `json:"transactional_id" field:"ID" jsonschema:"What the transactional ids of an exactly-once destination begin with; no other destination of the cluster may have the same. Empty: outbox- and the destination's name."`
	CursorTopic       string   `json:"cursor_topic" jsonschema:"Compacted topic of one partition for the records of an exactly-once destination. Empty: the transactional id and -cursor."`
}

// SASL authenticates with a name and a password, or with tokens.
type SASL struct {
	Mechanism    string `json:"mechanism" enum:"plain,scram-sha-256,scram-sha-512,oauthbearer" jsonschema:"SASL mechanism."`
	User         string `json:"username" jsonschema:"User name. Empty: no authentication, unless oauth is given."`
	Password     Secret `json:"password" jsonschema:"Password."`
	PasswordFile string `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	OAuth        *OAuth `json:"oauth" field:"Token" jsonschema:"Where tokens come from, for the mechanism oauthbearer."`
}

// OAuth fetches tokens with a client's credentials.
type OAuth struct {
	TokenURL         string        `json:"token_url" jsonschema:"The server's token endpoint. Required."`
	ClientID         string        `json:"client_id" jsonschema:"Id of the client. Required."`
	ClientSecret     Secret        `json:"client_secret" jsonschema:"The client's secret. Required."`
	ClientSecretFile string        `json:"client_secret_file" jsonschema:"File that holds the secret, instead of client_secret."`
	Scopes           []string      `json:"scopes" jsonschema:"Scopes that are asked for. Empty: the server decides."`
	Parameters       []OAuthField  `json:"parameters" jsonschema:"What the server is sent beside, such as an audience."`
	Extensions       []OAuthField  `json:"extensions" jsonschema:"SASL extensions that the cluster is sent with the token, such as logicalCluster."`
	Timeout          time.Duration `json:"timeout" jsonschema:"Bound of a request for a token."`
	TLS              TLS           `json:"tls" jsonschema:"Transport security of an https token_url, beside what the system trusts."`
}

// OAuthField is a name with a value.
type OAuthField struct {
	Name  string `json:"name" jsonschema:"Its name. Required."`
	Value string `json:"value" jsonschema:"Its value. Required."`
}

func (k *Kafka) SetDefaults() {
	adopt(k, kafka.Defaults())
	k.SASL.Mechanism, k.Partitions, k.ReplicationFactor = "scram-sha-512", 1, -1
}

func (o *OAuth) SetDefaults() { adopt(o, oauth.Defaults()) }

func (k *Kafka) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	cfg := kafka.Config{
		Brokers:        k.Brokers,
		Topic:          k.Topic,
		Format:         o.format,
		ClientID:       k.ClientID,
		TLS:            k.TLS.config(&faults),
		SASL:           k.SASL.config(&faults, o),
		Compression:    k.Compression,
		CreateTopics:   k.CreateTopics,
		InternalTopics: k.InternalTopics,
		Clients:        min(4*max(o.groups, 1), 64), // a relay of each shard group makes four calls at once
		Logger:         o.Logger,
	}
	if k.CreateTopics {
		cfg.Partitions = int32(k.Partitions)
		cfg.ReplicationFactor = int16(max(min(k.ReplicationFactor, math.MaxInt16), 0)) // 0 leaves it to the cluster, as -1 does in the file
	}
	if !k.ExactlyOnce {
		broker, err := kafka.New(cfg)
		return made(broker, err, &faults)
	}
	exactly := kafka.ExactlyOnceConfig{ID: k.TransactionalID, Group: o.Group, CursorTopic: k.CursorTopic}
	settings.Default(&exactly.ID, "outbox-"+o.name)
	broker, err := kafka.NewExactlyOnce(cfg, exactly)
	return made(broker, err, &faults)
}

const oauthBearer = "oauthbearer"

// config is nil without authentication.
func (s SASL) config(faults *settings.Faults, o Opening) *kafka.SASL {
	if s.User == "" && s.Password.Empty() && s.OAuth == nil && s.Mechanism != oauthBearer {
		return nil
	}
	cfg := &kafka.SASL{Mechanism: strings.ToUpper(s.Mechanism), User: s.User, Password: s.Password.Text()}
	if s.OAuth != nil {
		var own settings.Faults
		source, err := oauth.New(oauth.Config{
			TokenURL:     s.OAuth.TokenURL,
			ClientID:     s.OAuth.ClientID,
			ClientSecret: s.OAuth.ClientSecret.Text(),
			Scopes:       s.OAuth.Scopes,
			Parameters:   byName(s.OAuth.Parameters),
			TLS:          s.OAuth.TLS.config(&own),
			Timeout:      s.OAuth.Timeout,
			Logger:       o.Logger,
		})
		own.Add("", err)
		faults.Add("SASL.Token", own.Err())
		cfg.Token, cfg.Extensions = source.Token, byName(s.OAuth.Extensions)
	}
	return cfg
}

func byName(fields []OAuthField) map[string]string {
	values := make(map[string]string, len(fields))
	for _, f := range fields {
		values[f.Name] = f.Value
	}
	return values
}

func (k *Kafka) Advise(r *report, path string) {
	r.advise(k.ExactlyOnce || k.TransactionalID == "", path+".transactional_id", "has no effect, since exactly_once is false")
	r.advise(k.ExactlyOnce || k.CursorTopic == "", path+".cursor_topic", "has no effect, since exactly_once is false")
	defaults := Standard[Kafka]()
	r.advise(k.CreateTopics || k.Partitions == defaults.Partitions, path+".partitions", "has no effect, since create_topics is false")
	r.advise(k.CreateTopics || k.ReplicationFactor == defaults.ReplicationFactor, path+".replication_factor",
		"has no effect, since create_topics is false")
	mechanism := path + ".sasl.mechanism"
	r.advise(k.TLS.Enabled || k.SASL.Mechanism != "plain" || k.SASL.User == "", mechanism,
		"plain sends the password unencrypted, since tls.enabled is false")
	r.advise(k.TLS.Enabled || k.SASL.Mechanism != oauthBearer, mechanism,
		"oauthbearer sends tokens unencrypted, since tls.enabled is false")
}

// RFC 7628 has the form of extensions, and auth among them is the token.
var (
	extensionName  = regexp.MustCompile(`^[A-Za-z]+$`)
	extensionValue = regexp.MustCompile(`^[\x21-\x7E \t\r\n]+$`)
)

func (o *OAuth) Advise(r *report, path string) {
	if u, err := url.Parse(o.TokenURL); err == nil && u.Scheme == "http" {
		ip, err := netip.ParseAddr(u.Hostname())
		r.advise(u.Hostname() == "localhost" || err == nil && ip.IsLoopback(), path+".token_url", "http:// shows the secret to everybody on the way; use https://")
	}
	checkOAuthFields(r, o.Parameters, path+".parameters", func(f OAuthField, at string) {
		r.check(f.Name != "" && f.Name != "scope" && f.Name != "client_id" && f.Name != "client_secret", at+".name",
			"%q can't be set here", f.Name)
	})
	checkOAuthFields(r, o.Extensions, path+".extensions", func(f OAuthField, at string) {
		r.check(extensionName.MatchString(f.Name) && f.Name != "auth", at+".name",
			"%q is not the name of an extension; use letters alone, and not auth", f.Name)
		r.check(extensionValue.MatchString(f.Value), at+".value", "empty, or not of printable ASCII characters")
	})
}

func checkOAuthFields(r *report, fields []OAuthField, path string, check func(OAuthField, string)) {
	seen := make(map[string]bool)
	for i, f := range fields {
		at := element(path, i)
		check(f, at)
		r.check(!seen[f.Name], at+".name", "%q is given twice", f.Name)
		seen[f.Name] = true
	}
}
