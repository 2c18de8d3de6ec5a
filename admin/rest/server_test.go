package rest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/sse"
	"github.com/pgoutbox/outbox/internal/testdb"
)

func TestMain(m *testing.M) { servers.Main(m) }

// server is an API over a fresh database. Who asks is in the header X-Caller.
type server struct {
	t    *testing.T
	pool *pgxpool.Pool
	api  *API
	*httptest.Server
}

var callers = map[string]Caller{
	"vera":   {Name: "vera", Role: verbs.Viewer},
	"oscar":  {Name: "oscar", Role: verbs.Operator},
	"kafkas": {Name: "kafkas", Role: verbs.Operator, Destinations: []string{"kafka"}},
	"none":   {Name: "none"},
}

func access(r *http.Request) (Caller, error) {
	c, ok := callers[r.Header.Get("X-Caller")]
	if !ok {
		return c, errors.New("say who you are")
	}
	return c, nil
}

func setup(t *testing.T, change func(*Options, []verbs.Verb)) *server {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testdb.Installed(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := &server{t: t, pool: pool}
	options, table := Options{DB: pool, Access: access, Challenge: `Basic realm="outbox"`}, verbs.All()
	if change != nil {
		change(&options, table)
	}
	if s.api, err = newAPI(options, func() (*endpoints, error) { return newEndpoints(table) }); err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewUnstartedServer(s.api)
	// Shorter than the pause of a stream: streams and verbs have bounds of their own.
	s.Config.ReadTimeout, s.Config.WriteTimeout = sse.Pause*9/10, sse.Pause*9/10
	s.Start()
	t.Cleanup(func() {
		s.api.Close()
		s.Server.Close()
	})
	return s
}

func (s *server) exec(sql string) {
	s.t.Helper()
	if _, err := s.pool.Exec(s.t.Context(), sql); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// letters adds three dead letters of the destination kafka.
func (s *server) letters() {
	s.exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier) SELECT 'kafka', 0, 1, system_identifier FROM pg_control_system()`)
	s.exec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, payload, created_at, attempts, reason, error)
		SELECT 'kafka', 'k' || i, i, ('00000000-0000-7000-8000-00000000000' || i)::uuid, 'orders', 'k' || i, 0, '{"card":{"number":"4111"},"n":1}', now(), 10, 'refused', 'no'
		FROM generate_series(1, 3) i`)
}

