package config

import (
	"time"
)

// Redis configures Redis, by itself, behind sentinels or as a cluster.
type Redis struct {
	Addresses            []string      `json:"addresses" jsonschema:"Address (host:port) of the server, or several of a cluster's nodes or of sentinels. Required."`
	Cluster              bool          `json:"cluster" jsonschema:"Whether the addresses are of a Redis Cluster."`
	SentinelMaster       string        `json:"sentinel_master" jsonschema:"Name of the master that the sentinels at the addresses know. Empty: they are no sentinels."`
	SentinelUser         string        `json:"sentinel_user" jsonschema:"User to authenticate as to the sentinels."`
	SentinelPassword     Secret        `json:"sentinel_password" jsonschema:"Password for the sentinels."`
	SentinelPasswordFile string        `json:"sentinel_password_file" jsonschema:"File that holds the password, instead of sentinel_password."`
	Database             int           `json:"database" min:"0" max:"1000000" jsonschema:"Number of the database."`
	User                 string        `json:"user" jsonschema:"User to authenticate as. Empty: the default user, if there is a password."`
	Password             Secret        `json:"password" jsonschema:"Password."`
	PasswordFile         string        `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	TLS                  TLS           `json:"tls" jsonschema:"Transport security."`
	Stream               string        `json:"stream" jsonschema:"Template of the stream's name, with the fields {topic}, {key}, {event_type}, {aggregate_type} and {aggregate_id}. A brace itself is doubled, as in {{orders}}:{topic}."`
	CreateStreams        bool          `json:"create_streams" jsonschema:"Whether the first message of a stream creates it."`
	DedupWindow          int           `json:"dedup_window" min:"-1" max:"100000000" jsonschema:"Messages of a stream, the last ones, among which a repeat is recognised. -1: none."`
	MaxLen               int           `json:"max_len" min:"0" jsonschema:"Entries that a stream is trimmed to, about. 0: it isn't."`
	MaxAge               time.Duration `json:"max_age" min:"0" jsonschema:"Age beyond which entries are trimmed, about. Left out: none are."`
	Replicas             int           `json:"replicas" min:"0" max:"100" jsonschema:"Replicas that must have a message before it counts as delivered."`
	Fsync                bool          `json:"fsync" jsonschema:"Whether a message must be on disk before it counts as delivered. Needs Redis 7.2."`
}

// DefaultRedis returns the settings of a Redis that is only named.
func DefaultRedis() Redis {
	return Redis{Stream: "{topic}", DedupWindow: 50_000}
}

func (l *loader) redis(r *Redis, path string) {
	l.check(len(r.Addresses) > 0, path+".addresses", "none is given; name one or more, for example [\"127.0.0.1:6379\"]")
	for i, address := range r.Addresses {
		l.address(element(path+".addresses", i), address, "127.0.0.1:6379")
	}
	l.check(len(r.Addresses) < 2 || r.Cluster || r.SentinelMaster != "", path+".addresses", "several are given; set cluster, or name the sentinel_master")
	l.check(!r.Cluster || r.SentinelMaster == "", path+".cluster", "true, but a sentinel_master is named; leave out one of the two")
	l.check(!r.Cluster || r.Database == 0, path+".database", "%d, but a cluster has database 0 alone", r.Database)
	l.check(r.User == "" || !r.Password.Empty() || l.rejected[path+".password_file"], path+".password", "not given, but a user is; set it or password_file")
	l.check(r.SentinelMaster != "" || r.SentinelUser == "" && r.SentinelPassword.Empty(), path+".sentinel_master", "not given, but credentials of sentinels are")
	l.check(r.Stream != "", path+".stream", "empty; {topic} is the usual template")
	l.check(r.MaxLen == 0 || r.MaxAge == 0, path+".max_age", "given, and max_len as well; keep one")
	l.advise(r.Password.Empty() || r.TLS.Enabled, path+".password", "is sent unencrypted, since tls.enabled is false")
	l.tls(r.TLS, path+".tls")
}
