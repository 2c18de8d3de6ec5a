package packages

import (
	"encoding/base64"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pod is the first container of a workload as it would run: its files below a folder that stands for /, and its
// environment.
type pod struct {
	t    *testing.T
	root string
	env  map[string]string
}

// place makes the pod of a workload. secrets are the Secrets beside those that were found, by name. Without one that it
// names, or one of its keys, a pod doesn't start.
func place(t *testing.T, found map[string]object, workload object, secrets map[string]map[string]string) *pod {
	t.Helper()
	p := &pod{t: t, root: t.TempDir(), env: map[string]string{}}
	spec := object(workload.at("spec", "template", "spec").(map[string]any))
	configs := map[string]map[string]string{}
	secrets = maps.Clone(secrets)
	if secrets == nil {
		secrets = map[string]map[string]string{}
	}
	for _, o := range found {
		data, _ := o["data"].(map[string]any)
		texts := map[string]string{}
		for key, value := range data {
			texts[key] = fmt.Sprint(value)
		}
		switch name := fmt.Sprint(o.at("metadata", "name")); o["kind"] {
		case "ConfigMap":
			configs[name] = texts
		case "Secret":
			for key, text := range texts {
				plain, err := base64.StdEncoding.DecodeString(text)
				if err != nil {
					t.Fatal(err)
				}
				texts[key] = string(plain)
			}
			secrets[name] = texts
		}
	}
	volumes := map[string]object{}
	for _, v := range list(spec["volumes"]) {
		volumes[fmt.Sprint(v["name"])] = v
	}
	container := object(spec.at("containers", 0).(map[string]any))
	for _, m := range list(container["volumeMounts"]) {
		at, v := fmt.Sprint(m["mountPath"]), volumes[fmt.Sprint(m["name"])]
		switch {
		case v["secret"] != nil:
			p.mount(at, object{"items": v.at("secret", "items")}, secrets, v.at("secret", "secretName"))
		case v["configMap"] != nil:
			p.mount(at, object{"items": v.at("configMap", "items")}, configs, v.at("configMap", "name"))
		case v["projected"] != nil:
			for _, source := range list(v.at("projected", "sources")) {
				p.mount(at, object{"items": source.at("secret", "items")}, secrets, source.at("secret", "name"))
			}
		default:
			t.Errorf("the volume of %s is %v", at, v)
		}
	}
	for _, from := range list(container["envFrom"]) {
		for name, of := range map[string]map[string]map[string]string{"secretRef": secrets, "configMapRef": configs} {
			maps.Copy(p.env, of[fmt.Sprint(from.at(name, "name"))])
		}
	}
	for _, e := range list(container["env"]) {
		name := fmt.Sprint(e["name"])
		switch {
		case e["value"] != nil:
			p.env[name] = fmt.Sprint(e["value"])
		case e.at("valueFrom", "secretKeyRef") != nil:
			ref := object(e.at("valueFrom", "secretKeyRef").(map[string]any))
			p.env[name] = secrets[fmt.Sprint(ref["name"])][fmt.Sprint(ref["key"])]
		default:
			t.Errorf("the variable %s has %v", name, e)
		}
	}
	return p
}

// list are the elements of a list of sections.
func list(value any) (all []object) {
	elements, _ := value.([]any)
	for _, e := range elements {
		all = append(all, object(e.(map[string]any)))
	}
	return all
}

// mount writes the files of a Secret or a ConfigMap, or of those of its keys that are named.
func (p *pod) mount(at string, volume object, from map[string]map[string]string, name any) {
	p.t.Helper()
	data, exists := from[fmt.Sprint(name)]
	if !exists {
		p.t.Errorf("%s has the files of %v, which is not there; there are %v", at, name, slices.Sorted(maps.Keys(from)))
	}
	items := list(volume["items"])
	for key := range data {
		if volume["items"] == nil {
			items = append(items, object{"key": key, "path": key})
		}
	}
	for _, item := range items {
		key := fmt.Sprint(item["key"])
		if _, has := data[key]; !has {
			p.t.Errorf("%v has no key %s", name, key)
		}
		file(p.t, []byte(p.inside(data[key])), p.root, at, fmt.Sprint(item["path"]))
	}
}

// mounts are the folders in which a pod has what is mounted.
var mounts = strings.NewReplacer("/run/secrets/", "ROOT/run/secrets/", "/etc/outbox/", "ROOT/etc/outbox/")

// inside is a text in which the paths of a pod are those below its root.
func (p *pod) inside(text string) string {
	return strings.ReplaceAll(mounts.Replace(text), "ROOT", p.root)
}

// validates has the program check the configuration that the pod has, in the pod's environment.
func (p *pod) validates(more ...string) {
	p.t.Helper()
	env := more
	for name, value := range p.env {
		env = append(env, name+"="+p.inside(value))
	}
	validate(p.t, filepath.Join(p.root, "etc/outbox/outbox.yaml"), env...)
}
