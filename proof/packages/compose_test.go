package packages

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

func composed(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{top + "/deploy/compose/compose.yaml"}, cli.WithResolvedPaths(true))
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
