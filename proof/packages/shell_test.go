package packages

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig/rigtest"
	"github.com/pgoutbox/outbox/schema"
)

func TestShellsCompleteDestinationsAndTopics(t *testing.T) {
	t.Parallel()
	database := servers.TestDatabase(t)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := schema.Up(t.Context(), conn, schema.UpConfig{}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `SELECT outbox.publish('orders.eu', '{}'), outbox.publish('orders.us', '{}');
		INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier)
		SELECT name, 0, 1, system_identifier FROM pg_control_system(), unnest('{billing,search}'::text[]) name`); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		file(t, []byte(run(t, "", nil, rigtest.Binary(t), "completion", shell)), dir, shell)
	}
	path := filepath.Dir(rigtest.Binary(t)) + ":/usr/bin:/bin"
	env := []string{"OUTBOX_DATABASE_URL=" + database, "PATH=" + path, "HOME=" + dir, "TERM=dumb"}
	library := servers.Tool(t, "bash-completion")
	for _, c := range []struct {
		typed string
		want  []string
	}{
		{"outbox pause ", []string{"billing", "search"}},
		{"outbox pause b", []string{"billing"}},
		{"outbox pause billing --topic ", []string{"orders.eu", "orders.us"}},
		{"outbox dead ls --cause r", []string{"refused"}},
		{"outbox destinations d", []string{"drop"}},
	} {
		// What readline does when Tab is pressed at the end of the line.
		bash := `source ` + library + `; source ` + filepath.Join(dir, "bash") + `
			compopt() { :; }
			COMP_LINE=$1; COMP_POINT=${#1}; COMP_TYPE=9; COMP_KEY=9
			read -ra COMP_WORDS <<< "$1"; [[ $1 != *' ' ]] || COMP_WORDS+=('')
			COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
			__start_outbox outbox "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
			printf '%s\n' "${COMPREPLY[@]}"`
		fish := "source " + filepath.Join(dir, "fish") + "; complete -C '" + c.typed + "'"
		for shell, text := range map[string]string{
			"bash": run(t, dir, env, "bash", "-c", bash, "bash", c.typed),
			"fish": run(t, dir, env, servers.Tool(t, "fish"), "--no-config", "-c", fish),
		} {
			var got []string
			for _, line := range strings.Split(text, "\n") {
				if word, _, _ := strings.Cut(line, "\t"); strings.TrimSpace(word) != "" {
					got = append(got, strings.Fields(word)[0])
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("%s proposes %q after %q, want %q", shell, got, c.typed, c.want)
			}
		}
	}
	run(t, dir, env, servers.Tool(t, "zsh"), "-n", filepath.Join(dir, "zsh"))
}

// harmless matches warnings about the form that cobra gives to pages: the date is a month, and a flag's text begins
// with a tab. A line may be long.
var harmless = regexp.MustCompile(`cannot parse date|tab in filled text|input text line longer`)

func TestTheManualsPagesAreSound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run(t, "", nil, rigtest.Binary(t), "man", dir)
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) < 40 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	// It ends with the level of the worst that it has found.
	said, _ := exec.CommandContext(t.Context(), servers.Tool(t, "mandoc"), append([]string{"-Tlint"}, pages...)...).CombinedOutput()
	for _, line := range strings.Split(strings.TrimSpace(string(said)), "\n") {
		if !harmless.MatchString(line) {
			t.Error(line)
		}
	}
}
