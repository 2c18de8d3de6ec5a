package packages

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig/rigtest"
)

// refused returns what Helm says instead of rendering the chart.
func refused(t *testing.T, values string) string {
	t.Helper()
	at := file(t, []byte(values), t.TempDir(), "values.yaml")
	out, err := exec.CommandContext(t.Context(), servers.Tool(t, "helm"), "template", "outbox", chart, "--values", at).CombinedOutput()
	if err == nil {
		t.Errorf("Helm renders the chart with\n%s", values)
	}
	return string(out)
}

const (
	oneDestination = "config: {destinations: [{name: orders, broker: {stdout: {}}}]}\n"
	withUsers      = "config: {http: {api: true, users: [{name: anna}]}, destinations: [{name: orders, broker: {stdout: {}}}]}\n"
	withDatabases  = oneDestination + "databases: [{name: orders}]\n"
)

// variants has for each value of the chart another one, and the part of what is rendered that says so, or that is gone
// (!). The part is not there, or is, with beside: by default oneDestination.
var variants = map[string]struct{ values, part, beside string }{
	"replicas":          {values: oneDestination + "replicas: 3", part: "replicas: 3"},
	"image.repository":  {values: oneDestination + "image: {repository: r.example/o}", part: "image: r.example/o:v"},
	"image.tag":         {values: oneDestination + "image: {tag: v9}", part: "outbox:v9"},
	"image.pullPolicy":  {values: oneDestination + "image: {pullPolicy: Always}", part: "imagePullPolicy: Always"},
	"image.pullSecrets": {values: oneDestination + "image: {pullSecrets: [{name: registry}]}", part: "name: registry"},
	"database.secret":   {values: oneDestination + "database: {secret: s}", part: "secretName: s,"},
	"database.key":      {values: oneDestination + "database: {key: k}", part: "value: /run/secrets/database/k}"},
	"databases":         {values: withDatabases, part: "url_file: /run/secrets/databases/orders"},
	"discoverSecret":    {values: oneDestination + "discoverSecret: tenants", part: "path: /run/secrets/discovered"},
	"fleet.enabled":     {values: oneDestination + "fleet: {enabled: true}", part: "kind: StatefulSet"},
	"fleet.home.secret": {values: oneDestination + "fleet: {enabled: true, home: {secret: s}}", part: "secretName: s,"},
	"fleet.home.key": {values: oneDestination + "fleet: {enabled: true, home: {secret: s, key: k}}",
		part: "value: /run/secrets/fleet/k}"},
	"migrate.enabled":   {values: oneDestination + "migrate: {enabled: true}", part: "kind: Job"},
	"migrate.secret":    {values: oneDestination + "migrate: {enabled: true, secret: s}", part: "secretName: s,"},
	"migrate.grants":    {values: oneDestination + "migrate: {enabled: true, grants: {relay: r}}", part: "- --relay=r"},
	"config":            {values: oneDestination, part: "name: orders", beside: "existingConfigMap: mine"},
	"existingConfigMap": {values: "existingConfigMap: mine", part: "configMap: {name: mine}"},
	"secrets":           {values: oneDestination + "secrets: [kafka]", part: "mountPath: /run/secrets/kafka,"},
	"extraEnv":          {values: oneDestination + "extraEnv: [{name: A, value: b}]", part: "- name: A\n"},
	"extraEnvFrom":      {values: oneDestination + "extraEnvFrom: [{secretRef: {name: s}}]", part: "- secretRef:\n"},
	"extraVolumes":      {values: oneDestination + "extraVolumes: [{name: v, emptyDir: {}}]", part: "- emptyDir: {}\n"},
	"extraVolumeMounts": {values: oneDestination + "extraVolumeMounts: [{name: v, mountPath: /v}]",
		part: "- mountPath: /v\n"},
	"serviceAccount.create":      {values: oneDestination + "serviceAccount: {create: false}", part: "serviceAccountName: default"},
	"serviceAccount.name":        {values: oneDestination + "serviceAccount: {name: mine}", part: "serviceAccountName: mine"},
	"serviceAccount.annotations": {values: oneDestination + "serviceAccount: {annotations: {role: r}}", part: "role: r"},
	"terminationGracePeriodSeconds": {values: oneDestination + "terminationGracePeriodSeconds: 61",
		part: "terminationGracePeriodSeconds: 61"},
	"resources": {values: oneDestination + "resources: {limits: {memory: 1Gi}}", part: "memory: 1Gi"},
	"podDisruptionBudget.enabled": {values: oneDestination + "podDisruptionBudget: {enabled: false}",
		part: "!kind: PodDisruptionBudget"},
	"podDisruptionBudget.maxUnavailable": {values: oneDestination + "podDisruptionBudget: {maxUnavailable: 50%}",
		part: "maxUnavailable: 50%"},
	"networkPolicy.enabled": {values: oneDestination + "networkPolicy: {enabled: false}", part: "!kind: NetworkPolicy"},
	"networkPolicy.from":    {values: oneDestination + "networkPolicy: {from: [{podSelector: {}}]}", part: "- podSelector: {}"},
	"networkPolicy.egress":  {values: oneDestination + "networkPolicy: {egress: [{ports: [{port: 5432}]}]}", part: "- port: 5432"},
	"ingress.enabled":       {values: withUsers + "ingress: {enabled: true, hosts: [a.example]}", part: "kind: Ingress"},
	"ingress.className": {values: withUsers + "ingress: {enabled: true, hosts: [a.example], className: c}",
		part: "ingressClassName: c"},
	"ingress.annotations": {values: withUsers + "ingress: {enabled: true, hosts: [a.example], annotations: {a: b}}", part: "a: b"},
	"ingress.hosts":       {values: withUsers + "ingress: {enabled: true, hosts: [a.example, b.example]}", part: `host: "b.example"`},
	"ingress.tls": {values: withUsers + "ingress: {enabled: true, hosts: [a.example], tls: [{secretName: s}]}",
		part: "secretName: s\n"},
	"prometheus.enabled":  {values: oneDestination + "prometheus: {enabled: true}", part: "kind: ServiceMonitor"},
	"prometheus.interval": {values: oneDestination + "prometheus: {enabled: true, interval: 7s}", part: "interval: 7s"},
	"prometheus.rules": {values: oneDestination + "prometheus: {enabled: true, rules: false}", part: "!kind: PrometheusRule",
		beside: oneDestination + "prometheus: {enabled: true}"},
	"prometheus.labels":     {values: oneDestination + "prometheus: {enabled: true, labels: {release: p}}", part: "release: p"},
	"keda.enabled":          {values: oneDestination + "keda: {enabled: true}", part: "kind: ScaledObject"},
	"keda.prometheus":       {values: oneDestination + "keda: {enabled: true, prometheus: http://p}", part: "serverAddress: http://p\n"},
	"keda.pending":          {values: oneDestination + "keda: {enabled: true, pending: 7}", part: `threshold: "7"`},
	"keda.max":              {values: "existingConfigMap: mine\nkeda: {enabled: true, max: 9}", part: "maxReplicaCount: 9"},
	"podAnnotations":        {values: oneDestination + "podAnnotations: {sum: abc}", part: "sum: abc"},
	"deploymentAnnotations": {values: oneDestination + "deploymentAnnotations: {reload: all}", part: "reload: all"},
	"podLabels":             {values: oneDestination + "podLabels: {team: t}", part: "team: t"},
	"nodeSelector":          {values: oneDestination + "nodeSelector: {disk: d}", part: "disk: d"},
	"tolerations":           {values: oneDestination + "tolerations: [{key: k, operator: Exists}]", part: "operator: Exists"},
	"affinity":              {values: oneDestination + "affinity: {nodeAffinity: {}}", part: "nodeAffinity: {}"},
	"priorityClassName":     {values: oneDestination + "priorityClassName: high", part: "priorityClassName: high"},
}

