package load_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/pgoutbox/outbox/cmd/internal/config/internal/configtest"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
)

func TestTheCommittedSchemaIsUpToDate(t *testing.T) {
	t.Parallel()
	got, err := load.Schema()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, filepath.Join("..", "..", "..", "..", "docs", "config.schema.json"), string(got))
}

func TestTheSchemaAgreesWithLoadOnSingleValues(t *testing.T) {
	t.Parallel()
	encoded, err := load.Schema()
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(encoded, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile(examplePath)
	if err != nil {
		t.Fatal(err)
	}
	in := load.Input{Environ: []string{"N=7", "LEVEL=info", "D=1s", "S=1MiB", "T=true"}}
	for _, test := range []struct {
		text  string
		valid bool
	}{
		{string(example), true},
		{minimal, true},
		{minimal + "log:\nhttp: {listen: }\n", true},
		{minimal + "log: {level: \"${LEVEL}\"}\nretention: {enabled: \"${T}\", interval: \"${D}\"}\n", true},
		{configtest.Destination("broker: {stdout: }\ndelivery: {batch: \"${N}\", max_in_flight_bytes: \"${S}\"}"), true},
		{configtest.Destination("broker: {stdout: }\ndelivery: {max_in_flight_bytes: 2048}"), true},
		{configtest.Destination("broker: {stdout: }\nlease: 1m30s"), true},
		{minimal + "lgo: {}\n", false},
		{minimal + "log: {level: loud}\n", false},
		{minimal + "log: info\n", false},
		{minimal + "retention: {interval: 5}\n", false},
		{minimal + "retention: {interval: 5 minutes}\n", false},
		{configtest.Destination("broker: {stdout: {}, file: {path: x}}"), false},
		{configtest.Destination("broker: {}"), false},
		{configtest.Destination("broker: {stdout: {x: 1}}"), false},
		{configtest.Destination("broker: {stdout: }\nshard_groups: 65"), false},
		{configtest.Destination("broker: {stdout: }\ndelivery: {batch: 0}"), false},
		{configtest.Destination("broker: {stdout: }\ndelivery: {max_in_flight_bytes: 5 apples}"), false},
		{configtest.Destination("broker: {kafka: {brokers: a}}"), false},
		{"database: {url: postgres://db}\ndestinations: [{broker: {stdout: }}]\n", false},
	} {
		var instance any
		if err := yaml.Unmarshal([]byte(test.text), &instance); err != nil {
			t.Fatal(err)
		}
		// The validator knows the types that JSON has.
		b, err := json.Marshal(instance)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &instance); err != nil {
			t.Fatal(err)
		}
		bySchema := resolved.Validate(instance)
		if (bySchema == nil) != test.valid {
			t.Errorf("schema says %v, want valid %v:\n%s", bySchema, test.valid, test.text)
		}
		if _, byLoad := configtest.Try(t, test.text, in); (byLoad == "") != test.valid {
			t.Errorf("Load says %q, want valid %v:\n%s", byLoad, test.valid, test.text)
		}
	}
}
