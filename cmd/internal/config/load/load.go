// Package load reads the configuration of the relay daemon.
//
// There are four layers, each over the one before: defaults, a YAML file,
// OUTBOX_* environment variables, and overrides that stem from flags. [Config]
// reports every fault of all layers together, each with its place.
//
// A setting has one path, such as database.url or
// destinations[0].delivery.batch. Its environment variable is the path in
// capitals with underscores: OUTBOX_DATABASE_URL,
// OUTBOX_DESTINATIONS_0_DELIVERY_BATCH.
//
// Text in the file may refer to variables as ${NAME} or, with a default for a
// variable that is unset or empty, as ${NAME:-default} or ${NAME:default}.
// They are replaced after the file is parsed, so a value can't change its
// structure. $${ stands for a literal ${.
//
// Next to each secret stands a setting with the suffix _file, which names a
// file that holds it. A secret set in a higher layer replaces one of a lower
// layer, whichever of the two forms they have.
package load

import (
	"reflect"
	"strings"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/fields"
	"github.com/pgoutbox/outbox/cmd/internal/config/findings"
)

// Input names what is read.
type Input struct {
	// File is the path of the YAML file. Empty: none.
	File string
	// Environ holds NAME=value pairs, as os.Environ returns them. References in
	// the file are looked up there too.
	Environ []string
	// Overrides maps paths to values, such as "database.url" or
	// "destinations.0.delivery.batch". They stem from flags. A list of texts is
	// separated by commas or is a YAML list; a section is YAML, such as {}.
	Overrides map[string]string
	// DatabaseURL is the URL of the database over all layers, unless there are several.
	DatabaseURL string
	// Unopened leaves the brokers unopened, so that what only their adapters find isn't found: for commands that need
	// nothing but the database.
	Unopened bool
	// Hostname is what Name is derived from by default. Empty: os.Hostname.
	Hostname string
}

// Loaded is a valid configuration and where it comes from.
type Loaded struct {
	Config config.Config
	// Warnings are about what is allowed and probably not meant.
	Warnings []string

	origins  map[string]findings.Origin
	environ  map[string]string
	unopened bool
	file     string
}

// Config reads all layers and validates the result. The error is of type
// [findings.Faults] and names everything that is wrong at once.
func Config(in Input) (*Loaded, error) {
	l := &loader{
		Report:   findings.NewReport(),
		config:   fields.New(reflect.TypeFor[config.Config]()),
		environ:  make(map[string]string),
		unopened: in.Unopened,
	}
	for _, pair := range in.Environ {
		if name, value, found := strings.Cut(pair, "="); found {
			l.environ[name] = value
		}
	}
	l.file(in.File, l.config, "")
	l.environment()
	l.overrides(in.Overrides)
	c := l.config.Addr().Interface().(*config.Config)
	l.folder(c, in.File)
	if in.DatabaseURL != "" && !c.Several() {
		l.set(reflect.ValueOf(&c.Database.URL).Elem(), in.DatabaseURL, "database.url",
			findings.Origin{Layer: findings.FromFlag, Name: "DATABASE_URL"})
	}
	if l.unreadable {
		// What is missing can't be known.
		l.Faults.Sort()
		return nil, l.Faults
	}
	l.secretFiles(l.config, "")
	l.inheritance(c)
	if c.Name == "" {
		c.Name = config.DefaultName(in.Hostname)
	}
	l.validate(c)
	if len(l.Faults) > 0 {
		l.Faults.Sort()
		return nil, l.Faults
	}
	return &Loaded{Config: *c, Warnings: l.Warnings, origins: l.Origins, environ: l.environ, unopened: in.Unopened, file: in.File}, nil
}
