package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

// Examined is what the doctor found about one of several databases.
type Examined struct {
	Name string `json:"name"`
	*health.Examination
}

// Doctor prints what the doctor found.
func Doctor(to output.Streams, out output.Format, all []Examined) error {
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
		if err := writeExamination(to.Stdout, e.Examination); err != nil {
			return err
		}
	}
	return nil
}

func writeExamination(w io.Writer, e *health.Examination) error {
	if e.Server == "" {
		fmt.Fprintln(w, "the database could not be asked")
	} else {
		fmt.Fprintf(w, "database %s, PostgreSQL %s, schema %d\n", output.Clean(e.Database), e.Server, e.Schema)
	}
	for _, s := range e.Symptoms {
		fmt.Fprintf(w, "\n%s: %s: %s\n", strings.ToUpper(string(s.Weight)), output.Clean(s.About), output.Clean(s.Text))
		if do := (health.Finding{Advice: s.Advice, Next: s.Repair}).Remedy(); do != "" {
			fmt.Fprintf(w, "  repair: %s\n", output.Clean(do))
		}
	}
	_, err := fmt.Fprintf(w, "\nin order: %s\n", output.Clean(strings.Join(e.Well, ", ")))
	return err
}
