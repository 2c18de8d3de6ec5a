package registry

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/route"
	"github.com/twmb/franz-go/pkg/sr"
)

// Config configures a Framer. Only URLs is required.
type Config struct {
	// URLs of the registry's servers, tried in order, without credentials. Required.
	URLs []string

	// Username with Password, or Token, authenticate. None: no authentication.
	Username, Password string
	Token              string

	// TLS, if set, is used with https URLs. nil means the system's certificate authorities.
	TLS *tls.Config

	// Subject is a template of the subject in which a message's schema is looked up; see route.Template. Default
	// "{topic}-value". The topic is the routed one.
	Subject string

	// IDHeader is the header in which a message may name its schema's id. IndexHeader is the header that tells which
	// message of a Protobuf schema its payload is, as in "1,0" (default: the first one). Neither is published. Defaults
	// "schema-id" and "schema-index".
	IDHeader, IndexHeader string

	// Protobuf means that ids in headers are those of Protobuf schemas. For ids from the registry this is not needed.
	Protobuf bool

	// Schemas are looked up by their text, so the id is that of exactly this schema. Without Register they must be
	// registered already.
	Schemas []Schema

	// Register registers Schemas that aren't in their subject, under the registry's rules of compatibility.
	Register bool

	// Refresh is how long the id of a subject's latest version is kept. Default 5 min. Ids of Schemas are kept forever,
	// because they don't change.
	Refresh time.Duration

	// Timeout bounds a request to one server. Default 5 s.
	Timeout time.Duration
}

// Schema is a schema for one subject.
type Schema struct {
	Subject string
	Type    string // "avro", "json" or "protobuf"
	Text    string
}

// Defaults returns the Config that the zero value stands for.
func Defaults() Config {
	cfg, _, _, _ := Config{}.withDefaults() // without the required fields
	return cfg
}

func (cfg Config) withDefaults() (Config, route.Template, map[string]sr.Schema, error) {
	var faults settings.Faults
	faults.Need(len(cfg.URLs) > 0, "URLs", "none is given; name at least one, such as http://registry:8081")
	for i, text := range cfg.URLs {
		u, err := url.Parse(text)
		field, good := fmt.Sprintf("URLs[%d]", i), err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
		faults.Need(good, field, "it is not a URL such as http://registry:8081")
		faults.Need(!good || u.User == nil, field,
			"it has credentials in it, which would show in errors; give a user name and password instead")
	}
	faults.Need(cfg.Username == "" || cfg.Token == "", "", "username and token are given; keep one way to authenticate")
	faults.Need(cfg.Password == "" || cfg.Username != "", "Username", "not given, but a password is")
	settings.Default(&cfg.Subject, "{topic}-value")
	subject, err := route.ParseTemplate(cfg.Subject)
	faults.Add("Subject", err)
	settings.Default(&cfg.IDHeader, "schema-id")
	settings.Default(&cfg.IndexHeader, "schema-index")
	schemas := make(map[string]sr.Schema)
	for i, s := range cfg.Schemas {
		var kind sr.SchemaType
		field := fmt.Sprintf("Schemas[%d].", i)
		err := kind.UnmarshalText([]byte(strings.ToUpper(s.Type)))
		faults.Need(err == nil, field+"Type", "%q is not one of avro, json, protobuf", s.Type)
		_, twice := schemas[s.Subject]
		faults.Need(s.Subject != "" && !twice, field+"Subject",
			"%q: each schema needs a subject of its own, such as orders-value", s.Subject)
		faults.Need(strings.TrimSpace(s.Text) != "", field+"Text", "it is empty")
		schemas[s.Subject] = sr.Schema{Schema: s.Text, Type: kind}
	}
	faults.Need(!cfg.Register || len(schemas) > 0, "Schemas", "none is given, but they are to be registered")
	settings.Positive(&faults, "Refresh", &cfg.Refresh, 5*time.Minute)
	settings.Positive(&faults, "Timeout", &cfg.Timeout, 5*time.Second)
	return cfg, subject, schemas, faults.Err()
}
