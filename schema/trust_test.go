package schema

import (
	"context"
	"os"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// trustLine is a line of docs/trust.md: role, what, statement, whether it may.
var trustLine = regexp.MustCompile("(?m)^\\| (\\w+) \\| ([^|]+) \\| `(.+)` \\| (yes|no) \\|$")

// The page on trust is its own test: every statement is run as its role.
func TestEachRoleCanDoWhatThePageOnTrustSays(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/trust.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := trustLine.FindAllStringSubmatch(string(page), -1)
	// Every line of a table but its two heads.
	if rows := regexp.MustCompile(`(?m)^\|`).FindAllString(string(page), -1); len(lines) < 60 ||
		len(rows) != len(lines)+2*len(regexp.MustCompile(`(?m)^\|---`).FindAllString(string(page), -1)) {
		t.Fatalf("%d of %d lines are understood", len(lines), len(rows))
	}
	onEachMajor(t, func(t *testing.T, url string) {
		owner := connect(t, url)
		install(t, owner)
		grants := map[string]func(name string) string{
			"nobody":      func(string) string { return "" },
			"writer":      func(name string) string { return Grants(name, "", "") },
			"relay":       func(name string) string { return Grants("", name, "") },
			"viewer":      func(name string) string { return Grants("", "", name) },
			"consumer":    ConsumerGrants,
			"replication": func(name string) string { return "ALTER ROLE " + pgx.Identifier{name}.Sanitize() + " REPLICATION" },
		}
		conns := make(map[string]*pgx.Conn)
		as := func(role string, grant func(string) string) {
			name := role + " in " + owner.Config().Database
			createRole(t, owner, name)
			exec(t, owner, grant(name))
			conns[role] = connectAs(t, url, name)
		}
		for role, grant := range grants {
			as(role, grant)
		}
		ask := func(of func(role string) bool) {
			for _, line := range lines {
				if !of(line[1]) {
					continue
				}
				conn := conns[line[1]]
				if conn == nil {
					t.Fatalf("there is no role %s", line[1])
				}
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				_, err = tx.Exec(t.Context(), line[3])
				_ = tx.Rollback(context.WithoutCancel(t.Context())) // it may have failed
				switch state := sqlstate.Of(err); {
				case line[4] == "yes" && err != nil && state != "42704": // of a slot that isn't there
					t.Errorf("%s may not %s: %v", line[1], line[2], err)
				case line[4] == "no" && state != "42501":
					t.Errorf("%s may %s: %v", line[1], line[2], err)
				}
			}
		}
		ask(func(role string) bool { return role != "emitter" })
		as("emitter", EmitterGrants) // takes from the others what the page says of them
		ask(func(role string) bool { return role == "emitter" })
	})
}
