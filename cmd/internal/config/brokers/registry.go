package brokers

import (
	"fmt"
	"os"
	"time"

	"github.com/pgoutbox/outbox/broker/registry"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/cmd/internal/config/transport"
	"github.com/pgoutbox/outbox/internal/settings"
)

// SchemaRegistry frames payloads for a schema registry's deserializers.
type SchemaRegistry struct {
	URLs         []string         `json:"urls" jsonschema:"Addresses, tried in order, such as http://registry:8081. Required."`
	Username     string           `json:"username" jsonschema:"User name. Empty: none."`
	Password     scalar.Secret    `json:"password" jsonschema:"Password."`
	PasswordFile string           `json:"password_file" jsonschema:"File that holds the password, instead of password."`
	Token        scalar.Secret    `json:"token" jsonschema:"Bearer token."`
	TokenFile    string           `json:"token_file" jsonschema:"File that holds the token, instead of token."`
	TLS          transport.TLS    `json:"tls" jsonschema:"Transport security of https addresses."`
	Subject      string           `json:"subject" jsonschema:"Template of the subject in which a schema is looked up."`
	IDHeader     string           `json:"id_header" jsonschema:"Header by which a message names its schema's id itself."`
	IndexHeader  string           `json:"index_header" jsonschema:"Header that says which message of a Protobuf schema the payload is, such as 1,0."`
	Protobuf     bool             `json:"protobuf" jsonschema:"Ids in headers are those of Protobuf schemas."`
	Schemas      []RegistrySchema `json:"schemas" jsonschema:"Schemas by which ids are looked up, instead of the latest version of the subject."`
	Register     bool             `json:"register" jsonschema:"Register these schemas if they are not."`
	Refresh      time.Duration    `json:"refresh" jsonschema:"How long the id of the latest version is kept."`
	Timeout      time.Duration    `json:"timeout" jsonschema:"Bound of a request."`
}

// RegistrySchema is a schema of one subject.
type RegistrySchema struct {
	Subject string `json:"subject" jsonschema:"The subject. Required."`
	Type    string `json:"type" enum:"avro,json,protobuf" jsonschema:"Type of the schema."`
	File    string `json:"file" field:"Text" jsonschema:"File that holds the schema. Required."`
}

// SetDefaults gives the defaults of package registry.
func (r *SchemaRegistry) SetDefaults() { fields.Adopt(r, registry.Defaults()) }

// SetDefaults makes it a schema of Avro.
func (r *RegistrySchema) SetDefaults() { r.Type = "avro" }

// Open makes what frames payloads, or reports all faults together.
func (r *SchemaRegistry) Open() (*registry.Framer, error) {
	var faults settings.Faults
	cfg := registry.Config{TLS: r.TLS.Config(&faults)}
	fields.Assign(&cfg, *r)
	for i, s := range r.Schemas {
		text, field := []byte(nil), fmt.Sprintf("Schemas[%d].Text", i)
		if s.File == "" {
			faults.Need(false, field, "not given; name the file that holds the schema")
		} else {
			var err error
			text, err = os.ReadFile(s.File)
			faults.Add(field, findings.Unreadable(s.File, err))
			if err != nil {
				text = []byte(s.File) // so that it isn't called empty too
			}
		}
		cfg.Schemas[i].Text = string(text)
	}
	framer, err := registry.New(cfg)
	faults.Add("", err)
	return framer, faults.Err()
}
