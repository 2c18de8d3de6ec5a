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

// Together is the worst of all, with the measures of each under its name; of very many, with those of the worst, and
// what all have together. elsewhere is how many databases other members of the fleet deliver from.
func Together(all []DatabaseCheck, elsewhere int) (sum Checks, line health.Checked) {
	sorted := slices.SortedStableFunc(slices.Values(all), func(a, b DatabaseCheck) int { return b.Result.Compare(a.Result) })
	var results []string
	for _, c := range sorted {
		results = append(results, c.Result.String())
	}
	measured := all
	if len(all) > many {
		measured = slices.DeleteFunc(slices.Clone(sorted[:many]), func(c DatabaseCheck) bool { return c.Result == health.ResultOK })
		line.Measures = totals(all)
	}
	for _, c := range measured {
		for _, m := range c.Measures {
			m.Destination = c.Name + "/" + m.Destination
			line.Measures = append(line.Measures, m)
		}
	}
	line.Result, line.Text = sorted[0].Result, fmt.Sprintf("%d databases: %s", len(all), count(results))
	if elsewhere > 0 {
		line.Text += fmt.Sprintf(", %d with other members of the fleet", elsewhere)
	}
	if line.Result != health.ResultOK {
		line.Text = sorted[0].Name + ": " + sorted[0].Text + "; " + line.Text
	}
	return Checks{line.Result, line.Text, all}, line
}

// totals are the measures of all databases together: the longest wait, and the sums.
func totals(all []DatabaseCheck) []health.Measure {
	of := map[string]*health.Measure{}
	var list []health.Measure
	for _, name := range []string{"oldest", "pending", "dead"} {
		of[name] = &health.Measure{Destination: "all", Name: name}
	}
	for _, c := range all {
		for _, m := range c.Measures {
			t := of[m.Name]
			if t.Unit = m.Unit; m.Name == "oldest" {
				t.Value = max(t.Value, m.Value)
			} else {
				t.Value += m.Value
			}
		}
	}
	for _, name := range []string{"oldest", "pending", "dead"} {
		list = append(list, *of[name])
	}
	return list
}