func (s *server) count(table string) (n int) {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// ask makes a request, and returns status and body.
func (s *server) ask(caller, method, path, body string, header ...string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("X-Caller", caller)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return s.do(r)
}

func (s *server) do(r *http.Request) (int, string) {
	s.t.Helper()
	answer, err := s.Client().Do(r.WithContext(await.Context(s.t))) // a stream that was not to be opened has no end
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var p Problem
	if answer.StatusCode != http.StatusOK && (answer.Header.Get("Content-Type") != problemType ||
		json.Unmarshal(text, &p) != nil || p.Status != answer.StatusCode || p.Detail == "") {
		s.t.Errorf("%s %s: %d %s %s is no problem", r.Method, r.URL, answer.StatusCode, answer.Header.Get("Content-Type"), text)
	}
	return answer.StatusCode, string(text)
}

// proper returns parameters that pass the checks of a verb, as far as kafka has something for it.
func proper(v verbs.Verb) any {
	params := v.New()
	for _, p := range v.Params {
		switch {
		case p.Name == "destination":
			_ = p.Set(params, "kafka")
		case p.Required && len(p.Enum) > 0:
			_ = p.Set(params, p.Enum[0])
		case p.Required && p.Type == v.Params[0].Type && p.Repeats(), p.Required && p.Name == "ids":
			_ = p.Set(params, "1")
		case p.Required && p.Name == "message":
			_ = p.Set(params, "00000000-0000-7000-8000-000000000001")
		case p.Name == "set":
			_ = p.Set(params, "event_type=x")
		case p.Name == "key" && v.Name == "replay":
			_ = p.Set(params, "k")
		case p.Required && p.Name == "topic":
			_ = p.Set(params, "t")
		case p.Required && p.Name == "id":
			_ = p.Set(params, "1")
		case p.Required && p.Name == "window":
			_ = p.Set(params, "24h")
		}
	}
	if v.Role == verbs.Operator {
		verbs.IntentOf(params).DryRun = true
	}
	return params
}

func TestEachRoleMayWhatTheTableSays(t *testing.T) {
	t.Parallel()
	s := setup(t, nil)
	s.letters()
	base, _ := url.Parse(s.URL)
	for _, v := range verbs.All() {
		for who, caller := range callers {
			r, err := Request(t.Context(), base, v, proper(v))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-Caller", who)
			status, body := s.do(r)
			named := false
			for _, p := range v.Params {
				named = named || p.Name == "destination"
			}
			may := caller.Role == verbs.Operator && (len(caller.Destinations) == 0 || named && !v.Wide) ||
				v.Role == verbs.Viewer && caller.Role != ""
			if may == (status == http.StatusForbidden) || status >= 500 || status == http.StatusBadRequest {
				t.Errorf("%s as %s: %d %s", v.Name, who, status, body)
			}
		}
		if status, _ := s.ask("mallory", v.Method(), v.Path(), ""); status != http.StatusUnauthorized {
			t.Errorf("%s as somebody unknown: %d", v.Name, status)
		}
	}
	// A limited operator acts on what is its own, by name.
	for body, want := range map[string]int{
		`{"destination":"kafka","dry_run":true}`: 200, `{"destination":"mail","dry_run":true}`: 403, `{"all":true,"dry_run":true}`: 403, `{"ids":["1"],"dry_run":true}`: 403,
	} {
		if status, text := s.ask("kafkas", "POST", "/api/v1/dead/requeue", body); status != want {
			t.Errorf("%s: %d %s, want %d", body, status, text, want)
		}
	}
	for body, want := range map[string]int{
		`{"destination":"kafka","all":true,"dry_run":true}`: 404, `{"destination":"kafka","to":"kafka","all":true,"dry_run":true}`: 404,
		`{"destination":"kafka","to":"mail","all":true,"dry_run":true}`: 403, `{"destination":"mail","to":"kafka","all":true,"dry_run":true}`: 403,
	} {
		if status, text := s.ask("kafkas", "POST", "/api/v1/replay", body); status != want {
			t.Errorf("%s: %d %s, want %d", body, status, text, want)
		}
	}
	if n := s.count("outbox.audit"); n != 0 {
		t.Errorf("%d rows in the audit after dry runs", n)
	}
}

func TestPayloadsAreForOperatorsAndMasked(t *testing.T) {
	t.Parallel()
	s := setup(t, func(o *Options, _ []verbs.Verb) {
		o.Mask = func(p []byte) []byte { return []byte(strings.ReplaceAll(string(p), "4111", "***")) }
	})
	s.letters()
	type letters []struct{ Payload []byte }
	for path, want := range map[string]string{
		"/api/v1/dead/ls?destination=kafka": "", "/api/v1/dead/ls?destination=kafka&payload=true": `{"card":{"number":"***"},"n":1}`,
		"/api/v1/dead/show?ids=1&payload=true&destination=kafka": `{"card":{"number":"***"},"n":1}`,
	} {
		for _, who := range []string{"oscar", "kafkas"} {
			var list letters
			if status, body := s.ask(who, "GET", path, ""); status != 200 || json.Unmarshal([]byte(body), &list) != nil ||
				string(list[0].Payload) != want {
				t.Errorf("%s as %s: %d %s", path, who, status, body)
			}
		}
		status, _ := s.ask("vera", "GET", path, "")
		if may := !strings.Contains(path, "payload"); may != (status == 200) {
			t.Errorf("%s as a viewer: %d", path, status)
		}
	}
	// An edit merges into what it doesn't show, and what is masked can't be written back.
	edit := func(merge string) (int, string) {
		return s.ask("kafkas", "POST", "/api/v1/dead/edit", `{"message":"1","destination":"kafka","merge":`+strconv.Quote(merge)+`}`, "Content-Type", "application/json")
	}
	type edited []struct {
		Payload  []byte
		Original struct{ Payload []byte }
	}
	var list edited
	if status, body := edit(`{"n":2}`); status != 200 || json.Unmarshal([]byte(body), &list) != nil || string(list[0].Payload) != `{"card":{"number":"***"},"n":2}` ||
		string(list[0].Original.Payload) != `{"card":{"number":"***"},"n":1}` {
		t.Errorf("edited: %d %s", status, body)
	}
	if status, body := edit(`{"card":{"number":"***"}}`); status != http.StatusBadRequest || !strings.Contains(body, "can't be written back") {
		t.Errorf("the mask as a value: %d %s", status, body)
	}
	var whole string
	err := s.pool.QueryRow(t.Context(), `SELECT convert_from(payload, 'UTF8') FROM outbox.dead_letters WHERE id = 1`).Scan(&whole)
	if err != nil || whole != `{"card":{"number":"4111"},"n":2}` {
		t.Errorf("the payload is %s, %v", whole, err)
	}
	if status, _ := s.ask("kafkas", "GET", "/api/v1/dead/ls?payload=true", ""); status != http.StatusForbidden {
		t.Errorf("payloads of all destinations for one that may see one's: %d", status)
	}
}

// What a header hides is hidden in lists, in a letter and its original, in a message's life, and can't be guessed by a
// search.
func TestHeadersWithCredentialsAreShownToNobody(t *testing.T) {
	t.Parallel()
	s := setup(t, nil)
	s.letters()
	s.exec(`UPDATE outbox.dead_letters SET headers = '{"authorization":"Bearer abc","tenant":"acme"}'`)
	s.exec(`INSERT INTO outbox.messages (topic, payload, headers)
		VALUES ('orders', '', '{"authorization":"Bearer abc","tenant":"acme"}')`)
	status, body := s.ask("oscar", "POST", "/api/v1/dead/edit", `{"message":"1","set":["header.tenant=beta"]}`)
	if status != 200 ||
		!strings.Contains(body, "beta") || strings.Contains(body, "abc") {
		t.Errorf("edited: %d %s", status, body)
	}
	var id string
	if err := s.pool.QueryRow(t.Context(), `SELECT message_id::text FROM outbox.messages`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/api/v1/dead/ls", "/api/v1/dead/show?ids=1", "/api/v1/messages/find",
		"/api/v1/messages/show?message=" + id, "/api/v1/messages/find?header=authorization"} {
		for _, who := range []string{"vera", "oscar"} {
			if status, body := s.ask(who, "GET", path, ""); status != 200 || strings.Contains(body, "abc") ||
				!strings.Contains(body, `"authorization":"***"`) || !strings.Contains(body, "acme") {
				t.Errorf("%s as %s: %d %s", path, who, status, body)
			}
		}
	}
	status, body = s.ask("vera", "GET", "/api/v1/messages/find?header=authorization%3DBearer+abc", "")
	if status != http.StatusBadRequest || !strings.Contains(body, "hidden") {
		t.Errorf("a search for a hidden value: %d %s", status, body)
	}
	status, body = s.ask("oscar", "POST", "/api/v1/replay", `{"header":"authorization=Bearer abc","dry_run":true}`)
	if status != http.StatusBadRequest || !strings.Contains(body, "hidden") {
		t.Errorf("a replay of a hidden value: %d %s", status, body)
	}
	status, body = s.ask("vera", "GET", "/api/v1/messages/find?header=tenant%3Dacme", "")
	if status != 200 || !strings.Contains(body, id) {
		t.Errorf("a search for a value that is shown: %d %s", status, body)
	}
}

func TestWhoIsKnownAndMayNotAskIsForbiddenWithoutALogin(t *testing.T) {
	t.Parallel()
	s := setup(t, func(o *Options, _ []verbs.Verb) {
		o.Access = func(*http.Request) (Caller, error) { return Caller{}, fmt.Errorf("%w: elsewhere", ErrForbidden) }
	})
	answer, err := http.Get(s.URL + "/api/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusForbidden || answer.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("%s, asks for a login by %q", answer.Status, answer.Header.Get("WWW-Authenticate"))
	}
}

func TestViewersReadByADatabaseRoleOfTheirOwn(t *testing.T) {
	t.Parallel()
	var asked int
	s := setup(t, func(o *Options, _ []verbs.Verb) { o.ViewerDB = counting{o.DB, &asked} })
	s.ask("oscar", "GET", "/api/v1/status", "")
	if asked != 0 {
		t.Error("an operator reads as a viewer")
	}
	if status, _ := s.ask("vera", "GET", "/api/v1/status", ""); status != 200 || asked != 1 {
		t.Errorf("%d, %d looks as a viewer", status, asked)
	}
}

type counting struct {
	admin.DB
	n *int
}

func (c counting) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	*c.n++
	return c.DB.BeginTx(ctx, options)
}

func TestAPoolThatIsMissingIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	var unopened *pgxpool.Pool
	for _, o := range []Options{{DB: unopened, Access: access}, {DB: new(pgxpool.Pool), ViewerDB: unopened, Access: access}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

func TestRequestsThatAreWrongAreRefusedWithTheirFault(t *testing.T) {
	t.Parallel()
	s := setup(t, nil)
	s.letters()
	const requeue = "/api/v1/dead/requeue"
	for _, c := range []struct {
		method, path, body string
		status             int
		text               string
	}{
		{"GET", "/api/v1/dead/ls?cause=bad", "", 400, `"field":"cause"`},
		{"GET", "/api/v1/dead/ls?nonsense=1", "", 400, `"field":"nonsense"`},
		{"GET", "/api/v1/dead/ls?limit=1&limit=2", "", 400, "more than once"},
		{"GET", "/api/v1/dead/ls?limit=0", "", 400, `"field":"limit"`},
		{"GET", "/api/v1/dead/ls?blocked=perhaps", "", 400, "neither true nor false"},
		{"GET", "/api/v1/dead/ls?topic=%00", "", 400, `"field":"topic"`},
		{"GET", "/api/v1/dead/ls?topic=%ff", "", 400, `"field":"topic"`},
		{"GET", "/api/v1/dead/ls?%zz", "", 400, "not well-formed"},
		{"GET", "/api/v1/dead/show?ids=9", "", 404, "outbox dead ls"},
		{"GET", "/api/v1/dead/show", "", 400, `"field":"ids"`},
		{"POST", "/api/v1/dead/ls", "{}", 405, "GET"},
		{"GET", requeue, "", 405, "POST"},
		{"DELETE", requeue, "", 405, "POST"},
		{"GET", "/api/v1/nothing", "", 404, "openapi.json"},
		{"GET", "/api/v1/../api/v1/status", "", 404, "no such path"},
		{"GET", "//api/v1/status", "", 404, "no such path"},
		{"POST", requeue, `{}`, 400, "nothing is selected"},
		{"POST", requeue, `[]`, 400, "not an object"},
		{"POST", requeue, `{"all":true`, 400, "well-formed"},
		{"POST", requeue, `{"all":true} {}`, 400, "follows"},
		{"POST", requeue, `{"all":true,"all":false}`, 400, "more than once"},
		{"POST", requeue, `{"ALL":true}`, 400, `"field":"ALL"`},
		{"POST", requeue, `{"all":"true"}`, 400, `"field":"all"`},
		{"POST", requeue, `{"all":null}`, 400, `"field":"all"`},
		{"POST", requeue, `{"ids":[null]}`, 400, `"field":"ids"`},
		{"POST", requeue, `{"ids":["x"]}`, 400, `"field":"ids"`},
		{"POST", requeue, `{"until":5,"all":true}`, 400, `"field":"until"`},
		{"POST", requeue, `{"max":9223372036854775808,"all":true}`, 400, `"field":"max"`},
		{"POST", requeue, `{"topic":"` + strings.Repeat("x", maxBody) + `"}`, 413, "larger"},
		{"POST", requeue + "?all=true", `{}`, 400, "body"},
		{"POST", requeue, `{"all":true,"max":2}`, 409, "3 are selected"},
		{"POST", "/api/v1/destinations/drop", `{"destination":"mail"}`, 404, "no such destination"},
	} {
		status, body := s.ask("oscar", c.method, c.path, c.body)
		if status != c.status || !strings.Contains(body, c.text) {
			t.Errorf("%s %s %.80s: %d %s, want %d %s", c.method, c.path, c.body, status, body, c.status, c.text)
		}
	}
	if status, _ := s.ask("oscar", "POST", requeue, `{"all":true}`, "Content-Type", "text/plain"); status != http.StatusUnsupportedMediaType {
		t.Errorf("a body of text: %d", status)
	}
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://evil.example"}} {
		if status, body := s.ask("oscar", "POST", requeue, `{"all":true}`, header...); status != http.StatusForbidden || !strings.Contains(body, "another site") {
			t.Errorf("%s: %d %s", header, status, body)
		}
	}
	if n := s.count("outbox.dead_letters"); n != 3 {
		t.Errorf("%d dead letters are left of 3", n)
	}
}

