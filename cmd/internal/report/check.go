package report

import (
	"fmt"
	"slices"

	"github.com/pgoutbox/outbox/admin/health"
)

// DatabaseCheck is the check of one of several databases.
type DatabaseCheck struct {
	Name string `json:"name"`
	health.Checked
}

// Checks is the check of several databases, and what they are together.
type Checks struct {
	Result    health.Result   `json:"result"`
	Text      string          `json:"text"`
	Databases []DatabaseCheck `json:"databases"`
}

// Together is the worst of all, with the measures of each under its name.
func Together(all []DatabaseCheck) (sum Checks, line health.Checked) {
	sorted := slices.SortedStableFunc(slices.Values(all), func(a, b DatabaseCheck) int { return b.Result.Compare(a.Result) })
	var results []string
	for _, c := range sorted {
		results = append(results, c.Result.String())
	}
	for _, c := range all {
		for _, m := range c.Measures {
			m.Destination = c.Name + "/" + m.Destination
			line.Measures = append(line.Measures, m)
		}
	}
	line.Result, line.Text = sorted[0].Result, fmt.Sprintf("%d databases: %s", len(all), count(results))
	if line.Result != health.ResultOK {
		line.Text = sorted[0].Name + ": " + sorted[0].Text + "; " + line.Text
	}
	return Checks{line.Result, line.Text, all}, line
}
