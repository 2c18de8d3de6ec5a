package registry

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/route"
	"github.com/twmb/franz-go/pkg/sr"
)

// Config configures a Framer. Only URLs is required.
type Config struct {
	// URLs of the registry's servers, tried in order. Credentials don't stand in them. Required.
	URLs []string

	// Username with Password, or Token, authenticate. None: no authentication.
	Username, Password string
	Token              string

	// TLS, if set, is used with https URLs. nil means the system's certificate authorities.
	TLS *tls.Config

	// Subject is a template of the subject in which a message's schema is looked up; see route.Template.
	// Default "{topic}-value". The topic is the one that routing has chosen.
	Subject string

	// IDHeader is the header by which a message names its schema's id itself, IndexHeader the one that says
	// which message of a Protobuf schema its payload is, as in "1,0" (default: the first one). Neither is
	// published. Defaults "schema-id" and "schema-index".
	IDHeader, IndexHeader string

	// Protobuf says that ids in headers are those of Protobuf schemas. What the registry is asked for needs
	// no such hint.
	Protobuf bool

	// Schemas are looked up by their text, so that the id is that of exactly this schema. Without Register
	// they have to be registered already.
	Schemas []Schema

	// Register registers Schemas that aren't in their subject, under the registry's rules of compatibility.
	Register bool

	// Refresh is how long the id of the latest version of a subject is kept. Default 5 min. Ids of Schemas
	// are kept for ever: they don't change.
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

func (cfg Config) withDefaults() (Config, route.Template, map[string]sr.Schema, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(cfg.URLs) == 0 {
		fault("no URL: give at least one, such as http://registry:8081")
	}
	for i, text := range cfg.URLs {
		u, err := url.Parse(text)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
			fault("URL %d: it is not one such as http://registry:8081", i+1)
		case u.User != nil:
			fault("URL %d: it has credentials in it, which would show in errors; give a user name and password instead", i+1)
		}
	}
	if cfg.Username != "" && cfg.Token != "" {
		fault("choose one of user name and token")
	}
	if cfg.Password != "" && cfg.Username == "" {
		fault("a password needs a user name")
	}
	if cfg.Subject == "" {
		cfg.Subject = "{topic}-value"
	}
	subject, err := route.ParseTemplate(cfg.Subject)
	if err != nil {
		fault("subject: %w", err)
	}
	if cfg.IDHeader == "" {
		cfg.IDHeader = "schema-id"
	}
	if cfg.IndexHeader == "" {
		cfg.IndexHeader = "schema-index"
	}
	schemas := make(map[string]sr.Schema)
	for i, s := range cfg.Schemas {
		var kind sr.SchemaType
		if err := kind.UnmarshalText([]byte(strings.ToUpper(s.Type))); err != nil {
			fault("schema %d: the type %q is not one of avro, json, protobuf", i+1, s.Type)
		}
		if _, twice := schemas[s.Subject]; twice || s.Subject == "" || strings.TrimSpace(s.Text) == "" {
			fault("schema %d: it needs a text, and a subject of its own", i+1)
		}
		schemas[s.Subject] = sr.Schema{Schema: s.Text, Type: kind}
	}
	if cfg.Register && len(schemas) == 0 {
		fault("there is nothing to register: give schemas")
	}
	for _, d := range []struct {
		name     string
		value    *time.Duration
		standard time.Duration
	}{{"refresh", &cfg.Refresh, 5 * time.Minute}, {"timeout", &cfg.Timeout, 5 * time.Second}} {
		if *d.value < 0 {
			fault("%s can't be negative, it is %v", d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	return cfg, subject, schemas, errors.Join(faults...)
}