func TestHostileTextsAreTextsInEveryParameter(t *testing.T) {
	t.Parallel()
	s := setup(t, nil)
	s.letters()
	base, _ := url.Parse(s.URL)
	for _, v := range verbs.All() {
		for _, p := range v.Params {
			for _, text := range []string{"'; DROP TABLE outbox.messages; --", `" OR 1=1 --`, "../../etc/passwd", "a\r\nSet-Cookie: x=y", "$1", "%s%n", "\x1b[31m", "<script>", "{{.}}", "\u202e", strings.Repeat("x", 10_000)} {
				params := proper(v)
				if p.Set(params, text) != nil {
					continue
				}
				r, err := Request(t.Context(), base, v, params)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("X-Caller", "oscar")
				if status, body := s.do(r); status >= 500 || strings.Contains(body, "root:") || strings.Contains(body, "syntax error") {
					t.Errorf("%s %s=%q: %d %s", v.Name, p.Name, text, status, body)
				}
			}
		}
	}
	if n := s.count("outbox.dead_letters"); n != 3 {
		t.Errorf("%d dead letters are left of 3", n)
	}
	s.count("outbox.messages")
}

// hanging is a database that doesn't answer.
type hanging struct{}

func (hanging) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestADatabaseThatDoesNotAnswerIsUnavailable(t *testing.T) {
	t.Parallel()
	short := func(table []verbs.Verb) {
		for i := range table {
			table[i].Timeout = await.Expiry(20 * time.Millisecond)
		}
	}
	s := setup(t, func(o *Options, table []verbs.Verb) {
		o.DB = hanging{}
		short(table)
	})
	base, _ := url.Parse(s.URL)
	for _, v := range verbs.All() {
		r, err := Request(t.Context(), base, v, proper(v))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Caller", "oscar")
		if status, body := s.do(r); status != http.StatusServiceUnavailable || !strings.Contains(body, "does not answer in time") {
			t.Errorf("%s: %d %s", v.Name, status, body)
		}
	}
	// One statement that waits is ended by the server.
	locked := setup(t, func(_ *Options, table []verbs.Verb) { short(table) })
	tx, err := locked.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE outbox.dead_letters"); err != nil {
		t.Fatal(err)
	}
	if status, body := locked.ask("oscar", "GET", "/api/v1/dead/ls", ""); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, body)
	}
}

