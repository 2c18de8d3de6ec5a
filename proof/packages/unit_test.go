package packages

import (
	"regexp"
	"strings"
	"testing"
)

// unit is the service with drop-ins as systemd reads them: its credentials by name, in a folder, and its environment.
type unit struct {
	dir         string
	credentials map[string]string
	environment map[string]string
}

func installed(t *testing.T, dropIns ...string) *unit {
	t.Helper()
	u := &unit{dir: t.TempDir(), credentials: map[string]string{}}
	u.environment = map[string]string{"CREDENTIALS_DIRECTORY": u.dir}
	var unset []string // after all that is set
	for _, name := range append([]string{"outbox.service"}, dropIns...) {
		for line := range strings.Lines(string(read(t, top, "deploy/systemd", name))) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch key {
			case "Environment":
				variable, text, _ := strings.Cut(value, "=")
				u.environment[variable] = strings.ReplaceAll(text, "%d", u.dir)
			case "UnsetEnvironment":
				unset = append(unset, value)
			case "LoadCredential":
				if value == "" {
					clear(u.credentials)
					continue
				}
				id, from, _ := strings.Cut(value, ":")
				u.credentials[id] = from
			}
		}
	}
	for _, name := range unset {
		delete(u.environment, name)
	}
	for id := range u.credentials {
		file(t, []byte("postgres://relay@db/"+id), u.dir, id)
	}
	return u
}

func (u *unit) validates(t *testing.T, config string) {
	t.Helper()
	var env []string
	for name, value := range u.environment {
		env = append(env, name+"="+value)
	}
	validate(t, file(t, []byte("destinations: [{name: out, broker: {stdout: {}}}]\n"+config), t.TempDir(), "outbox.yaml"), env...)
}

// written is what a drop-in says that outbox.yaml has, as a line of its own.
func written(t *testing.T, dropIn, key string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^#   (` + key + `: \{.*\})$`).FindSubmatch(read(t, top, "deploy/systemd", dropIn))
	if found == nil {
		t.Fatalf("%s doesn't say what outbox.yaml has", dropIn)
	}
	return string(found[1])
}

// A drop-in of systemd takes away what the relay refuses beside a list, and gives each database, each source and the
// fleet its file. They go together, but for the two that say which databases there are.
func TestARelayTakesTheConfigurationAndTheEnvironmentOfTheUnit(t *testing.T) {
	t.Parallel()
	several := func(u *unit) string {
		config := "databases:\n"
		for id := range u.credentials {
			if id != "fleet-home" {
				database := strings.ReplaceAll(written(t, "databases.conf", "database"), "/orders", "/"+id)
				config += "  - {name: " + id + ", " + database + "}\n"
			}
		}
		return config
	}
	discovered := func(*unit) string {
		return "discover:\n  - {name: shop, " + written(t, "discover.conf", "cluster") + "}\n"
	}
	for _, c := range []struct {
		dropIns []string
		files   int
		config  func(*unit) string
	}{
		{nil, 1, func(*unit) string { return "" }},
		{[]string{"fleet.conf"}, 2, func(*unit) string { return "" }},
		{[]string{"databases.conf"}, 2, several},
		{[]string{"databases.conf", "fleet.conf"}, 3, several},
		{[]string{"discover.conf"}, 1, discovered},
		{[]string{"discover.conf", "fleet.conf"}, 2, discovered},
	} {
		u := installed(t, c.dropIns...)
		if len(u.credentials) != c.files {
			t.Errorf("with %v the credentials are %v", c.dropIns, u.credentials)
		}
		u.validates(t, c.config(u))
	}
}
