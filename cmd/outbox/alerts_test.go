package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/internal/servers"
)

const rulesFile = "../../deploy/prometheus/outbox.rules.yaml"

type alertRule struct {
	Alert       string
	Expr        string
	Labels      map[string]string
	Annotations map[string]string
}

func alertRules(t *testing.T) (rules []alertRule) {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []alertRule } }
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert != "" {
				rules = append(rules, r)
			}
		}
	}
	return rules
}

// series is what Prometheus has scraped: the values of a metric with labels, in promtool's notation.
type series struct {
	Series string `yaml:"series"`
	Values string `yaml:"values"`
}

// firing has promtool fail the test unless exactly these alerts fire: name, or name/destination.
func firing(t *testing.T, input []series, at string, alerts ...string) {
	t.Helper()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	type sample struct {
		Labels string  `yaml:"labels"`
		Value  float64 `yaml:"value"`
	}
	want := []sample{}
	for _, alert := range alerts {
		name, destination, of := strings.Cut(alert, "/")
		labels := fmt.Sprintf("alertname=%q", name)
		if of {
			labels += fmt.Sprintf(",destination=%q", destination)
		}
		want = append(want, sample{"{" + labels + "}", 1})
	}
	text, err := yaml.Marshal(map[string]any{
		"rule_files":          []string{rules},
		"evaluation_interval": "1m",
		"tests": []any{map[string]any{
			"interval":     "1m",
			"input_series": input,
			"promql_expr_test": []any{map[string]any{
				"expr":        `max by (alertname, destination) (ALERTS{alertstate="firing"})`,
				"eval_time":   at,
				"exp_samples": want,
			}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "test.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(servers.Promtool(t), "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("%v: want %q\n%s", err, alerts, out)
	}
}

// wellFor is a relay without faults, for 30 hours.
func wellFor(but ...series) []series {
	all := []series{
		{`outbox_build_info{version="1"}`, "1x1800"},
		{`outbox_relays_live{database="default"}`, "1x1800"},
		{`outbox_backlog_read_timestamp_seconds{database="default"}`, "0+60x1800"},
		{`outbox_oldest_pending_timestamp_seconds{destination="kafka"}`, "0+60x1800"},
		{`outbox_published_total{destination="kafka"}`, "0+6000x1800"},
		{`outbox_slot_retained_bytes{destination="kafka"}`, "16777216x1800"},
		{`outbox_segments_kept{database="default"}`, "0x1800"},
		// What is well with another database hides nothing.
		{`outbox_backlog_read_timestamp_seconds{database="other"}`, "0+60x1800"},
		{`outbox_segments_kept{database="other"}`, "0x1800"},
		{`outbox_lease_held{database="",destination="kafka",shard_group="0"}`, "100x1800"},
		{`outbox_fleet_parts{choice="first",instance="a"}`, "51x1800"},
		{`outbox_fleet_parts{choice="first",instance="b"}`, "49x1800"},
		{`outbox_fleet_parts{choice="first",instance="spare"}`, "0x1800"},
		{`outbox_fleet_members`, "2x1800"},
		{`outbox_fleet_frozen`, "0x1800"},
		{`outbox_discovery_withheld_databases{source="shop"}`, "0x1800"},
		{`outbox_messages_unselected_total`, "0x1800"},
		{`outbox_notifications_total{destination="kafka",channel="webhook",result="dropped"}`, "0x1800"},
	}
	for _, state := range health.States() {
		value := "0x1800"
		if state == health.StateFlowing {
			value = "1x1800"
		}
		all = append(all, series{fmt.Sprintf(`outbox_destination_state{destination="kafka",state=%q}`, state), value})
	}
	for _, s := range but {
		i := slices.IndexFunc(all, func(a series) bool { return a.Series == s.Series })
		if s.Values == "" {
			all = slices.Delete(all, i, i+1)
			continue
		}
		all[i] = s
	}
	return all
}

func TestEachAlertFiresInItsFaultAndIsSilentOtherwise(t *testing.T) {
	t.Parallel()
	firing(t, wellFor(), "1h")
	gone := series{`outbox_backlog_read_timestamp_seconds{database="gone"}`, "0+60x60 stale"}
	firing(t, append(wellFor(), gone), "26h") // taken out of the configuration a day ago
	faults := map[string]series{
		"OutboxAbsent":                     {`outbox_build_info{version="1"}`, ""},
		"OutboxDatabaseAbsent":             {`outbox_backlog_read_timestamp_seconds{database="other"}`, "0+60x180 stale"},
		"OutboxUnread":                     {`outbox_backlog_read_timestamp_seconds{database="default"}`, "0x1800"},
		"OutboxSlotRetains/kafka":          {`outbox_slot_retained_bytes{destination="kafka"}`, "20e9x1800"},
		"OutboxSegmentsKept":               {`outbox_segments_kept{database="default"}`, "2x1800"},
		"OutboxFleetUnowned":               {`outbox_lease_held{database="",destination="kafka",shard_group="0"}`, "99x1800"},
		"OutboxFleetFrozen":                {`outbox_fleet_frozen`, "1x1800"},
		"OutboxFleetMemberGone":            {`outbox_fleet_members`, "2x210 1x1800"},
		"OutboxFleetUneven":                {`outbox_fleet_parts{choice="first",instance="b"}`, "1x1800"},
		"OutboxDiscoveryWithheld":          {`outbox_discovery_withheld_databases{source="shop"}`, "7x1800"},
		"OutboxUnselected":                 {`outbox_messages_unselected_total`, "0+1x1800"},
		"OutboxNotificationsDropped/kafka": {`outbox_notifications_total{destination="kafka",channel="webhook",result="dropped"}`, "0+1x1800"},
	}
	for _, state := range health.States() {
		if tone := state.Tone(); tone == health.Calm {
			continue
		}
		name := "Outbox"
		for word := range strings.SplitSeq(string(state), "_") {
			name += strings.ToUpper(word[:1]) + word[1:]
		}
		faults[name+"/kafka"] = series{fmt.Sprintf(`outbox_destination_state{destination="kafka",state=%q}`, state), "1x1800"}
	}
	for alert, fault := range faults {
		at := "4h"
		if alert == "OutboxPaused/kafka" {
			at = "26h"
		}
		firing(t, wellFor(fault), at, alert)
	}
	runbook, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	rules := alertRules(t)
	for _, r := range rules {
		tested := false
		for alert := range faults {
			name, _, _ := strings.Cut(alert, "/")
			tested = tested || name == r.Alert
		}
		if !tested {
			t.Errorf("no fault for %s", r.Alert)
		}
		if !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/runbook.md#"+strings.ToLower(r.Alert)) ||
			!strings.Contains(string(runbook), "\n## "+r.Alert+"\n") {
			t.Errorf("%s has no section in the runbook", r.Alert)
		}
	}
	if n := strings.Count(string(runbook), "\n## Outbox"); n != len(rules) {
		t.Errorf("%d sections in the runbook and %d alerts", n, len(rules))
	}
}

// Where databases have series together, and the worst alone have some by name, alerts are the same: for those that are
// named, and for the others without a name. A database that isn't named any more is no absent one.
func TestAlertsFireForDatabasesThatHaveSeriesTogether(t *testing.T) {
	t.Parallel()
	well := []series{
		{`outbox_build_info{version="1"}`, "1x1800"},
		{`outbox_backlog_read_timestamp_seconds{database=""}`, "0+60x1800"},
		{`outbox_backlog_read_timestamp_seconds{database="worst"}`, "0+60x60 stale"},
		{`outbox_segments_kept{database=""}`, "0x1800"},
		{`outbox_destination_state{database="",destination="kafka",state="stalled"}`, "0x1800"},
		{`outbox_destination_state{database="worst",destination="kafka",state="stalled"}`, "0x60 stale"},
		{`outbox_destination_state{database="second",destination="kafka",state="broken"}`, "0x60 stale"},
	}
	firing(t, well, "4h")
	for alert, fault := range map[string]series{
		"OutboxUnread":        {`outbox_backlog_read_timestamp_seconds{database=""}`, "0x1800"},
		"OutboxSegmentsKept":  {`outbox_segments_kept{database=""}`, "2x1800"},
		"OutboxStalled/kafka": {`outbox_destination_state{database="",destination="kafka",state="stalled"}`, "1x1800"},
		"OutboxBroken/kafka":  {`outbox_destination_state{database="second",destination="kafka",state="broken"}`, "1x1800"},
	} {
		all := slices.Clone(well)
		all[slices.IndexFunc(all, func(s series) bool { return s.Series == fault.Series })] = fault
		firing(t, all, "4h", alert)
	}
}

// scraped are the series of a scrape, as if it were the same for two hours.
func scraped(t *testing.T, text string) (all []series) {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for name, family := range families {
		if !strings.HasPrefix(name, "outbox_") || family.GetType().String() == "HISTOGRAM" {
			continue
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			all = append(all, series{name + "{" + strings.Join(labels, ",") + "}", strconv.FormatFloat(value, 'f', -1, 64) + "x120"})
		}
	}
	return all
}

// dashboard is what of Grafana's file asks Prometheus.
type dashboard struct {
	Templating struct {
		List []struct{ Name, Query string }
	}
	Panels []struct {
		Title   string
		Targets []struct{ Expr, LegendFormat string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	file, err := os.ReadFile("../../deploy/grafana/outbox.json")
	if err == nil {
		err = json.Unmarshal(file, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Of several databases with destinations of equal names, a person may see one, and each line has its label.
func TestEachQueryOfTheDashboardIsOfTheChosenDatabases(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	d := readDashboard(t)
	metric := regexp.MustCompile(`outbox_[a-z_]+`)
	known := func(query string) {
		t.Helper()
		for _, name := range metric.FindAllString(query, -1) {
			if !strings.Contains(string(text), "| `"+strings.TrimSuffix(name, "_bucket")+"` |") {
				t.Errorf("%s: docs/metrics.md has no %s", query, name)
			}
		}
		if metric.FindString(query) == "" {
			t.Errorf("%s asks for no metric of the outbox", query)
		}
	}
	var variables []string
	for _, v := range d.Templating.List[1:] { // behind the data source
		variables = append(variables, v.Name)
		known(v.Query)
	}
	if !slices.Equal(variables, []string{"database", "destination"}) {
		t.Errorf("the variables are %q", variables)
	}
	if query := d.Templating.List[2].Query; !strings.Contains(query, `{database=~"$database"}`) {
		t.Errorf("destinations are chosen by %s", query)
	}
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			known(target.Expr)
			if n := len(metric.FindAllString(target.Expr, -1)); strings.Count(target.Expr, `{database=~"$database"`) != n ||
				!strings.Contains(target.Expr, "by (database") {
				t.Errorf("%s merges databases: %s", panel.Title, target.Expr)
			}
			if !strings.Contains(target.LegendFormat, "{{database}}") {
				t.Errorf("%s: the legend doesn't name the database", panel.Title)
			}
		}
	}
	// What alerts and records merges none either.
	rules, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, by := range regexp.MustCompile(`(?:by|on) \([^)]*\)`).FindAllString(string(rules), -1) {
		if !strings.Contains(by, "database") && by != "on ()" {
			t.Errorf("a rule merges databases: %s", by)
		}
	}
}

// A broker that is away and one that refuses: the alerts fire by what the relay really serves, and each query of the
// dashboard has an answer of a real Prometheus that scrapes it.
func TestARelaysFaultsRaiseTheirAlertsAndFillTheDashboard(t *testing.T) {
	t.Parallel()
	d := setup(t)
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such thing", http.StatusUnprocessableEntity)
	}))
	defer refusing.Close()
	address := freeAddress(t)
	d.relay(strings.Replace(d.fileYAML(fmt.Sprintf(`  - name: nats
    broker: {nats: {url: 'nats://%s'}}
  - name: hook
    broker: {http: {url: %q, allow_networks: [127.0.0.1]}}
    delivery: {max_attempts: 1}
`, freeAddress(t), refusing.URL)), "''", address, 1))
	prometheus := servers.OwnPrometheus(t, servers.PrometheusConfig{Targets: []string{address}})
	d.publish("orders", 3)
	var text string
	until(t, "the faults are in the metrics", func() bool {
		_, text = get(t, "http://"+address+"/metrics")
		return strings.Contains(text, `outbox_destination_state{database="default",destination="nats",state="stalled"} 1`) &&
			strings.Contains(text, `outbox_destination_state{database="default",destination="hook",state="dead"} 1`) &&
			strings.Contains(text, `outbox_destination_state{database="default",destination="file",state="idle"} 1`)
	})
	firing(t, scraped(t, text), "20m", "OutboxDead/hook", "OutboxStalled/nats")

	n := 0
	for _, panel := range readDashboard(t).Panels {
		for _, target := range panel.Targets {
			query := strings.NewReplacer("$__rate_interval", "1m", "$database", ".*", "$destination", ".*").Replace(target.Expr)
			until(t, panel.Title+" has an answer: "+query, func() bool {
				code, body := get(t, "http://"+prometheus.Addr()+"/api/v1/query?query="+url.QueryEscape(query))
				if code == http.StatusBadRequest {
					t.Fatal(body)
				}
				return strings.Contains(body, `"value":`)
			})
			n++
		}
	}
	if n == 0 {
		t.Error("the dashboard asks nothing")
	}
}
