package faults

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/proof/rig/rigtest"
)

// Schemathesis sends the API what its description allows and what it doesn't, as an operator. No answer is one that the
// description lacks, or an error of the server, and delivery goes on.
func TestNoRequestThatIsMadeUpBreaksTheAPI(t *testing.T) {
	dir := servers.Tool(t, servers.Schemathesis.Package)
	w := newWorld(t, onNATS)
	w.write(5 * time.Millisecond)
	listen := rigtest.Address(t)
	w.start("relay-1", fmt.Sprintf("name: relay-1\ndatabase: {url: %q}\n"+
		"http: {listen: %q, users: [{name: oscar, role: operator, token: %q}]}\n"+
		"destinations:\n  - name: events\n    broker: %s\n", w.pg.URL("postgres"), listen, token, w.broker.yaml))
	w.flowing()
	w.eventually("the API answers", func() bool {
		answer, err := http.Get("http://" + listen + "/livez")
		if err != nil {
			return false
		}
		return answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	})
	cmd := servers.Schemathesis.Command(t.Context(), dir, "--no-color", "run", "http://"+listen+"/api/v1/openapi.json",
		"--header", "Authorization: Bearer "+token, "--seed", "1", "--max-examples", "10", "--phases", "examples,coverage,fuzzing",
		"--exclude-checks", "positive_data_acceptance") // a schema has no rules between parameters
	cmd.Dir = t.TempDir() // it keeps what it has found
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	w.flowing()
	w.must(w.stop())
}

const token = "0123456789abcdef0123456789abcdef-oscar"
