package packages

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/pgoutbox/outbox/internal/servers"
)

var update = flag.Bool("update", false, "write the files under deploy that are made from others")

const chart = top + "/deploy/helm/outbox"

// object is one of Kubernetes.
type object map[string]any

// at returns what is below keys, or nil.
func (o object) at(keys ...any) any {
	var at any = map[string]any(o)
	for _, key := range keys {
		switch key := key.(type) {
		case string:
			m, _ := at.(map[string]any)
			at = m[key]
		case int:
			l, _ := at.([]any)
			if key >= len(l) {
				return nil
			}
			at = l[key]
		}
	}
	return at
}

// rendered returns what Helm makes of the chart with these values.
func rendered(t *testing.T, values string, args ...string) string {
	t.Helper()
	at := file(t, []byte(values), t.TempDir(), "values.yaml")
	args = append([]string{"template", "outbox", chart, "--namespace", "shop", "--values", at}, args...)
	return run(t, "", nil, servers.Tool(t, "helm"), args...)
}

// objects reads them, by kind, and further ones of a kind by kind/name. All are understood.
func objects(t *testing.T, text string) map[string]object {
	t.Helper()
	found := map[string]object{}
	all := documents(t, text)
	for _, o := range all {
		kind, _ := o["kind"].(string)
		as := kind
		if found[as] != nil {
			as += "/" + fmt.Sprint(o.at("metadata", "name"))
		}
		if found[as] != nil {
			t.Errorf("there are two of %s", as)
		}
		found[as] = o
	}
	understood(t, all)
	return found
}

func documents(t *testing.T, text string) (all []object) {
	t.Helper()
	for documents := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o object
		err := documents.Decode(&o)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if o != nil {
			all = append(all, o)
		}
	}
	return all
}

// understood checks objects against the schemas of their kinds: Kubernetes' own, and those that the operators define.
func understood(t *testing.T, all []object) {
	t.Helper()
	var own bytes.Buffer
	for _, o := range all {
		kind, _ := o["kind"].(string)
		if api, _ := o["apiVersion"].(string); strings.Contains(api, ".coreos.com/") || strings.Contains(api, "keda.sh/") {
			defined(t, o, kind, api)
			continue
		}
		document, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		own.WriteString("---\n")
		own.Write(document)
	}
	for _, version := range []string{"1.27", "1.34"} {
		cmd, _ := servers.Kubernetes(t, "--strict", "-k", version, file(t, own.Bytes(), t.TempDir(), "objects.yaml"))
		if out, err := cmd.CombinedOutput(); err != nil || bytes.Contains(out, []byte("ERROR")) {
			t.Errorf("Kubernetes %s: %v\n%s", version, err, out)
		}
	}
}

// defined checks an object of a kind that an operator defines.
func defined(t *testing.T, o object, kind, api string) {
	t.Helper()
	group, version, _ := strings.Cut(api, "/")
	_, kinds := servers.Kubernetes(t)
	var definition object
	if err := yaml.Unmarshal(read(t, kinds, group+"_"+strings.ToLower(kind)+"s.yaml"), &definition); err != nil {
		t.Fatal(err)
	}
	versions, _ := definition.at("spec", "versions").([]any)
	i := slices.IndexFunc(versions, func(v any) bool { return v.(map[string]any)["name"] == version })
	schema, _ := definition.at("spec", "versions", i, "schema", "openAPIV3Schema").(map[string]any)
	schema["properties"].(map[string]any)["metadata"] = map[string]any{"type": "object"}
	schema = strict(schema).(map[string]any)
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("kind.json", schema); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("kind.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled.Validate(plain(map[string]any(o))); err != nil {
		t.Errorf("%s: %v", kind, err)
	}
}

// strict refuses properties that a schema doesn't name, as a server that validates fields does.
func strict(schema any) any {
	switch s := schema.(type) {
	case map[string]any:
		for key, below := range s {
			s[key] = strict(below)
		}
		_, open := s["x-kubernetes-preserve-unknown-fields"]
		if _, named := s["properties"].(map[string]any); named && s["type"] == "object" && !open && s["additionalProperties"] == nil {
			s["additionalProperties"] = false
		}
	case []any:
		for i, below := range s {
			s[i] = strict(below)
		}
	case uint64:
		return int(s)
	}
	return schema
}

// plain is strict's twin for values: numbers that the validator knows.
func plain(value any) any { return strict(value) }