// leaves are the paths of the values in a document. A list, an empty section and config are one value.
func leaves(prefix string, document map[string]any) (paths []string) {
	for key, value := range document {
		if below, section := value.(map[string]any); section && len(below) > 0 && key != "config" && key != "resources" {
			paths = append(paths, leaves(prefix+key+".", below)...)
			continue
		}
		paths = append(paths, prefix+key)
	}
	return paths
}

func TestEachValueOfTheChartIsRendered(t *testing.T) {
	t.Parallel()
	var values map[string]any
	if err := yaml.Unmarshal(read(t, chart, "values.yaml"), &values); err != nil {
		t.Fatal(err)
	}
	paths := leaves("", values)
	slices.Sort(paths)
	if tested := slices.Sorted(maps.Keys(variants)); !slices.Equal(paths, tested) {
		t.Errorf("the values are\n%q, tested are\n%q", paths, tested)
	}
	all := map[string]object{}
	usual := rendered(t, oneDestination)
	for path, v := range variants {
		got, beside := rendered(t, v.values), usual
		if v.beside != "" {
			beside = rendered(t, v.beside)
		}
		part, gone := strings.CutPrefix(v.part, "!")
		if strings.Contains(got, part) == gone {
			t.Errorf("%s: with %q, what is rendered should have %q:\n%s", path, v.values, v.part, got)
		}
		if strings.Contains(beside, part) != gone {
			t.Errorf("%s: %q is rendered anyhow", path, part)
		}
		for _, o := range documents(t, got) {
			all[fmt.Sprint(o)] = o
		}
	}
	understood(t, slices.Collect(maps.Values(all)))
}

