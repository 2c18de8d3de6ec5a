package health

import (
	"fmt"
	"strings"
	"time"
)

// Limit has the numbers from which on a measure is a warning, and critical; zero: never.
type Limit struct{ Warning, Critical float64 }

// Limits are checked besides the verdict, for each destination.
type Limits struct {
	Oldest  Limit // seconds for which the oldest message waits
	Pending Limit // messages that are pending or held
	Dead    Limit // dead letters that are not acknowledged
}

// Measure is a number of a destination with its limit.
type Measure struct {
	Destination string  `json:"destination"`
	Name        string  `json:"name"` // "oldest", "pending" or "dead"
	Value       float64 `json:"value"`
	Unit        string  `json:"unit,omitempty"` // "s" for seconds
	Warning     float64 `json:"warning,omitempty"`
	Critical    float64 `json:"critical,omitempty"`
}

// Checked is the answer to a monitoring system: the verdict, and which limits are exceeded.
type Checked struct {
	Result   Result    `json:"result"`
	Text     string    `json:"text"`
	Measures []Measure `json:"measures"`

	// Report is what it was made of.
	Report *Report `json:"report"`
}

// Check judges the report, or one destination of it, if that is not "".
func (r *Report) Check(destination string, limits Limits) Checked {
	verdict := r.Verdict
	if destination != "" {
		verdict, _ = r.On([]string{destination})
	}
	c := Checked{Result: verdict.Result(), Measures: []Measure{}, Report: r}
	var exceeded []string
	for i := range r.Destinations {
		d := &r.Destinations[i]
		if destination != "" && d.Name != destination {
			continue
		}
		var oldest time.Duration
		if !d.Oldest.IsZero() {
			oldest = max(r.At.Sub(d.Oldest), 0)
		}
		for _, m := range []Measure{
			{d.Name, "oldest", oldest.Seconds(), "s", limits.Oldest.Warning, limits.Oldest.Critical},
			{d.Name, "pending", float64(d.Pending.N + d.Held.Messages.N), "", limits.Pending.Warning, limits.Pending.Critical},
			{d.Name, "dead", float64(d.Dead.New.N), "", limits.Dead.Warning, limits.Dead.Critical},
		} {
			c.Measures = append(c.Measures, m)
			if result, limit := m.result(); result != ResultOK {
				if result.Compare(c.Result) > 0 {
					c.Result = result
				}
				exceeded = append(exceeded, fmt.Sprintf("%s: %s %.6g%s, %s from %.6g%s", m.Destination, m.Name, m.Value,
					m.Unit, strings.ToLower(result.String()), limit, m.Unit))
			}
		}
	}
	c.Text = strings.Join(append(exceeded, verdict.String()), "; ")
	return c
}

func (m Measure) result() (Result, float64) {
	switch {
	case m.Critical > 0 && m.Value >= m.Critical:
		return ResultCritical, m.Critical
	case m.Warning > 0 && m.Value >= m.Warning:
		return ResultWarning, m.Warning
	}
	return ResultOK, 0
}

// plugin replaces what a line of a plugin can't have.
var plugin = strings.NewReplacer("|", "/", "\n", " ", "\r", " ")

// Plugin is the line that Nagios and its kin read: result, text, and the measures as performance data.
func (c Checked) Plugin() string {
	var b strings.Builder
	fmt.Fprintf(&b, "OUTBOX %s - %s", c.Result, plugin.Replace(c.Text))
	limit := func(v float64) string {
		if v == 0 {
			return ""
		}
		return fmt.Sprintf("%.6g", v)
	}
	for i, m := range c.Measures {
		separator := " "
		if i == 0 {
			separator = " | "
		}
		label := strings.ReplaceAll(strings.ReplaceAll(plugin.Replace(m.Destination+"_"+m.Name), "=", "_"), "'", "''")
		fmt.Fprintf(&b, "%s'%s'=%.6g%s;%s;%s;0", separator, label, m.Value, m.Unit, limit(m.Warning), limit(m.Critical))
	}
	return b.String()
}
