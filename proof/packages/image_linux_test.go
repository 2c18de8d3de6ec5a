package packages

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/child"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig/rigtest"
)

// image is what the image tells those who run it.
type image struct {
	Config struct {
		User        string
		Entrypoint  []string
		Cmd         []string
		WorkingDir  string
		Healthcheck struct{ Test []string }
	} `json:"config"`
}

// built builds the image from the Dockerfile. Its first stage, whose compiler is in a registry, is a folder with what
// that stage would have made. It returns what the image is told to do, and a folder with the image's files.
func built(t *testing.T) (image, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can change the root of a process")
	}
	dir := t.TempDir()
	stage := filepath.Join(dir, "stage")
	authorities, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		t.Fatal(err, "install ca-certificates")
	}
	file(t, authorities, stage, "etc/ssl/certs/ca-certificates.crt")
	if err := os.Chmod(file(t, read(t, rigtest.Binary(t)), stage, "src/bin/outbox"), 0o755); err != nil {
		t.Fatal(err)
	}
	buildah := func(args ...string) string {
		store := []string{"--storage-driver", "vfs", "--root", filepath.Join(dir, "store"), "--runroot", filepath.Join(dir, "run")}
		return run(t, top, nil, servers.Tool(t, "buildah"), append(store, args...)...)
	}
	buildah("build", "--isolation", "chroot", "--format", "docker", "--build-context", "build="+stage,
		"-f", "deploy/Dockerfile", "-t", "outbox:test", stage)
	container := strings.TrimSpace(buildah("from", "outbox:test"))
	var of struct{ Docker image }
	if err := json.Unmarshal([]byte(buildah("inspect", "--type", "image", "outbox:test")), &of); err != nil {
		t.Fatal(err)
	}
	return of.Docker, strings.TrimSpace(buildah("mount", container))
}

func TestTheImageHasTheBinaryAndCertificatesAndRunsWithoutRights(t *testing.T) {
	t.Parallel()
	about, root := built(t)

	var files []string
	size := int64(0)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		size += info.Size()
		files = append(files, strings.TrimPrefix(path, root))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/etc/ssl/certs/ca-certificates.crt", "/outbox"}; !slices.Equal(files, want) {
		t.Errorf("the image has %q", files)
	}
	if size > 45_000_000 {
		t.Errorf("the image has %d bytes", size)
	}
	if c := about.Config; c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/outbox"}) ||
		!slices.Equal(c.Healthcheck.Test, []string{"CMD", "/outbox", "probe"}) {
		t.Errorf("the image says %+v", c)
	}

	// What compose.yaml makes of it, with the servers of this machine.
	relay := composed(t).Services["relay"]
	file(t, read(t, relay.Volumes[0].Source), root, relay.Volumes[0].Target)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close() // the relay is to listen there
	database := servers.TestDatabase(t)
	inside := func(args ...string) child.Command {
		return child.Command{
			Path: about.Config.Entrypoint[0], Args: args, Root: root, Dir: about.Config.WorkingDir, UID: 65532,
			LogFile: filepath.Join(t.TempDir(), "log"),
			Env: []string{"OUTBOX_DATABASE_URL=" + database, "OUTBOX_HTTP_LISTEN=" + listener.Addr().String(),
				"OUTBOX_DESTINATIONS_0_BROKER_KAFKA_BROKERS=" + servers.TestKafka(t).Addr()},
		}
	}
	healthy := func() bool { return child.Run(t.Context(), inside(about.Config.Healthcheck.Test[2:]...)) == nil }
	if err := child.Run(t.Context(), inside("migrate", "up")); err != nil {
		t.Fatal(err)
	}
	p, err := child.Start(inside(about.Config.Cmd...))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	await.Until(t, "the health check passes", healthy)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "SELECT outbox.publish('orders', '{}', key => 'order-1')"); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "Kafka has the event", func() bool {
		var delivered int
		err := conn.QueryRow(t.Context(), "SELECT sum(delivered) FROM outbox.cursors").Scan(&delivered)
		return err == nil && delivered == 1
	})
	if byItself, err := p.Stop(syscall.SIGTERM, await.Patience); !byItself || errors.Join(err, p.Err()) != nil {
		t.Errorf("the relay does not end well: %v\n%s", errors.Join(err, p.Err()), p.Log())
	}
	if healthy() {
		t.Error("the health check passes without a relay")
	}
}
