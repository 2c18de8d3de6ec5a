// Package report prints what commands have found about a whole: a database, all of them, a table, the consumers.
package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

// DatabaseReport is the report of one of several databases.
type DatabaseReport struct {
	Name string `json:"name"`
	*health.Report
}

// Status prints reports. With watch it is called again and again: the screen is cleared, JSON is one line.
func Status(to output.Streams, out output.Format, watch, colours bool, reports []DatabaseReport) error {
	if out == output.AsJSON {
		var document any = reports
		if len(reports) == 1 {
			document = reports[0].Report
		}
		if watch {
			return output.JSONL(to.Stdout, []any{document})
		}
		return output.JSON(to.Stdout, document)
	}
	// One write, so that a watched screen doesn't flicker.
	var b strings.Builder
	if watch && output.IsTerminal(to.Stdout) {
		b.WriteString("\x1b[H\x1b[2J")
	}
	if len(reports) > 1 {
		var states []string
		sorted := WorstFirst(reports)
		for _, r := range sorted {
			states = append(states, r.Verdict.State.Word())
		}
		fmt.Fprintf(&b, "%d databases: %s", len(reports), count(states))
		if !sorted[0].Verdict.State.OK() {
			fmt.Fprintf(&b, "; the worst is %s", sorted[0].Name)
		}
		fmt.Fprintln(&b)
	}
	for _, r := range reports {
		if len(reports) > 1 {
			fmt.Fprintf(&b, "\n%s: ", r.Name)
		}
		v := verbs.Status()
		if err := (output.Streams{Stdout: &b, Stderr: &b}).Draw(v.Show(v.New(), r.Report), colours); err != nil {
			return err
		}
	}
	_, err := io.WriteString(to.Stdout, b.String())
	return err
}

// WorstFirst orders reports by their verdicts.
func WorstFirst(reports []DatabaseReport) []DatabaseReport {
	return slices.SortedStableFunc(slices.Values(reports), func(a, b DatabaseReport) int {
		return health.Compare(b.Verdict.State, a.Verdict.State)
	})
}

// count returns how many there are of each word, in their order.
func count(words []string) string {
	var parts []string
	for len(words) > 0 {
		n := len(words)
		word := words[0]
		words = slices.DeleteFunc(words, func(w string) bool { return w == word })
		parts = append(parts, fmt.Sprintf("%d %s", n-len(words), word))
	}
	return strings.Join(parts, ", ")
}
