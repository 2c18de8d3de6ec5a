// Package report prints what commands have found about a whole: a database, all of them, a table, the consumers.
package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/internal/printed"
)

// DatabaseReport is the report of one of several databases.
type DatabaseReport struct {
	Name string `json:"name"`
	*health.Report
}

// Form is how reports are printed.
type Form struct {
	Out       output.Format
	Watch     bool // again and again: the screen is cleared, JSON is one line
	Colours   bool
	All       bool // every database as a block, however many there are
	Elsewhere int  // databases that other members of the fleet deliver from
}

// many is from how many databases on those that are well are counted, and not shown.
const many = 20

// attended is how many databases a table has that need somebody.
const attended = 50

// Status prints reports.
func Status(to output.Streams, f Form, reports []DatabaseReport) error {
	if f.Out == output.AsJSON {
		var document any = reports
		if len(reports) == 1 && f.Elsewhere == 0 {
			document = reports[0].Report
		}
		if f.Watch {
			return output.JSONL(to.Stdout, []any{document})
		}
		return output.JSON(to.Stdout, document)
	}
	// One write, so that a watched screen doesn't flicker.
	var b strings.Builder
	if f.Watch && output.IsTerminal(to.Stdout) {
		b.WriteString("\x1b[H\x1b[2J")
	}
	over := over(reports)
	if len(reports)+f.Elsewhere > 1 {
		fmt.Fprintln(&b, over.Sentence()+": "+counted(over, f.Elsewhere))
	}
	block := output.Streams{Stdout: &b, Stderr: &b}
	if len(reports) > many && !f.All {
		if err := attention(block, reports, over); err != nil {
			return err
		}
		reports = nil
	}
	for _, r := range reports {
		if over.Databases+f.Elsewhere > 1 {
			fmt.Fprintf(&b, "\n%s: ", r.Name)
		}
		v := verbs.Status()
		if err := block.Draw(v.Show(v.New(), r.Report), f.Colours); err != nil {
			return err
		}
	}
	_, err := io.WriteString(to.Stdout, b.String())
	return err
}

func over(reports []DatabaseReport) health.Several {
	named := make([]health.Named, len(reports))
	for i, r := range reports {
		named[i] = health.Named{Name: r.Name, Verdict: r.Verdict}
	}
	return health.Over(named)
}

func counted(over health.Several, elsewhere int) string {
	text := over.Counted()
	if elsewhere > 0 {
		text += ", " + printed.Number(elsewhere) + " with other members of the fleet"
	}
	return text
}

// attention lists the databases that need somebody.
func attention(to output.Streams, reports []DatabaseReport, over health.Several) error {
	if len(over.Need) == 0 {
		_, err := fmt.Fprintln(to.Stdout, "one of them as a whole: outbox status --database NAME; all: --all")
		return err
	}
	of := make(map[string]*health.Report, len(reports))
	for _, r := range reports {
		of[r.Name] = r.Report
	}
	fmt.Fprintln(to.Stdout)
	t := output.NewTable(to.Stdout, "DATABASE", "STATE", "PENDING", "OLDEST", "CAUSE", "NEXT")
	for _, n := range over.Need[:min(len(over.Need), attended)] {
		var pending admin.Count
		var waits time.Time
		r := of[n.Name]
		for _, d := range r.Destinations {
			pending = pending.Plus(d.Pending)
			if !d.Oldest.IsZero() && (waits.IsZero() || d.Oldest.Before(waits)) {
				waits = d.Oldest
			}
		}
		cause := n.Cause
		if n.Destination != "" {
			cause = n.Destination + ": " + cause
		}
		next := n.Remedy()
		if n.Next != "" {
			next = n.Next
		}
		t.Row(n.Name, n.State.Word(), pending, printed.Ago(r.At, waits), printed.Cut(cause, 80), next)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if more := len(over.Need) - attended; more > 0 {
		fmt.Fprintf(to.Stdout, "and %s more\n", printed.Number(more))
	}
	_, err := fmt.Fprintln(to.Stdout, "\none of them as a whole: outbox status --database NAME; all: --all")
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
