package registration

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/schema"
)

func TestMain(m *testing.M) { servers.Main(m) }

func register(db testdb.DB, name string, lease time.Duration) *Registration {
	db.T.Helper()
	r, err := Register(db.T.Context(), db.Config(), name, Config{Lease: lease, Version: "test"})
	if err != nil {
		db.T.Fatal(err)
	}
	db.T.Cleanup(r.Close)
	return r
}

func TestALiveNamesakeIsNamed(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	register(db, "a", 5*time.Second)
	_, err := Register(t.Context(), db.Config(), "a", Config{Lease: time.Minute})
	if !errors.Is(err, ErrNamesake) || !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "runs on host") {
		t.Errorf("got %v", err)
	}
	register(db, "b", time.Minute)
}

func TestANameIsFreeAfterClose(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	r, err := Register(t.Context(), db.Config(), "a", Config{})
	if err != nil {
		t.Fatal(err)
	}
	if got := db.Value("SELECT name || ' ' || version FROM outbox.relays"); got != "a unknown" {
		t.Errorf("registered as %q", got)
	}
	r.Close()
	if got := db.Value("SELECT count(*) FROM outbox.relays"); got != "0" {
		t.Errorf("%s relays after the only one left", got)
	}
	register(db, "a", time.Hour)
}

func TestARegistrationSurvivesALostConnection(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	r := register(db, "a", await.Expiry(300*time.Millisecond))
	pid := db.Value("SELECT backend_pid FROM outbox.relays")
	db.Exec("SELECT pg_terminate_backend(" + pid + ", 5000)")
	db.Await("SELECT backend_pid <> " + pid + " FROM outbox.relays")
	await.Until(t, "the name is used again", func() bool {
		release, err := r.Use("d", 0)
		if err == nil {
			release()
		}
		return err == nil
	})
}

// A session of a role that was dropped has no rights, and doesn't end: another one has those of the role that was made
// in its place.
func TestARelayWhoseRoleIsMadeAgainConnectsAgain(t *testing.T) {
	t.Parallel()
	db := testdb.Published(t)
	role := db.Config().Database + "_relay"
	allow := `CREATE ROLE ` + role + ` LOGIN; ` + schema.Grants("", role, "")
	remove := `DROP OWNED BY ` + role + `; DROP ROLE ` + role
	db.Exec(allow)
	cfg := db.Config()
	cfg.User = role
	r, err := Register(t.Context(), cfg, "a", Config{Lease: await.Expiry(300 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Exec(remove)
	defer r.Close()
	pid := db.Value("SELECT backend_pid FROM outbox.relays")
	db.Exec(remove)
	db.Exec(allow)
	db.Await("SELECT backend_pid <> " + pid + " FROM outbox.relays")
}
