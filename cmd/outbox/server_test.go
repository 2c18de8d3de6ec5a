package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

// Tokens of two users.
const (
	oscarsToken = "0123456789abcdef0123456789abcdef-oscar"
	verasToken  = "0123456789abcdef0123456789abcdef-vera"
)

// served is a relay with an API over a database of its own.
type served struct {
	*database
	url   string
	relay *process
	spec  routers.Router
}

// serve starts a relay that delivers nothing of what the tests write.
func serve(t *testing.T, more string) *served {
	t.Helper()
	return serveOn(setup(t), more)
}

func serveOn(d *database, more string) *served {
	t := d.t
	t.Helper()
	address := freeAddress(t)
	s := &served{database: d, url: "http://" + address}
	s.relay = d.relay("name: relay-1\nlog: {level: debug}\nhttp:\n  listen: " + address + "\n" + more +
		"destinations:\n  - name: file\n    topics: [none]\n    broker: {file: {path: " + d.file() + "}}\n")
	until(t, "the API answers", func() bool {
		answer, err := http.Get(s.url + "/livez")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return s
}

const users = `  users:
    - {name: oscar, role: operator, token: ` + oscarsToken + `}
    - {name: vera, token: ` + verasToken + `}
`

// ask sends a request with a token, and checks the answer against the API's description.
func (s *served) ask(r *http.Request, token string) (int, []byte) {
	s.t.Helper()
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.spec != nil {
		s.check(r, answer, body)
	}
	return answer.StatusCode, body
}

// describe reads the description, and has ask check by it.
func (s *served) describe() {
	s.t.Helper()
	r, _ := http.NewRequest("GET", s.url+"/api/v1/openapi.json", nil)
	_, text := s.ask(r, oscarsToken)
	document, err := openapi3.NewLoader().LoadFromData(text)
	if err == nil {
		err = document.Validate(s.t.Context())
	}
	if err == nil {
		s.spec, err = gorillamux.NewRouter(document)
	}
	if err != nil {
		s.t.Fatalf("the description: %v\n%s", err, text)
	}
}

func (s *served) check(r *http.Request, answer *http.Response, body []byte) {
	s.t.Helper()
	route, _, err := s.spec.FindRoute(r)
	if err != nil {
		s.t.Errorf("%s %s is not described: %v", r.Method, r.URL.Path, err)
		return
	}
	options := &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true,
		AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}
	in := &openapi3filter.RequestValidationInput{Request: r, Route: route, Options: options}
	out := (&openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: answer.StatusCode,
		Header: answer.Header, Options: options}).SetBodyBytes(body)
	if err := openapi3filter.ValidateResponse(s.t.Context(), out); err != nil {
		s.t.Errorf("%s %s: %d %s doesn't fit the description: %v", r.Method, r.URL, answer.StatusCode, body, err)
	}
	if answer.StatusCode == http.StatusOK {
		if r.GetBody != nil {
			r.Body, _ = r.GetBody()
		}
		if err := openapi3filter.ValidateRequest(s.t.Context(), in); err != nil {
			s.t.Errorf("%s %s doesn't fit the description: %v", r.Method, r.URL, err)
		}
	}
}

// line is the command line of a verb with its parameters.
func line(v verbs.Verb, params any) []string {
	args := strings.Fields(v.Name)
	var behind []string
	for _, p := range v.Given(params) {
		for _, text := range p.Texts(params) {
			if p.Behind() {
				behind = append(behind, text)
			} else {
				args = append(args, "--"+flagName(p.Name)+"="+text)
			}
		}
	}
	return append(args, behind...)
}

// trash discards a fourth dead letter, by job 1.
func (s *served) trash() {
	s.exec(`INSERT INTO outbox.jobs (verb, blocked, destination, selection, state, total, position, done, actor, started_at, begun_at, ended_at)
		VALUES ('discard', false, 'kafka', '{}', 'done', 1, 1, 1, 'anna', now(), now(), now())`)
	s.exec(`INSERT INTO outbox.trash SELECT (d).*, 1, now() FROM (SELECT jsonb_populate_record(d, '{"id": 4}') AS d FROM outbox.dead_letters d WHERE id = 1) x`)
	s.exec(`INSERT INTO outbox.job_messages SELECT 1, 1, destination, lane, id, message_id, dead_at FROM outbox.trash`)
}

