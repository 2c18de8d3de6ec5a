package brokers

import (
	"errors"
	"time"

	"github.com/pgoutbox/outbox/broker/jsonl"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/relay"
)

// Stdout has no settings.
type Stdout struct{}

// File configures a file of JSON lines.
type File struct {
	Path string `json:"path" jsonschema:"The file; it is created if it is missing. Required."`
}

// Archive configures an archive of compressed JSON lines.
type Archive struct {
	Directory string        `json:"directory" jsonschema:"The directory; it has to exist. Any number of relays may write into it. Required."`
	Size      scalar.Size   `json:"size" min:"1" jsonschema:"How many bytes of lines a file gets before it is compressed."`
	Age       time.Duration `json:"age" jsonschema:"How long lines are added to a file that doesn't reach size before."`
	Keep      time.Duration `json:"keep" min:"0" jsonschema:"How long messages are kept. 0 removes nothing."`
}

// SetDefaults gives the defaults of the adapter.
func (a *Archive) SetDefaults() { fields.Adopt(a, jsonl.ArchiveDefaults()) }

func (a *Archive) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	faults.Add("Format", o.lines())
	cfg := jsonl.ArchiveConfig{Logger: o.Logger}
	fields.Assign(&cfg, *a)
	broker, err := jsonl.NewArchive(a.Directory, cfg)
	return withFaults(broker, err, &faults)
}

func (*Stdout) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	faults.Add("Format", o.lines())
	return withFaults(jsonl.New(o.Stdout), nil, &faults)
}

func (f *File) open(o Opening) (relay.Broker, error) {
	var faults settings.Faults
	faults.Add("Format", o.lines())
	faults.Need(f.Path != "", "Path", "not given; name the file")
	return withFaults(jsonl.NewFile(f.Path, jsonl.Config{Logger: o.Logger}), nil, &faults)
}

// lines is the fault of a format where there are lines.
func (o Opening) lines() error {
	if o.Format == nil {
		return nil
	}
	return errors.New("lines of stdout, file and archive have a format of their own; leave it out")
}
