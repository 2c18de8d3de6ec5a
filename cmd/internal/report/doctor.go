package report

import (
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

// Examined is what the doctor found about one of several databases.
type Examined struct {
	Name string `json:"name"`
	*health.Examination
}

// Doctor prints what the doctor found.
func Doctor(to output.Streams, out output.Format, v verbs.Verb, all []Examined) error {
	if out == output.AsJSON && len(all) == 1 {
		return output.JSON(to.Stdout, all[0].Examination)
	}
	if out == output.AsJSON {
		return output.JSON(to.Stdout, all)
	}
	for i, e := range all {
		if len(all) > 1 {
			fmt.Fprintf(to.Stdout, "%s%s: ", strings.Repeat("\n", min(i, 1)), e.Name)
		}
		if err := to.Draw(v.Show(v.New(), e.Examination), false); err != nil {
			return err
		}
	}
	return nil
}