// varies is what differs between two looks at equal states: times, spans, processes, sizes and folders.
var varies = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[^"]*"|\d+(\.\d+)?(ms|s\b|m\b|h\b)+|"(pid|bytes|kept_bytes|seconds|remaining_seconds|per_second|window_ns|clock_ahead_ns)": *[\d.e+-]+|"(database|version)": *"[^"]*"|\d\d:\d\d:\d\d|"value": *[\d.e+-]+, *"unit": *"s"|"file /[^"]*"`)

func alike(s string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(s)) == nil {
		s = b.String()
	}
	return strings.ReplaceAll(varies.ReplaceAllString(strings.TrimSpace(s), "~"), " for ~", "") // not said of what has just begun
}

func TestEveryVerbDoesTheSameByCommandLineByServerAndByREST(t *testing.T) {
	t.Parallel()
	servers.Long(t)
	direct, through, plain := serve(t, users), serve(t, users), serve(t, users)
	plain.describe()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(oscarsToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	base, _ := url.Parse(plain.url)
	done := 0
	for _, s := range []*served{direct, through, plain} {
		s.exec(`DROP PUBLICATION everything`) // the test deletes messages
	}
	try := func(v verbs.Verb, params any) {
		t.Helper()
		for _, s := range []*served{direct, through, plain} {
			s.exec(`DELETE FROM outbox.dead_letters; DELETE FROM outbox.holds; DELETE FROM outbox.audit; DELETE FROM outbox.cursors WHERE destination = 'kafka';
				TRUNCATE outbox.trash; TRUNCATE outbox.jobs, outbox.job_messages, outbox.job_pages RESTART IDENTITY; DELETE FROM outbox.messages`)
			s.letters()
			s.trash()
			if v.Name == "replay" {
				s.exec(`INSERT INTO outbox.messages (message_id, topic, key) VALUES ('00000000-0000-7000-8000-000000000007', 'orders', 'k7')`)
				s.exec(`UPDATE outbox.cursors SET prev = pg_current_snapshot() WHERE destination = 'kafka'`)
			}
		}
		args := append(line(v, params), "-o", "json")
		if v.Role == verbs.Operator {
			args = append(args, "--yes")
		}
		own := slices.Clone(args)
		if v.Role == verbs.Operator {
			own = append(own, "--actor", "oscar")
		}
		one := direct.outbox(own...)
		two := command(t, through.folder, []string{"OUTBOX_SERVER=" + through.url, "OUTBOX_SERVER_TOKEN_FILE=" + token}, args...)
		if one.code != two.code || alike(one.stdout) != alike(two.stdout) || alike(one.stderr) != alike(two.stderr) {
			t.Errorf("%s\n%d %s%s\nthrough a server\n%d %s%s", one.line, one.code, alike(one.stdout), alike(one.stderr),
				two.code, alike(two.stdout), alike(two.stderr))
		}
		r, err := rest.Request(t.Context(), base, v, params)
		if err != nil {
			t.Fatal(err)
		}
		status, body := plain.ask(r, oscarsToken)
		if v.Name == "check" && status == http.StatusOK {
			one.code = exitOK // its exit code is the verdict
		}
		if (status == http.StatusOK) != (one.code == exitOK) || status == http.StatusOK && alike(string(body)) != alike(one.stdout) {
			t.Errorf("%s\n%d %s, want\n%d %s%s", v.Path(), status, alike(string(body)), one.code, alike(one.stdout), one.stderr)
		}
		audits := map[string]string{}
		for name, s := range map[string]*served{"command line": direct, "server": through, "REST": plain} {
			var rows string
			if err := s.QueryRow(t.Context(), `SELECT coalesce(string_agg(concat_ws(' ', actor, verb, destination, detail::text, reason), E'\n' ORDER BY verb, destination), '') FROM outbox.audit`).Scan(&rows); err != nil {
				t.Fatal(err)
			}
			audits[name] = alike(rows)
		}
		if audits["command line"] != audits["server"] || audits["server"] != audits["REST"] {
			t.Errorf("%s: the audits differ: %q", v.Name, audits)
		}
		if audits["REST"] != "" {
			done++
		}
	}
	changes := 0
	for _, v := range verbs.All() {
		given := map[string]string{"destination": "kafka", "ids": "2", "message": "00000000-0000-7000-8000-000000000002",
			"reason": "a test", "to": "snapshot", "window": "36h", "id": "1", "now": "true", "set": "event_type=x"}
		if v.Name == "replay" {
			given["ids"] = "00000000-0000-7000-8000-000000000007"
		}
		fill := func(names ...string) any {
			params := v.New()
			for _, p := range v.Params {
				if text := given[p.Name]; text != "" && (p.Required || slices.Contains(names, p.Name)) {
					if err := p.Set(params, text); err != nil {
						t.Fatal(err)
					}
				}
			}
			return params
		}
		try(v, fill())
		if names := []string{"destination", "reason", "now", "message", "set"}; v.Name == "replay" {
			try(v, fill(append(names, "ids")...))
		} else {
			try(v, fill(names...))
		}
		if v.Role == verbs.Operator {
			changes++
			params := fill("destination")
			if v.Name == "replay" {
				params = fill("ids")
			}
			verbs.IntentOf(params).DryRun = true
			try(v, params)
		}
		given["destination"], given["ids"], given["id"], given["message"] = "nothing", "9", "9", "00000000-0000-7000-8000-000000000009"
		try(v, fill("destination", "ids", "message"))
	}
	if done < 6 {
		t.Errorf("of %d verbs that change something %d runs left a row in the audit", changes, done)
	}
	for _, s := range []*served{through, plain} {
		if log := s.relay.stderr.String(); strings.Contains(log, oscarsToken) || strings.Contains(log, verasToken) {
			t.Error("the log has a token")
		}
	}
}

func TestWhatWorksOnThisMachineAloneSaysSo(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, args := range [][]string{{"relay"}, {"migrate", "up"}, {"verify", "--consumer", "c"},
		{"doctor", "--table", "t"}, {"config", "show"}, {"inbox", "retain"}, {"version"}} {
		command(t, folder, nil, append(args, "--server", "http://127.0.0.1:1")...).want(exitUsage, "--server", "this machine")
	}
	command(t, folder, nil, "status", "--server", "http://127.0.0.1:1").want(exitError, "no answer", "http.listen")
	command(t, folder, nil, "status", "--server", "127.0.0.1:1").want(exitUsage, "must be a URL")
	command(t, folder, nil, "status", "--server", "http://u:hunter22@127.0.0.1:1").want(exitUsage, "OUTBOX_SERVER_PASSWORD").never("hunter22")
	command(t, folder, nil, "status", "--server", "http://127.0.0.1:1", "--database-url", "postgres://x").want(exitUsage, "exclude")
	command(t, folder, nil, "status", "--server", "http://127.0.0.1:1", "--server-token-file", "missing").want(exitConfig, "missing")
	command(t, folder, nil, "dead", "requeue", "--all", "--actor", "anna", "--server", "http://127.0.0.1:1").want(exitUsage, "login")
}

func TestTheAPIIsReadByThisMachineAndChangedByUsersAlone(t *testing.T) {
	t.Parallel()
	s := serve(t, "")
	s.letters()
	remote := func(args ...string) result { return command(t, s.folder, []string{"OUTBOX_SERVER=" + s.url}, args...) }
	remote("dead", "ls").want(exitOK, "k3")
	remote("dead", "ls", "--payload", "-o", "json").want(exitError, "for operators").never("secret")
	remote("dead", "discard", "--all", "--yes").want(exitError, "for operators")
	r, _ := http.NewRequest("GET", s.url+"/api/v1/status", nil)
	r.Host = "evil.example:9187"
	if status, body := s.ask(r, ""); status != http.StatusUnauthorized {
		t.Errorf("a name of somebody else's for this address: %d %s", status, body)
	}
	d := setup(t)
	d.relay("http: {listen: ':0'}\ndestinations:\n  - name: file\n    broker: {file: {path: " + d.file() +
		"}}\n").refused("http.api: false")
	open := d.relay("http: {listen: '0.0.0.0:0', api: false}\ndestinations:\n  - name: file\n    broker: {file: {path: " +
		d.file() + "}}\n")
	until(t, "health and metrics are served to all", func() bool { return strings.Contains(open.stderr.String(), "relay started") })
}

// refused waits for a relay that doesn't start, for a reason.
func (p *process) refused(text string) {
	p.t.Helper()
	if code := p.wait(); code != exitConfig || !strings.Contains(p.stderr.String(), text) {
		p.t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
}

func TestPayloadsAreMaskedAndViewersReadByADatabaseRoleOfTheirOwn(t *testing.T) {
	t.Parallel()
	d := setup(t)
	role := fmt.Sprintf("api_viewer_%d", time.Now().UnixNano())
	d.exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'hunter22'`)
	t.Cleanup(func() {
		_, _ = d.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role)
	})
	viewer, err := url.Parse(d.url)
	if err != nil {
		t.Fatal(err)
	}
	viewer.User = url.UserPassword(role, "hunter22")
	s := serveOn(d, users+"  mask: [$.card]\ndatabase: {url: '"+d.url+"', viewer_url: '"+viewer.String()+"'}\n")
	s.letters()
	s.exec(`UPDATE outbox.dead_letters SET payload = '{"card":"4111","n":1}'`)
	as := func(token string, args ...string) result {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		return command(t, s.folder, []string{"OUTBOX_SERVER=" + s.url, "OUTBOX_SERVER_TOKEN_FILE=" + file}, args...)
	}
	as(verasToken, "status").want(exitError, "permission denied", "migrate grants")
	s.exec(schema.Grants("", "", role))
	as(verasToken, "status").want(exitOK, "relay-1")
	as(verasToken, "dead", "ls").want(exitOK, "k1")
	as(verasToken, "dead", "show", "1", "--payload").want(exitError, "operators").never("4111")
	as(oscarsToken, "dead", "show", "1", "--payload").want(exitOK, `{"card":"***","n":1}`).never("4111")
	const id = "00000000-0000-7000-8000-000000000001"
	as(verasToken, "messages", "show", id).want(exitOK, "k1").never("4111")
	as(verasToken, "messages", "show", id, "--payload").want(exitError, "operators").never("4111")
	as(oscarsToken, "messages", "show", id, "--payload").want(exitOK, `{"card":"***","n":1}`).never("4111")
	as("wrong", "dead", "show", "1").want(exitError, "log in").never("k1")
	command(t, s.folder, []string{"OUTBOX_SERVER=" + s.url}, "status").want(exitError, "log in")
	if log := s.relay.stderr.String(); strings.Contains(log, "hunter22") || strings.Contains(log, "4111") {
		t.Error("the log has a password or a payload")
	}
}

