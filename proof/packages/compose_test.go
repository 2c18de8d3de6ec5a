package packages

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// composed reads a compose file with others over it.
func composed(t *testing.T, over ...string) *types.Project {
	t.Helper()
	files := []string{top + "/deploy/compose/compose.yaml"}
	for _, name := range over {
		files = append(files, top+"/deploy/compose/"+name)
	}
	options, err := cli.NewProjectOptions(files, cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestTheComposeFileIsUnderstoodAndItsRelayHasNoRights(t *testing.T) {
	t.Parallel()
	project := composed(t)
	for _, name := range []string{"relay", "migrate"} {
		s := project.Services[name]
		if !s.ReadOnly || len(s.CapDrop) != 1 || s.CapDrop[0] != "ALL" || len(s.SecurityOpt) != 1 || s.User != "" {
			t.Errorf("%s has more rights than it needs", name)
		}
		if s.Build.Context+"/"+s.Build.Dockerfile != filepath.Join(project.WorkingDir, "../..")+"/deploy/Dockerfile" {
			t.Errorf("%s is built from %s in %s", name, s.Build.Dockerfile, s.Build.Context)
		}
	}
	for name, s := range project.Services {
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("others can reach port %s of %s", p.Published, name)
			}
		}
	}
	relay := project.Services["relay"]
	validate(t, relay.Volumes[0].Source, "OUTBOX_DATABASE_URL="+*relay.Environment["OUTBOX_DATABASE_URL"])
}

func TestAFleetIsComposed(t *testing.T) {
	t.Parallel()
	project := composed(t, "fleet.yaml")
	relay := project.Services["relay"]
	if relay.Deploy == nil || *relay.Deploy.Replicas != 3 || len(relay.Ports) != 1 || relay.Ports[0].HostIP != "127.0.0.1" ||
		relay.Ports[0].Published != "9187-9189" {
		t.Errorf("the relays are %+v, their ports %+v", relay.Deploy, relay.Ports)
	}
	var env []string
	for name, value := range relay.Environment {
		env = append(env, name+"="+*value)
	}
	if len(env) != 1 || len(relay.Volumes) != 1 {
		t.Errorf("the environment is %q, the files are %v", env, relay.Volumes)
	}
	validate(t, relay.Volumes[0].Source, env...)
	made := project.Configs[project.Services["postgres"].Configs[0].Source].Content
	for _, name := range []string{"orders", "billing"} {
		m, found := project.Services["migrate-"+name]
		if !found || !strings.HasSuffix(*m.Environment["OUTBOX_DATABASE_URL"], "/"+name) ||
			relay.DependsOn["migrate-"+name].Condition == "" || !strings.Contains(made, "CREATE DATABASE "+name) {
			t.Errorf("%s is not made, or gets no tables", name)
		}
	}
}
