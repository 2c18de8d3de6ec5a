// Package config has the sections of the relay daemon's configuration: their settings with defaults and checks, and
// what the packages of the library take of them. Package load reads them; the sections of brokers are in package
// brokers.
package config

import (
	"time"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/relay/retention"
)

// The tags of the fields, here and in the rooms below, are the one description of the format: json has the key,
// jsonschema what it means; enum, min and max (inclusive) constrain it. Durations must be positive. SetDefaults gives a
// section its defaults: those of the package that it configures, so that there is one place for each.

// Config is the daemon's configuration.
type Config struct {
	Name         string        `json:"name" jsonschema:"Name of this relay. An instance that restarts under its name takes its leases back at once; no two may share one. Default: the host's name."`
	Database     Database      `json:"database" jsonschema:"The PostgreSQL database that holds the outbox."`
	Log          Log           `json:"log" jsonschema:"Logging, to standard error."`
	HTTP         HTTP          `json:"http" jsonschema:"Health, metrics and the API of operators."`
	Retention    Retention     `json:"retention" jsonschema:"Removal of messages that every destination has had."`
	Dormant      time.Duration `json:"dormant" min:"0" jsonschema:"After this time without a message the relay has no connection to a database, and gives its leases back. 0: never."`
	DormantPoll  time.Duration `json:"dormant_poll" jsonschema:"Pause between two looks at a dormant database. A message that is committed meanwhile waits for as long at most."`
	Notify       *Notify       `json:"notify" jsonschema:"Who is told of messages that will not be tried again. None: nobody; metrics and log tell of them in any case."`
	Quota        Quota         `json:"quota" jsonschema:"What may be sent a second, to all destinations together; where there are several databases, of each."`
	Telemetry    Telemetry     `json:"telemetry" jsonschema:"Traces of what is sent. Spans are made of messages whose trace is sampled."`
	Limits       Limits        `json:"limits" jsonschema:"What this process may use, for all of its databases together."`
	Fleet        *Fleet        `json:"fleet" jsonschema:"Equal processes that share the databases. None: this process delivers from all of them, or stands by."`
	Destinations []Destination `json:"destinations" jsonschema:"Where messages go. Each destination has a cursor of its own, so that one that is down holds up no other."`
	Databases    []Entry       `json:"databases" jsonschema:"Several databases, in place of one. Retention, dormant, dormant_poll, notify, quota and destinations at the top level are their defaults."`
	DatabasesDir string        `json:"databases_dir" jsonschema:"Folder of files, *.yaml, that are a database each; its name is the file's unless the file has one. Relative to this file."`
	Discover     []Discovery   `json:"discover" jsonschema:"Where databases are looked for while the relay runs. Retention, dormant, dormant_poll, notify, quota and destinations at the top level are their defaults."`
}

// Log configures logging.
type Log struct {
	Level  string `json:"level" enum:"debug,info,warn,error" jsonschema:"Least severe level that is written."`
	Format string `json:"format" enum:"auto,text,json" jsonschema:"auto is text on a terminal and JSON elsewhere."`
}

// Retention configures the removal of delivered messages.
type Retention struct {
	Enabled  bool          `json:"enabled" jsonschema:"Whether this relay removes messages that every destination has had."`
	Interval time.Duration `json:"interval" jsonschema:"Pause between two attempts."`
}

// SetDefaults gives the settings of an empty file. They aren't valid: a database and a destination must be given. Name
// is set by package load, from the host's name.
func (c *Config) SetDefaults() {
	c.Log = Log{Level: "info", Format: "auto"}
	c.HTTP = HTTP{Listen: "127.0.0.1:9187", API: true, MaskHeaders: rest.CredentialHeaders(), Metrics: Metrics{Databases: 100, Worst: 20}}
	c.Limits.SetDefaults()
	c.Retention = Retention{Enabled: true, Interval: retention.Defaults().Interval}
	c.DormantPoll = time.Minute
}

// DefaultDatabase is the name of a database that is the only one.
const DefaultDatabase = "default"

// Effective is the effective configuration of one database.
type Effective struct {
	Name string
	Config
}

// All returns the configuration of each database.
func (c Config) All() []Effective {
	if !c.Several() {
		return []Effective{{DefaultDatabase, c}}
	}
	var all []Effective
	for _, e := range c.Databases {
		one := c
		one.Databases, one.Discover = nil, nil
		one.Database, one.Retention, one.Notify, one.Quota, one.Destinations = e.Database, e.Retention, e.Notify, e.Quota, e.Destinations
		one.Dormant, one.DormantPoll = e.Dormant, e.DormantPoll
		all = append(all, Effective{e.Name, one})
	}
	return all
}

// Several reports whether the configuration has a list of databases, be it of one, or one that is discovered.
func (c *Config) Several() bool {
	return len(c.Databases) > 0 || c.DatabasesDir != "" || len(c.Discover) > 0
}

// Notification returns how a destination's notifications are sent: as it says, or else as all are; nil if
// there is none.
func (c *Config) Notification(d *Destination) *Notify {
	if d.Notify != nil {
		return d.Notify
	}
	return c.Notify
}