func TestDeliveryGoesOnWhileThePortIsAttacked(t *testing.T) {
	t.Parallel()
	d := setup(t)
	address := freeAddress(t)
	relay := d.relay("http:\n  listen: " + address + "\n" + users +
		"destinations:\n  - name: file\n    broker: {file: {path: " + d.file() + "}}\n")
	d.publish("orders", 5)
	until(t, "the relay delivers", func() bool { return d.count() == 50 })
	// Connections that say nothing, and ones that never end their request.
	var slow []net.Conn
	for i := range 10_000 {
		c, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			continue // refused, too, is a defence
		}
		slow = append(slow, c)
		if i%2 == 1 {
			_, _ = io.WriteString(c, "POST /api/v1/dead/requeue HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		}
	}
	t.Cleanup(func() {
		for _, c := range slow {
			_ = c.Close()
		}
	})
	if len(slow) < 9000 {
		t.Fatalf("only %d connections", len(slow))
	}
	if code, body := get(t, "http://"+address+"/livez"); code != http.StatusOK {
		t.Errorf("a probe among them: %d %s", code, body)
	}
	huge, _ := http.NewRequest("POST", "http://"+address+"/api/v1/dead/requeue", io.LimitReader(endless{}, 64<<20))
	huge.Header.Set("Content-Type", "application/json")
	huge.Header.Set("Authorization", "Bearer "+oscarsToken)
	if answer, err := http.DefaultClient.Do(huge); err == nil { // or the server hung up
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("64 MiB: %s", answer.Status)
		}
	}
	header, _ := http.NewRequest("GET", "http://"+address+"/api/v1/status", nil)
	header.Header.Set("X-Large", strings.Repeat("x", 1<<20))
	if answer, err := http.DefaultClient.Do(header); err == nil {
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("1 MiB of headers: %s", answer.Status)
		}
	}
	d.publish("orders", 5)
	until(t, "delivery has gone on", func() bool { return d.count() == 100 })
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", relay.cmd.Process.Pid))
	if err == nil && len(files) > 700 {
		t.Errorf("the relay has %d files open", len(files))
	}
	if code := relay.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// endless is a body of one letter.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// post runs an operator's verb.
func (s *served) post(path, body string) string {
	s.t.Helper()
	r, _ := http.NewRequest("POST", s.url+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	status, text := s.ask(r, oscarsToken)
	if status != http.StatusOK {
		s.t.Errorf("%s: %d %s", path, status, text)
	}
	return string(text)
}
