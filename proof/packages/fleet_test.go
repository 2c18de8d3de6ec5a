package packages

import (
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
)

const threeDatabases = oneDestination + "databases: [{name: orders}, {name: billing, secret: billing, key: url}, {name: users}]\n"

// withDiscovery finds databases in a cluster, by a query, and in the Secret that is mounted.
const withDiscovery = `
config:
  destinations: [{name: orders, broker: {stdout: {}}}]
  discover:
    - {name: shop, cluster: {url_file: /run/secrets/clusters/shop}}
    - {name: tenants, query: {url: "postgres://relay:${PASSWORD}@db/tenants", sql: "SELECT name, url FROM tenants"}}
secrets: [clusters]
extraEnvFrom: [{secretRef: {name: login}}]
discoverSecret: tenants
`

var secretsOfTests = map[string]map[string]string{
	"outbox-database":  {"url": "postgres://relay@db/shop", "orders": "postgres://relay@db/orders", "users": "postgres://relay@db/users"},
	"billing":          {"url": "postgres://relay@db/billing"},
	"clusters":         {"shop": "postgres://relay@db/postgres"},
	"login":            {"PASSWORD": "hidden"},
	"tenants":          {"one": "postgres://relay@db/one", "two.yaml": "database: {url: postgres://relay@db/two}"},
	"home":             {"url": "postgres://relay@db/home"},
	"outbox-fleet":     {"url": "postgres://relay@db/home"},
	"outbox-databases": {"orders": "postgres://relay@db/orders", "billing": "postgres://relay@db/billing"},
}

// The relay takes what the chart gives it, with the environment that its pods have.
func TestARelayTakesTheConfigurationAndTheEnvironmentOfTheChart(t *testing.T) {
	t.Parallel()
	const home = "fleet: {enabled: true, home: {secret: home}}\n"
	// A pod of a StatefulSet has its number in its name, which this machine has not.
	number := "OUTBOX_FLEET_ORDINAL=1"
	for name, c := range map[string]struct {
		values string
		more   []string
	}{
		"one database":                  {values: oneDestination},
		"one database, shared":          {values: oneDestination + home},
		"three databases, two replicas": {values: threeDatabases + "replicas: 2\n"},
		"three databases, two members":  {values: threeDatabases + "replicas: 2\n" + home},
		"three databases, two numbers":  {values: threeDatabases + "replicas: 2\nfleet: {enabled: true}\n", more: []string{number}},
		"discovery":                     {values: withDiscovery},
		"discovery, three members":      {values: withDiscovery + "replicas: 3\n" + home},
		"discovery, three numbers, a list beside": {values: withDiscovery + "replicas: 3\nfleet: {enabled: true}\n" +
			"databases: [{name: users}]\n", more: []string{number}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := objects(t, rendered(t, c.values))
			workload := found["Deployment"]
			if workload == nil {
				workload = found["StatefulSet"]
			}
			place(t, found, workload, secretsOfTests).validates(c.more...)
		})
	}
}

// A fleet without a home has as many members as replicas, which need no order among them; one with a home is replaced
// without one missing.
func TestAFleetIsADeploymentOrAStatefulSet(t *testing.T) {
	t.Parallel()
	found := objects(t, rendered(t, threeDatabases+"replicas: 5\nfleet: {enabled: true}\n"))
	set := found["StatefulSet"]
	for want, at := range map[any][]any{
		"Parallel":           {"spec", "podManagementPolicy"},
		"outbox":             {"spec", "serviceName"},
		5:                    {"spec", "replicas"},
		"5":                  {"spec", "template", "spec", "containers", 0, "env", 0, "value"},
		"OUTBOX_FLEET_COUNT": {"spec", "template", "spec", "containers", 0, "env", 0, "name"},
	} {
		if got := plain(set.at(at...)); got != want {
			t.Errorf("%v is %v, want %v", at, got, want)
		}
	}
	found = objects(t, rendered(t, threeDatabases+"replicas: 5\nfleet: {enabled: true, home: {secret: home}}\n"))
	for want, at := range map[any][]any{
		1:                             {"spec", "strategy", "rollingUpdate", "maxSurge"},
		0:                             {"spec", "strategy", "rollingUpdate", "maxUnavailable"},
		"topology.kubernetes.io/zone": {"spec", "template", "spec", "topologySpreadConstraints", 1, "topologyKey"},
	} {
		if got := plain(found["Deployment"].at(at...)); got != want {
			t.Errorf("%v is %v, want %v", at, got, want)
		}
	}
	if found["StatefulSet"] != nil || found["PodDisruptionBudget"] == nil {
		t.Error("a fleet with a home is a Deployment, with a budget for disruptions")
	}
}

// overlay builds one of kustomize of the repository's base and components, with an outbox.yaml.
func overlay(t *testing.T, config string, components ...string) map[string]object {
	t.Helper()
	dir := t.TempDir()
	below := kustomizeBelow(t, dir)
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + below + "/base]\ncomponents:\n"
	for _, c := range components {
		text += "  - " + below + "/" + c + "\n"
	}
	text += "configMapGenerator: [{name: outbox, behavior: replace, files: [outbox.yaml], options: {disableNameSuffixHash: true}}]\n"
	file(t, []byte(text), dir, "kustomization.yaml")
	file(t, []byte(config), dir, "outbox.yaml")
	return objects(t, run(t, dir, nil, servers.Tool(t, "kustomize"), "build", "."))
}

func TestARelayTakesTheConfigurationAndTheEnvironmentOfKustomize(t *testing.T) {
	t.Parallel()
	const to = "destinations: [{name: out, broker: {stdout: {}}}]\n"
	const two = to + "databases:\n  - {name: orders, database: {url_file: /run/secrets/databases/orders}}\n" +
		"  - {name: billing, database: {url_file: /run/secrets/databases/billing}}\n"
	const watched = to + "discover: [{name: secret, folder: {path: /run/secrets/databases}}]\n"
	for name, c := range map[string]struct {
		config     string
		components []string
	}{
		"one database":           {to, []string{"prometheus"}},
		"one database, shared":   {to, []string{"fleet"}},
		"two databases":          {two, []string{"databases"}},
		"two databases, a fleet": {two, []string{"databases", "fleet"}},
		"in the other order":     {two, []string{"fleet", "databases"}},
		"discovery, a fleet":     {watched, []string{"databases", "fleet"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := overlay(t, c.config, c.components...)
			place(t, found, found["Deployment"], secretsOfTests).validates()
		})
	}
}
