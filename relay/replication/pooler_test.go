package replication

import (
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"testing"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
)

func TestAPoolerThatPassesNoReplicationConnectionOnIsRefused(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]map[string]string{
		"pooling transactions":   nil,
		"pooling sessions":       {"pool_mode": "session"},
		"ignoring what is asked": {"ignore_startup_parameters": "extra_float_digits,replication"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			direct := db.Config()
			pooler := servers.OwnPgBouncer(t, servers.PgBouncerConfig{
				Server: net.JoinHostPort(direct.Host, strconv.Itoa(int(direct.Port))), Settings: settings})
			s, _ := database{testdb.DB{T: t, URL: pooler.URL(direct.Database)}}.source("d", Config{})
			if passesReplication(t) && settings["ignore_startup_parameters"] == "" {
				stream, err := s.server().ConnectWAL(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				stream.HangUp()
				return
			}
			refused(t, s, "the address leads to a connection pooler", "the address of the server itself")
			if n := db.Value("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); n != "0" {
				t.Errorf("%s slots were left behind", n)
			}
		})
	}
}

// passesReplication reports whether the PgBouncer that is installed passes a replication connection on, as it does
// since 1.23.
func passesReplication(t *testing.T) bool {
	t.Helper()
	path, err := servers.FindPgBouncer()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "PgBouncer %d.%d", &major, &minor); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	return major > 1 || minor >= 23
}