func TestTheStatusIsStreamedToManyFromOneLook(t *testing.T) {
	t.Parallel()
	var looks int
	s := setup(t, func(o *Options, _ []verbs.Verb) { o.ViewerDB = counting{o.DB, &looks} })
	type client struct {
		*bufio.Scanner
		close func() error
	}
	open := func() client {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL+"/api/v1/status/stream", nil)
		r.Header.Set("X-Caller", "vera")
		answer, err := s.Client().Do(r)
		if err != nil || answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatal(err, answer)
		}
		lines := bufio.NewScanner(answer.Body)
		lines.Buffer(nil, 1<<20)
		return client{lines, answer.Body.Close}
	}
	report := func(c client) (r health.Report) {
		for c.Scan() {
			if text, ok := strings.CutPrefix(c.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(text), &r); err != nil {
					t.Fatal(err)
				}
				return r
			}
		}
		t.Fatal("the stream ended: ", c.Err())
		return r
	}
	first, second := open(), open()
	a, b := report(first), report(first)
	if !b.At.After(a.At) || a.Verdict.State != health.StateNoRelay {
		t.Errorf("%+v and %+v", a, b)
	}
	for at := report(second).At; at.Before(b.At); at = report(second).At {
	}
	_ = first.close()
	_ = second.close()
	if _, err := s.pool.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	// The limit, and the end. A place that is free again would be given to the one too many.
	await.Until(t, "both have left", func() bool { return len(s.api.hub.Keys()) == 0 })
	for range sse.MaxClients {
		open()
	}
	if status, body := s.ask("vera", "GET", "/api/v1/status/stream", ""); status != http.StatusTooManyRequests {
		t.Errorf("one stream too many: %d %s", status, body)
	}
	s.api.Close()
	if looks < 2 {
		t.Errorf("%d looks", looks)
	}
	if status, _ := s.ask("vera", "GET", "/api/v1/status/stream", ""); status != http.StatusTooManyRequests {
		t.Errorf("a stream of an API that has ended: %d", status)
	}
}

func TestResultsAndFaultsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	s := setup(t, nil)
	s.letters()
	base, _ := url.Parse(s.URL)
	for _, v := range verbs.All() {
		params := proper(v)
		want, wantErr := v.Run(t.Context(), s.pool, "oscar", params)
		r, err := Request(t.Context(), base, v, params)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Caller", "oscar")
		answer, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got, gotErr := Result(v, answer)
		_ = answer.Body.Close()
		if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) ||
			errors.Is(gotErr, admin.ErrNotFound) != errors.Is(wantErr, admin.ErrNotFound) ||
			fmt.Sprintf("%T", got) != fmt.Sprintf("%T", want) {
			t.Errorf("%s: %T %v, want %T %v", v.Name, got, gotErr, want, wantErr)
		}
	}
}