// The schema of the chart's values has the configuration's.
func TestTheSchemaOfTheChartRefusesWhatTheChartDoesNotKnow(t *testing.T) {
	t.Parallel()
	config := map[string]any{}
	text := strings.ReplaceAll(string(read(t, top, "docs/config.schema.json")), `"#/properties/`, `"#/properties/config/properties/`)
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	delete(config, "$schema")
	var schema map[string]any
	if err := json.Unmarshal(read(t, chart, "values.schema.json"), &schema); err != nil {
		t.Fatal(err)
	}
	schema["properties"].(map[string]any)["config"] = config
	want, err := json.MarshalIndent(schema, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		file(t, want, chart, "values.schema.json")
	}
	if string(read(t, chart, "values.schema.json")) != string(want) {
		t.Error("values.schema.json is not up to date: run go test ./proof/packages -run Schema -update")
	}
	for wrong, said := range map[string]string{
		"replica: 3":                                    "replica",
		"replicas: three":                               "replicas",
		"image: {tags: v9}":                             "tags",
		"database: {secretName: s}":                     "secretName",
		"databases: [{secret: s}]":                      "name",
		"databases: [{name: Orders}]":                   "Orders",
		"databases: [{name: orders, url: 'postgres:'}]": "url",
		"migrate: {grants: {relays: r}}":                "relays",
		"serviceAccount: {annotation: {a: b}}":          "annotation",
		"extraEnv: {A: b}":                              "extraEnv",
		"ingress: {host: a.example}":                    "host",
		"keda: {maximum: 3}":                            "maximum",
		"podAnnotations: {a: 1}":                        "podAnnotations",
		"config: {destination: []}":                     "destination",
		"config: {http: {apis: true}}":                  "apis",
		"config: {destinations: [{name: orders, broker: {kafka: {broker: ['kafka:9092']}}}]}": "broker",
	} {
		if out := refused(t, wrong); !strings.Contains(out, said) || !strings.Contains(out, "schema") {
			t.Errorf("%s: Helm should name %q:\n%s", wrong, said, out)
		}
	}
}

func TestTheChartSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]string{
		"replicas: 1":                 "config.destinations is empty",
		"databases: [{name: orders}]": "config.destinations is empty",
		"config: {destinations: []}":  "config.destinations is empty",
		oneDestination + "ingress: {enabled: true, hosts: [a.example]}":  "it needs config.http.api: true",
		withUsers + "ingress: {enabled: true}":                           "ingress.hosts is empty",
		"config: {databases_dir: /databases}\nmigrate: {enabled: true}":  "migrate.enabled needs databases",
		"config: {discover: [{name: c, cluster: {}}]}":                   "config.destinations is empty",
		oneDestination + "fleet: {enabled: true}\nkeda: {enabled: true}": "keda.enabled needs fleet.home.secret",
		oneDestination + "discoverSecret: s\nkeda: {enabled: true}":      "keda.max is not given",
	} {
		if out := refused(t, values); !strings.Contains(out, want) {
			t.Errorf("%q: want %q:\n%s", values, want, out)
		}
	}
}