// checkRelay checks what both ways of installing relays have in common.
func checkRelay(t *testing.T, found map[string]object, config string) {
	t.Helper()
	validate(t, file(t, []byte(config), t.TempDir(), "outbox.yaml"), "OUTBOX_DATABASE_URL=postgres://relay@db/shop")
	for kind, c := range map[string]struct {
		at   []any
		want any
	}{
		"PodDisruptionBudget": {[]any{"spec", "maxUnavailable"}, 1},
		"NetworkPolicy":       {[]any{"spec", "ingress", 0, "ports", 0, "port"}, "http"},
		"Service":             {[]any{"spec", "ports", 0, "port"}, 9187},
	} {
		if got := plain(found[kind].at(c.at...)); got != c.want {
			t.Errorf("%s: %v is %v, want %v", kind, c.at, got, c.want)
		}
	}
	pod := object(found["Deployment"].at("spec", "template", "spec").(map[string]any))
	for want, at := range map[any][]any{
		"/livez":  {"containers", 0, "livenessProbe", "httpGet", "path"},
		"/readyz": {"containers", 0, "readinessProbe", "httpGet", "path"},
		true:      {"containers", 0, "securityContext", "readOnlyRootFilesystem"},
		65532:     {"securityContext", "runAsUser"},
		60:        {"terminationGracePeriodSeconds"},
		"ALL":     {"containers", 0, "securityContext", "capabilities", "drop", 0},
		// The database's address is a file.
		"/run/secrets/database/url": {"containers", 0, "env", 0, "value"},
		"/run/secrets/database":     {"containers", 0, "volumeMounts", 1, "mountPath"},
		"/etc/outbox":               {"containers", 0, "volumeMounts", 0, "mountPath"},
	} {
		if got := plain(pod.at(at...)); got != want {
			t.Errorf("the pod's %v is %v, want %v", at, got, want)
		}
	}
	if env, _ := pod.at("containers", 0, "env").([]any); len(env) != 1 {
		t.Errorf("the environment is %v", env)
	}
}

const twoDestinations = `
config:
  destinations:
    - {name: orders, shard_groups: 7, broker: {kafka: {brokers: ["kafka:9092"], sasl: {username: relay, password_file: PASSWORD}}}}
    - {name: mail, broker: {nats: {url: "nats://nats:4222"}}}
`

func TestTheChartRendersWhatKubernetesUnderstands(t *testing.T) {
	t.Parallel()
	password := file(t, []byte("x"), t.TempDir(), "password")
	values := strings.Replace(twoDestinations, "PASSWORD", password, 1)
	found := objects(t, rendered(t, values))
	for _, kind := range []string{"ServiceMonitor", "PrometheusRule", "ScaledObject", "Job"} {
		if found[kind] != nil {
			t.Errorf("%s is there unasked", kind)
		}
	}
	config, _ := found["ConfigMap"].at("data", "outbox.yaml").(string)
	checkRelay(t, found, config)
	if n := plain(found["Deployment"].at("spec", "replicas")); n != 2 {
		t.Errorf("%v replicas", n)
	}

	values += "migrate: {enabled: true}\nprometheus: {enabled: true, labels: {release: prometheus}}\nkeda: {enabled: true}\n" +
		"secrets: [kafka]\n" +
		"image: {tag: v9, pullSecrets: [{name: registry}]}\npodAnnotations: {a: b}\npodLabels: {c: d}\nnodeSelector: {e: f}\n" +
		"tolerations: [{key: g, operator: Exists}]\npriorityClassName: high\naffinity: {nodeAffinity: {}}\n" +
		"networkPolicy: {from: [{namespaceSelector: {}}], egress: [{ports: [{port: 5432}]}]}\n"
	all := objects(t, rendered(t, values))
	checkRelay(t, all, config)
	if n := all["Deployment"].at("spec", "replicas"); n != nil {
		t.Errorf("KEDA's replicas are %v", n)
	}
	// The shard groups of both destinations.
	if n := plain(all["ScaledObject"].at("spec", "maxReplicaCount")); n != 8 {
		t.Errorf("at most %v relays", n)
	}
	query, _ := all["ScaledObject"].at("spec", "triggers", 0, "metadata", "query").(string)
	if query != `sum(max by (database, destination) (outbox_pending_messages{namespace="shop", service="outbox"}))` {
		t.Errorf("the query is %s", query)
	}
	if groups, _ := all["PrometheusRule"].at("spec", "groups").([]any); len(groups) < 2 {
		t.Errorf("the rules are %v", groups)
	}
	if args := all["Job"].at("spec", "template", "spec", "containers", 0, "args", 1); args != "up" {
		t.Errorf("the job says %v", args)
	}
	mount, _ := all["Deployment"].at("spec", "template", "spec", "containers", 0, "volumeMounts", 2, "mountPath").(string)
	if mount != "/run/secrets/kafka" {
		t.Errorf("the secret is at %s", mount)
	}

	secure := objects(t, rendered(t, values, "--set", "config.http.tls.cert_file=/run/secrets/tls/tls.crt"))
	for scheme, got := range map[string]any{
		"HTTPS": secure["Deployment"].at("spec", "template", "spec", "containers", 0, "livenessProbe", "httpGet", "scheme"),
		"https": secure["ServiceMonitor"].at("spec", "endpoints", 0, "scheme"),
	} {
		if got != scheme {
			t.Errorf("with TLS the scheme is %v, want %s", got, scheme)
		}
	}
	run(t, "", nil, servers.Tool(t, "helm"), "lint", "--strict", chart, "--values", file(t, []byte(values), t.TempDir(), "values.yaml"))
}

