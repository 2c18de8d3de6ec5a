// Package project looks at the project in a folder, and proposes the files with which it gets an outbox.
package project

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/schema"
)

// Found is what a project has, and what it gets.
type Found struct {
	Module   string `json:"module,omitempty"`  // of its go.mod
	Compose  string `json:"compose,omitempty"` // its compose file
	Database string `json:"database,omitempty"`
	Broker   string `json:"broker,omitempty"` // the service of the compose file
	Tool     string `json:"tool,omitempty"`   // that applies its migrations

	Files []File `json:"files"`
	Code  string `json:"code,omitempty"` // that writes an event, in Go
}

// File is one to be written.
type File struct {
	Path string `json:"path"` // in the project
	Text string `json:"text,omitempty"`
}

var moduleLine = regexp.MustCompile(`(?m)^module[ \t]+"?([^"\s]+)"?`)

// Look looks at the folder. It writes nothing. now gives the number of a migration where those are times.
func Look(dir string, now time.Time) (Found, error) {
	var f Found
	if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil {
		if m := moduleLine.FindSubmatch(text); m != nil {
			f.Module, f.Code = string(m[1]), code
		}
	}
	name, services, err := compose(dir)
	if err != nil {
		return f, err
	}
	f.Compose = name
	broker := "stdout: {}  # prints the messages; see docs/quickstart for your broker"
	for _, b := range slices.Backward(sections) {
		for _, name := range slices.Backward(slices.Sorted(maps.Keys(services))) {
			if s := services[name]; s.is(b.programs...) {
				f.Broker, broker = name, b.section(s)
			}
		}
	}
	url := "postgres://postgres@localhost:5432/postgres"
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(services))) {
		if s := services[name]; s.is("postgres", "postgis", "timescaledb", "timescaledb-ha", "pgvector", "postgresql") {
			f.Database, url = name, s.database()
		}
	}
	migration, tool, err := migration(dir, now)
	if err != nil {
		return f, err
	}
	f.Tool = tool
	f.Files = append(migration, File{"outbox.yaml", fmt.Sprintf(configuration, url, broker)})
	return f, nil
}

const configuration = `# outbox relay delivers by it; outbox config validate --connect tries it.
# docs/outbox.example.yaml has all that it may say.
database:
  url: "${DATABASE_URL:-%s}"
destinations:
  - name: events
    broker:
      %s
`

const code = `var writer outbox.Writer // github.com/pgoutbox/outbox

err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
	// ... what the transaction changes, and then the event:
	_, err := writer.Write(ctx, tx, outbox.Message{
		Topic: "orders", Key: id, EventType: "order.placed", Payload: body,
	})
	return err
})
`

// Folders that tools for migrations use.
var folders = []string{"db/migrations", "migrations", "sql/migrations", "database/migrations", "internal/db/migrations"}

var numbered = regexp.MustCompile(`^([0-9]+)_.*\.sql$`)

// migration is the schema in the form of the tool whose files are there. Without one it is a plain file.
func migration(dir string, now time.Time) (files []File, tool string, err error) {
	text, err := schema.SQL(0, schema.Latest())
	if err != nil {
		return nil, "", err
	}
	for _, folder := range folders {
		entries, err := os.ReadDir(filepath.Join(dir, folder))
		if err != nil {
			continue
		}
		last := ""
		for _, e := range entries { // by name
			m := numbered.FindStringSubmatch(e.Name())
			if m == nil || strings.HasSuffix(e.Name(), "_outbox.sql") || strings.HasSuffix(e.Name(), "_outbox.up.sql") {
				continue
			}
			last = m[1]
			content, err := os.ReadFile(filepath.Join(dir, folder, e.Name()))
			switch {
			case err != nil:
				return nil, "", err
			case strings.Contains(string(content), "-- +goose Up"):
				tool = "goose"
			case strings.Contains(string(content), "-- migrate:up"):
				tool = "dbmate"
			case strings.HasSuffix(e.Name(), ".up.sql"):
				tool = "golang-migrate"
			}
		}
		if tool == "" {
			continue
		}
		name := filepath.ToSlash(filepath.Join(folder, after(last, now)+"_outbox"))
		const back = "DROP SCHEMA outbox CASCADE;\n"
		switch tool {
		case "goose":
			return []File{{name + ".sql", "-- +goose NO TRANSACTION\n-- +goose Up\n-- +goose StatementBegin\n" + text +
				"-- +goose StatementEnd\n\n-- +goose Down\n" + back}}, tool, nil
		case "dbmate":
			return []File{{name + ".sql", "-- migrate:up transaction:false\n" + text + "\n-- migrate:down\n" + back}}, tool, nil
		}
		return []File{{name + ".up.sql", text}, {name + ".down.sql", back}}, tool, nil
	}
	return []File{{"outbox.sql", text}}, "", nil
}

// after is the number behind last, of as many digits: the next one, or the time where last is one.
func after(last string, now time.Time) string {
	if len(last) == len("20060102150405") {
		return now.UTC().Format("20060102150405")
	}
	n, err := strconv.ParseUint(last, 10, 63)
	if err != nil {
		return now.UTC().Format("20060102150405")
	}
	return fmt.Sprintf("%0*d", len(last), n+1)
}