const severalDatabases = `
config:
  destinations:
    - {name: orders, shard_groups: 3, broker: {kafka: {brokers: ["kafka:9092"]}}}
  databases:
    - {name: billing, destinations: [{name: orders, topics: [invoices]}, {name: mail, shard_groups: 2, broker: {stdout: {}}}]}
    - {name: elsewhere, database: {url_file: /run/secrets/elsewhere/url}}
databases:
  - {name: orders}
  - {name: billing, secret: billing-database, key: url, owner: billing-owner, grants: {relay: billing_relay}}
secrets: [elsewhere]
migrate: {enabled: true, grants: {relay: outbox, viewer: grafana}}
keda: {enabled: true}
`

func TestTheChartRunsRelaysOfSeveralDatabases(t *testing.T) {
	t.Parallel()
	found := objects(t, rendered(t, severalDatabases))
	place(t, found, found["Deployment"], map[string]map[string]string{"outbox-database": {"orders": "postgres://relay@db/orders"},
		"billing-database": {"url": "postgres://relay@db/billing"}, "elsewhere": {"url": "postgres://relay@db/elsewhere"}}).validates()
	for want, at := range map[any][]any{
		"outbox-database":  {0, "secret", "name"},
		"orders":           {0, "secret", "items", 0, "key"},
		"billing-database": {1, "secret", "name"},
		"url":              {1, "secret", "items", 0, "key"},
		"billing":          {1, "secret", "items", 0, "path"},
	} {
		at = append([]any{"spec", "template", "spec", "volumes", 1, "projected", "sources"}, at...)
		if got := plain(found["Deployment"].at(at...)); got != want {
			t.Errorf("%v is %v, want %v", at, got, want)
		}
	}
	// orders: 3; billing: 3 as at the top, and 2; elsewhere: 3.
	if n := plain(found["ScaledObject"].at("spec", "maxReplicaCount")); n != 11 {
		t.Errorf("at most %v relays", n)
	}
	for name, want := range map[string][2]string{
		"outbox-migrate-orders":  {"outbox-owner", "[migrate grants --apply --relay=outbox --viewer=grafana]"},
		"outbox-migrate-billing": {"billing-owner", "[migrate grants --apply --relay=billing_relay]"},
	} {
		job := found["Job"]
		if job.at("metadata", "name") != name {
			job = found["Job/"+name]
		}
		pod := object(job.at("spec", "template", "spec").(map[string]any))
		if secret := pod.at("volumes", 0, "secret", "secretName"); secret != want[0] {
			t.Errorf("%s: the owner's secret is %v", name, secret)
		}
		if first := fmt.Sprint(pod.at("initContainers", 0, "args")); first != "[migrate up]" {
			t.Errorf("%s first runs %s", name, first)
		}
		if last := fmt.Sprint(pod.at("containers", 0, "args")); last != want[1] {
			t.Errorf("%s then runs %s, want %s", name, last, want[1])
		}
	}
	// The program knows the flags.
	run(t, t.TempDir(), nil, rigtest.Binary(t), "migrate", "grants", "--relay=outbox", "--viewer=grafana", "--writer=w", "--consumer=c")
}

// kustomizeBelow is the path to the repository's kustomizations from a folder.
func kustomizeBelow(t *testing.T, dir string) string {
	t.Helper()
	deploy, err := filepath.Abs(filepath.Join(top, "deploy/kustomize"))
	if err != nil {
		t.Fatal(err)
	}
	below, err := filepath.Rel(dir, deploy)
	if err != nil {
		t.Fatal(err)
	}
	return below
}

// An overlay as docs/install.md has it.
func TestTheBaseOfKustomizeRunsRelaysOfSeveralDatabases(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	below := kustomizeBelow(t, dir)
	overlay := regexp.MustCompile("(?s)```yaml [^\n]*overlay[^\n]*\n(.*?)```").FindSubmatch(read(t, top, "docs/install.md"))
	if overlay == nil {
		t.Fatal("docs/install.md has no overlay")
	}
	file(t, []byte(strings.ReplaceAll(string(overlay[1]), "../deploy/kustomize", below)), dir, "kustomization.yaml")
	file(t, []byte(`http: {listen: "0.0.0.0:9187", api: false}
destinations: [{name: out, broker: {stdout: {}}}]
databases:
  - name: orders
    database:
      url_file: /run/secrets/databases/orders
  - name: billing
    database:
      url_file: /run/secrets/databases/billing
`), dir, "outbox.yaml")
	found := objects(t, run(t, dir, nil, servers.Tool(t, "kustomize"), "build", "."))
	place(t, found, found["Deployment"], nil).validates()
}
