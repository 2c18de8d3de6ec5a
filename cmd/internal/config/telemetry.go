package config

import (
	"net/url"

	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

// Telemetry configures where traces are sent. See docs/telemetry.md.
type Telemetry struct {
	Endpoint          string        `json:"endpoint" jsonschema:"Collector of traces, by OTLP over HTTP, such as http://localhost:4318. Empty: what OTEL_EXPORTER_OTLP_ENDPOINT says; without either no traces are sent."`
	Authorization     scalar.Secret `json:"authorization" jsonschema:"Value of the header Authorization, such as Bearer and a token. Empty: none; OTEL_EXPORTER_OTLP_HEADERS has others."`
	AuthorizationFile string        `json:"authorization_file" jsonschema:"File that holds the value, instead of authorization."`
}

func (t Telemetry) check(r *findings.Report) {
	if t.Endpoint == "" {
		return
	}
	u, err := url.Parse(t.Endpoint)
	r.Check(err == nil && u.Hostname() != "" && (u.Scheme == "http" || u.Scheme == "https") && u.RawQuery == "" && u.User == nil,
		"telemetry.endpoint", "not a URL such as http://localhost:4318")
}
