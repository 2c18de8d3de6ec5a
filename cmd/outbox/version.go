package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/schema"
)

// release is set by the linker for released binaries: -ldflags "-X main.release=v1.2.3".
var release string

// build describes this program.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Schema   int    `json:"schema"`

	time *time.Time // of the revision, nil if it is not recorded
}

func thisBuild() build {
	b := build{Version: release, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Schema: schema.Latest()}
	info, ok := debug.ReadBuildInfo()
	if ok {
		if b.Version == "" && info.Main.Version != "(devel)" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value
			case "vcs.time":
				if at, err := time.Parse(time.RFC3339, s.Value); err == nil {
					b.time = &at
				}
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	if b.Version == "" {
		b.Version = "dev"
	}
	return b
}

func (a *app) versionCommand() *cobra.Command {
	var out output.Format
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of the program and of its schema",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			b := thisBuild()
			if out == output.AsJSON {
				return output.JSON(a.Stdout, b)
			}
			_, err := fmt.Fprintf(a.Stdout, "outbox %s (schema %d, %s, %s)\n", b.Version, b.Schema, b.Go, b.Platform)
			return err
		},
	}
	output.FormatFlag(cmd, &out, output.AsTable, output.AsJSON)
	return cmd
}
