package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

// Entry is one of several databases, with what the top level has for a single one. What it doesn't say, the top level
// says.
type Entry struct {
	Name         string        `json:"name" jsonschema:"Name of the database in metrics, logs, commands and the API. Required, but in a file of its own."`
	Database     Database      `json:"database" jsonschema:"The PostgreSQL database that holds the outbox."`
	Retention    Retention     `json:"retention" jsonschema:"Removal of messages that every destination has had."`
	Dormant      time.Duration `json:"dormant" min:"0" jsonschema:"After this time without a message the relay has no connection to a database, and gives its leases back. 0: never."`
	DormantPoll  time.Duration `json:"dormant_poll" jsonschema:"Pause between two looks at a dormant database. A message that is committed meanwhile waits for as long at most."`
	Notify       *Notify       `json:"notify" jsonschema:"Who is told of messages that will not be tried again."`
	Quota        Quota         `json:"quota" jsonschema:"What may be sent of one database a second, to all of its destinations together."`
	Destinations []Destination `json:"destinations" jsonschema:"Where messages go. One with the name of a destination at the top level has its settings, but for those that it gives."`
}

// Database has the address of the outbox's database.
type Database struct {
	URL     scalar.URL `json:"url" jsonschema:"Connection URL or keyword/value string. Required."`
	URLFile string     `json:"url_file" jsonschema:"File that holds the URL, instead of url."`

	ViewerURL     scalar.URL `json:"viewer_url" jsonschema:"Connection of a database role that can't read payloads, such as migrate grants --viewer makes; viewers read by it. Empty: url."`
	ViewerURLFile string     `json:"viewer_url_file" jsonschema:"File that holds the URL, instead of viewer_url."`
}

// Fingerprint is the same for databases whose settings are, apart from secrets, which it says nothing of.
func (c *Config) Fingerprint() string {
	// Settings have no other types than those that have a form in JSON.
	text, _ := json.Marshal([]any{c.Database, c.Retention, c.Notify, c.Quota, c.Destinations, c.Dormant, c.DormantPoll})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}
