package brokers

import (
	"strings"

	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/config/transport"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// NATS configures a NATS server with JetStream.
type NATS struct {
	URL             scalar.URL    `json:"url" jsonschema:"Server URL, or several separated by commas."`
	URLFile         string        `json:"url_file" jsonschema:"File that holds the URL, instead of url."`
	Stream          string        `json:"stream" jsonschema:"The only stream that may take the messages. Empty: whichever has the subject."`
	Subject         string        `json:"subject" jsonschema:"Template of the subject, with the fields {topic}, {key}, {event_type}, {aggregate_type} and {aggregate_id}."`
	Recall          int           `json:"recall" min:"0" max:"10000000" jsonschema:"How many of the stream's last messages are read on connecting, so that none of them is stored twice, however long ago it was. Needs stream. 0: only the stream's own duplicate window."`
	CreateStream    bool          `json:"create_stream" jsonschema:"Whether the stream is created when it is missing."`
	StreamSubjects  []string      `json:"stream_subjects" field:"CreateStream.Subjects" jsonschema:"Subjects of a created stream. Empty: the template with everything from its first field on replaced by >."`
	Replicas        int           `json:"replicas" field:"CreateStream.Replicas" min:"1" max:"5" jsonschema:"Replicas of a created stream."`
	CredentialsFile string        `json:"credentials_file" jsonschema:"File with a user's JWT and seed."`
	Token           scalar.Secret `json:"token" jsonschema:"Token to authenticate with."`
	TokenFile       string        `json:"token_file" jsonschema:"File that holds the token, instead of token."`
	User            string        `json:"user" jsonschema:"User to authenticate as."`
	Password        scalar.Secret `json:"password" jsonschema:"The user's password."`
	PasswordFile    string        `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	TLS             transport.TLS `json:"tls" jsonschema:"Transport security."`
}

// SetDefaults gives the defaults of the adapter.
func (n *NATS) SetDefaults() {
	fields.Adopt(n, nats.Defaults())
	n.URL, n.Replicas = scalar.NewURL("nats://127.0.0.1:4222"), 1
}

func (*NATS) shares() bool { return true }

func (n *NATS) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	var cfg nats.Config
	o.configure(&cfg, *n, n.TLS, &faults)
	faults.Add("CredentialsFile", findings.Readable(n.CredentialsFile))
	if n.CreateStream {
		cfg.CreateStream = &nats.StreamSettings{Subjects: n.StreamSubjects, Replicas: n.Replicas}
	}
	url := n.URL.Text()
	if n.TLS.Enabled {
		// No connection goes without.
		url = strings.ReplaceAll(url, "nats://", "tls://")
	}
	broker, err := nats.New(url, cfg)
	return withFaults(broker, err, &faults)
}

// Advise warns about settings that have no effect or show what should be hidden.
func (n *NATS) Advise(r *findings.Report, path string) {
	r.Advise(n.CreateStream || len(n.StreamSubjects) == 0, path+".stream_subjects", "has no effect, since create_stream is false")
	r.Advise(n.CreateStream || n.Replicas == fields.Default[NATS]().Replicas, path+".replicas",
		"has no effect, since create_stream is false")
}