func TestTheChartSaysThatDestinationsAreMissing(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), servers.Tool(t, "helm"), "template", chart).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "config.destinations is empty") {
		t.Errorf("%v\n%s", err, out)
	}
}

// sources are the lines in which Helm names templates.
var sources = regexp.MustCompile(`(?m)^# Source: .*\n`)

func TestTheBaseOfKustomizeIsWhatTheChartRenders(t *testing.T) {
	t.Parallel()
	var config object
	if err := yaml.Unmarshal(read(t, top, "deploy/kustomize/base/outbox.yaml"), &config); err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(object{"config": config, "existingConfigMap": "outbox"})
	if err != nil {
		t.Fatal(err)
	}
	show := func(values string, templates ...string) string {
		args := []string{"--namespace", "default"}
		for _, template := range templates {
			args = append(args, "--show-only", "templates/"+template+".yaml")
		}
		return sources.ReplaceAllString(rendered(t, string(text)+values, args...), "")
	}
	for path, want := range map[string]string{
		"base/relay.yaml":            show("", "serviceaccount", "service", "deployment", "poddisruptionbudget", "networkpolicy"),
		"prometheus/prometheus.yaml": show("prometheus: {enabled: true}\n", "prometheus"),
		"keda/keda.yaml":             show("keda: {enabled: true}\n", "keda"),
	} {
		path = filepath.Join(top, "deploy/kustomize", path)
		want = "# Generated from deploy/helm by go test ./proof/packages -update.\n" + want
		if *update {
			file(t, []byte(want), path)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is not what the chart renders (%v): run go test ./proof/packages -run Kustomize -update", path, err)
		}
	}
}

func TestTheOverlayOfKustomizeIsWhatKubernetesUnderstands(t *testing.T) {
	t.Parallel()
	kustomize := servers.Tool(t, "kustomize")
	base := objects(t, run(t, top, nil, kustomize, "build", "deploy/kustomize/base"))
	config, _ := base["ConfigMap"].at("data", "outbox.yaml").(string)
	checkRelay(t, base, config)

	found := objects(t, run(t, top, nil, kustomize, "build", "deploy/kustomize/example"))
	config, _ = found["ConfigMap"].at("data", "outbox.yaml").(string)
	checkRelay(t, found, config)
	// A change of the configuration is another name, and so a rollout.
	name := found["ConfigMap"].at("metadata", "name")
	mounted := found["Deployment"].at("spec", "template", "spec", "volumes", 0, "configMap", "name")
	if mounted != name || name == "outbox" {
		t.Errorf("mounted is %v, and there is %v", mounted, name)
	}
	secret := found["Secret"].at("metadata", "name")
	if mounted := found["Deployment"].at("spec", "template", "spec", "volumes", 1, "secret", "secretName"); mounted != secret {
		t.Errorf("mounted is %v, and there is %v", mounted, secret)
	}
	if n := plain(found["ScaledObject"].at("spec", "maxReplicaCount")); n != 8 {
		t.Errorf("at most %v relays", n)
	}
}
