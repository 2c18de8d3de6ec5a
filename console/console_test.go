package console

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/sse"
	"github.com/pgoutbox/outbox/internal/testdb"
)

func TestMain(m *testing.M) { servers.Main(m) }

// site is a console over a fresh database, below a prefix. Who asks is in the header X-Caller.
type site struct {
	testdb.DB
	*httptest.Server
	console *Console
}

var callers = map[string]rest.Caller{
	"vera":   {Name: "vera", Role: verbs.Viewer},
	"oscar":  {Name: "oscar", Role: verbs.Operator},
	"kafkas": {Name: "kafkas", Role: verbs.Operator, Destinations: []string{"kafka"}},
}

// hostile is script for whatever place a page puts a text in.
const hostile = `<script>alert(1)</script>"><img src=x onerror=alert(1)>'` + "`\u202e"

func setup(t *testing.T, options Options) *site {
	t.Helper()
	s := &site{DB: testdb.Published(t)}
	pool, err := pgxpool.New(t.Context(), s.DB.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	options.API, err = rest.New(rest.Options{DB: pool, Challenge: `Basic realm="outbox"`, Access: func(r *http.Request) (rest.Caller, error) {
		c, ok := callers[r.Header.Get("X-Caller")]
		if !ok {
			return c, errors.New("say who you are")
		}
		return c, nil
	}})
	if err == nil {
		s.console, err = New(options)
	}
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/a/b/", http.StripPrefix("/a/b", s.console))
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		s.console.Close()
		s.Server.Close()
	})
	return s
}

// fill adds a cursor, dead letters, holds, an audit row and a relay, with texts that are hostile.
func (s *site) fill() {
	s.Exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier, owner, lease_until, lease, last_error, last_error_at)
		SELECT d, 0, 1, system_identifier, $1, clock_timestamp() + interval '1 hour', '1 hour', $1, now() FROM pg_control_system(), unnest(ARRAY['kafka', $1]) d`, hostile)
	s.Exec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, key, shard, payload, headers, created_at, attempts, reason, error, event_type, content_type)
		SELECT d, $1, i, ('00000000-0000-7000-8000-00000000000' || i)::uuid, $1, $1, 0, convert_to($1, 'UTF8'), jsonb_build_object($1::text, $1::text), now(), 10, 'refused', $1, $1, $1
		FROM generate_series(1, 3) i, unnest(ARRAY['kafka', $1]) d`, hostile)
	s.Exec(`INSERT INTO outbox.holds (destination, lane, id, message_id, topic, key, shard, payload, created_at, attempts, retry_at, error)
		VALUES ($1, $1, 9, '00000000-0000-7000-8000-000000000009', $1, $1, 0, 'x', now(), 2, 'infinity', $1)`, hostile)
	s.Exec(`INSERT INTO outbox.audit (actor, verb, destination, reason, detail) VALUES ($1, $1, $1, $1, jsonb_build_object($1::text, $1::text))`, hostile)
}

// visit makes a request and returns the answer with its body.
func (s *site) visit(caller, method, path string, form url.Values) (*http.Response, string) {
	s.T.Helper()
	r, err := http.NewRequestWithContext(s.T.Context(), method, s.Server.URL+"/a/b/"+path, strings.NewReader(form.Encode()))
	if err != nil {
		s.T.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.Header.Set("X-Caller", caller)
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(r)
	if err != nil {
		s.T.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		s.T.Fatal(err)
	}
	return answer, string(body)
}

var markup = regexp.MustCompile(`<[a-z/!][^>]*>`)

func TestNoTextOfOthersBecomesMarkupOnAnyPage(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	s.fill()
	id := "00000000-0000-7000-8000-000000000001"
	for path := range s.console.pages {
		for _, query := range []url.Values{{}, {"name": {hostile}, "destination": {hostile}, "ids": {id}, "message": {id},
			"_did": {hostile}, "topic": {hostile}, "key": {hostile}, "by": {hostile}}, {"ids": {id}, "message": {id}}} {
			answer, body := s.visit("oscar", "GET", path+"?"+query.Encode(), nil)
			if answer.StatusCode != http.StatusOK {
				t.Errorf("%s: %d", path, answer.StatusCode)
			}
			for _, tag := range markup.FindAllString(body, -1) {
				if strings.HasPrefix(tag, "<img") || strings.HasPrefix(tag, "<script>") ||
					strings.Contains(html.UnescapeString(tag), " onerror=") && !strings.Contains(tag, "&lt;img") {
					t.Errorf("%s: the page has %s", path, tag)
				}
			}
			if strings.Contains(markup.ReplaceAllString(body, ""), "\u202e") {
				t.Errorf("%s: the page turns the direction of writing", path)
			}
			if csp := answer.Header.Get("Content-Security-Policy"); !strings.HasPrefix(csp, "default-src 'none'") ||
				strings.Contains(csp, "unsafe") {
				t.Errorf("%s: the policy is %q", path, csp)
			}
			if strings.Contains(body, "<style") || strings.Contains(body, " style=") || strings.Contains(body, "href=\"/") || strings.Contains(body, "http://") {
				t.Errorf("%s: the page has a style of its own, or leads to a fixed place", path)
			}
		}
	}
	if _, body := s.visit("oscar", "GET", "letter?ids="+id+"&destination=kafka",
		nil); !strings.Contains(html.UnescapeString(body), "<script>alert(1)</script>") {
		t.Error("the letter's page doesn't show its payload: the test doesn't see what it is about")
	}
	edit := "do-dead-edit?destination=kafka&merge=&set=topic%3Dedited&message=" + id
	if answer, body := s.visit("oscar", "GET", edit, nil); answer.StatusCode != http.StatusOK ||
		!strings.Contains(body, "What was edited") || !strings.Contains(body, "<ins>edited</ins>") {
		t.Errorf("an edit isn't proposed with its difference: %d\n%s", answer.StatusCode, body)
	}
	form := url.Values{"message": {id}, "destination": {"kafka"}, "set": {"topic=edited"}, "reason": {"a test"},
		"_once": {"1"}, "_back": {"dead"}}
	// A proposal is posted, so that no address has the payload, and changes nothing.
	form.Set("_proposal", "1")
	answer, body := s.visit("oscar", "POST", "do-dead-edit", form)
	if answer.StatusCode != http.StatusOK || !strings.Contains(body, "<ins>edited</ins>") || strings.Contains(body, `method="get" class="act"`) {
		t.Errorf("an edit isn't proposed by a form: %d\n%s", answer.StatusCode, body)
	}
	if n := s.Value(`SELECT count(*)::text FROM outbox.dead_letters WHERE topic = 'edited'`); n != "0" {
		t.Errorf("a proposal has changed %s letters", n)
	}
	form.Del("_proposal")
	if answer, body := s.visit("oscar", "POST", "do-dead-edit", form); answer.StatusCode != http.StatusSeeOther {
		t.Errorf("an edit answers %d\n%s", answer.StatusCode, body)
	}
	for _, who := range []string{"oscar", "vera"} {
		if _, body := s.visit(who, "GET", "letter?ids="+id+"&destination=kafka", nil); !strings.Contains(body, "<ins>edited</ins>") {
			t.Errorf("%s doesn't see the difference:\n%s", who, body)
		}
	}
}

func TestEachLinkOfAPageLeadsSomewhere(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	s.fill()
	link := regexp.MustCompile(`(?:href|src)="([^"#]+)"`)
	seen, next := map[string]bool{}, []string{""}
	for len(next) > 0 {
		path := next[0]
		next = next[1:]
		if seen[path] {
			continue
		}
		seen[path] = true
		answer, body := s.visit("oscar", "GET", path, nil)
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%s answers %d", path, answer.StatusCode)
		}
		for _, m := range link.FindAllStringSubmatch(body, -1) {
			to, err := url.Parse(html.UnescapeString(m[1]))
			if err != nil || to.IsAbs() || strings.HasPrefix(to.Path, "/") {
				t.Fatalf("%s leads to %s: %v", path, m[1], err)
			}
			next = append(next, strings.TrimPrefix(to.String(), "./"))
		}
		if len(seen) > 400 {
			break // the rest is what the last pages lead to
		}
	}
	if len(seen) < 40 {
		t.Errorf("only %d addresses were found", len(seen))
	}
	if answer, _ := s.visit("oscar", "GET", "nothing", nil); answer.StatusCode != http.StatusNotFound {
		t.Errorf("a page that isn't there answers %d", answer.StatusCode)
	}
}

var shown = regexp.MustCompile(`name="(_once|max)" value="([^"]*)"`)

func TestEachVerbHasAPage(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	s.fill()
	for _, v := range verbs.All() {
		path := "ask-" + slug(v.Name)
		if v.Role == verbs.Operator {
			path = "do-" + slug(v.Name)
		}
		answer, body := s.visit("oscar", "GET", path, nil)
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%s answers %d", path, answer.StatusCode)
		}
		for _, p := range v.Params {
			if !strings.Contains(body, `name="`+p.Name+`"`) && p.Name != "dry_run" {
				t.Errorf("%s has no field for %s", path, p.Name)
			}
		}
	}
	if _, body := s.visit("oscar", "GET", "ask-dead-ls?destination=kafka&limit=2", nil); strings.Count(body,
		"<tr>") != 3 || !strings.Contains(body, "Message") {
		t.Errorf("two dead letters are not a table of two:\n%s", body)
	}
	if answer, body := s.visit("vera", "GET", "ask-dead-ls?payload=true",
		nil); answer.StatusCode != http.StatusForbidden || !strings.Contains(body, "is for operators") {
		t.Errorf("a viewer asks for payloads: %d", answer.StatusCode)
	}
	answer, _ := s.visit("oscar", "POST", "do-canary", url.Values{"topic": {"canaries"}, "wait": {"1s"}, "reason": {"a test"}})
	if where, _ := url.QueryUnescape(answer.Header.Get("Location")); answer.StatusCode != http.StatusSeeOther ||
		!strings.Contains(where, "Kafka has not come to it.") && !strings.Contains(where, "kafka has not come to it.") {
		t.Errorf("a canary that nobody delivers: %d %s", answer.StatusCode, where)
	}
	if answer, _ := s.visit("oscar", "GET", "ask-dead-ls?limit=x", nil); answer.StatusCode != http.StatusBadRequest {
		t.Errorf("a limit that is no number: %d", answer.StatusCode)
	}
	_, body := s.visit("oscar", "GET", "do-dead-ack?ids=00000000-0000-7000-8000-000000000001&"+
		"ids=00000000-0000-7000-8000-000000000002&destination=kafka", nil)
	if !strings.Contains(body, "Acknowledge 2 messages") {
		t.Errorf("two that are ticked: %s", body)
	}
}

func TestAnActionIsDoneOnceAndToNoMoreThanWasShown(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	s.fill()
	_, body := s.visit("oscar", "GET", "do-dead-discard?destination=kafka&_back=dead%3F", nil)
	form := url.Values{"destination": {"kafka"}, "reason": {"they are wrong"}, "_back": {"dead?"}}
	for _, m := range shown.FindAllStringSubmatch(body, -1) {
		form.Set(m[1], m[2])
	}
	if form.Get("max") != "3" || !strings.Contains(body, "Discard 3 messages") ||
		!strings.Contains(body, "outbox dead discard --destination kafka --max 3") {
		t.Fatalf("the page doesn't tell of three messages: %s", body)
	}
	if n := s.Value(`SELECT count(*)::text FROM outbox.dead_letters WHERE destination = 'kafka'`); n != "3" {
		t.Fatalf("looking has left %s", n)
	}
	s.Exec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, shard, created_at, attempts, reason, error)
		VALUES ('kafka', 'k', 7, '00000000-0000-7000-8000-000000000007', 'orders', 0, now(), 1, 'refused', 'later')`)
	if answer, body := s.visit("oscar", "POST", "do-dead-discard", form); answer.StatusCode != http.StatusConflict ||
		!strings.Contains(body, "4 are selected") {
		t.Errorf("a fourth that died meanwhile: %d %s", answer.StatusCode, body)
	}
	s.Exec(`DELETE FROM outbox.dead_letters WHERE id = 7`)
	for range 2 {
		answer, body := s.visit("oscar", "POST", "do-dead-discard", form)
		if answer.StatusCode != http.StatusSeeOther || !strings.HasPrefix(answer.Header.Get("Location"), "dead?_did=Discard") {
			t.Fatalf("%d %s %s", answer.StatusCode, answer.Header.Get("Location"), body)
		}
		if _, body := s.visit("oscar", "GET", answer.Header.Get("Location"), nil); !strings.Contains(body, `href="do-jobs-undo?`) ||
			!strings.Contains(body, `href="ask-jobs-show?id=`) {
			t.Errorf("nothing leads to an undo: %s", body)
		}
	}
	if n := s.Value(`SELECT count(*)::text FROM outbox.audit WHERE actor = 'oscar' AND verb = 'discard' AND reason = 'they are wrong'`); n != "1" {
		t.Errorf("the audit has %s entries", n)
	}
	s.Exec(`UPDATE outbox.jobs SET next_at = clock_timestamp() WHERE state = 'running'`) // the time for an undo is over
	conn, err := pgx.Connect(t.Context(), s.DB.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if err := jobs.RunAll(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if n := s.Value(`SELECT count(*)::text FROM outbox.dead_letters WHERE destination = 'kafka'`); n != "0" {
		t.Errorf("%s are left", n)
	}
}

func TestWhoMayNotActSeesNoButtonsAndIsRefused(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	s.fill()
	for path := range s.console.pages {
		if _, body := s.visit("vera", "GET", path+"?name=kafka&ids=00000000-0000-7000-8000-000000000001&destination=kafka", nil); strings.Contains(body, `href="do-`) ||
			strings.Contains(body, "alert(1)&lt;/script&gt;&#34;&gt;&lt;img src=x onerror=alert(1)&gt;&#39;`") &&
				path == "letter" && !strings.Contains(body, "Operators see it") {
			t.Errorf("%s: a viewer is offered an action or a payload", path)
		}
	}
	for _, v := range verbs.All() {
		path := "do-" + strings.ReplaceAll(v.Name, " ", "-")
		for _, method := range []string{"GET", "POST"} {
			want := http.StatusForbidden
			if v.Role == verbs.Viewer {
				want = http.StatusNotFound
			}
			if answer, _ := s.visit("vera", method, path, url.Values{}); answer.StatusCode != want {
				t.Errorf("a viewer's %s %s answers %d, want %d", method, path, answer.StatusCode, want)
			}
		}
	}
	if answer, _ := s.visit("kafkas", "GET", "do-pause?destination=other", nil); answer.StatusCode != http.StatusForbidden {
		t.Errorf("an operator of kafka pauses another: %d", answer.StatusCode)
	}
	if answer, _ := s.visit("kafkas", "GET", "do-pause?destination=kafka", nil); answer.StatusCode != http.StatusOK {
		t.Errorf("an operator of kafka pauses it: %d", answer.StatusCode)
	}
	answer, _ := s.visit("", "GET", "", nil)
	if answer.StatusCode != http.StatusUnauthorized || answer.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("somebody unknown: %d %v", answer.StatusCode, answer.Header)
	}
	r, err := http.NewRequestWithContext(t.Context(), "POST", s.Server.URL+"/a/b/do-pause", strings.NewReader("destination=kafka&reason=x"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Caller", "oscar")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	refused, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = refused.Body.Close()
	if refused.StatusCode != http.StatusForbidden || s.Value(`SELECT count(*)::text FROM outbox.controls`) != "0" {
		t.Errorf("a page of another site pauses: %d", refused.StatusCode)
	}
}

// stream opens a live page. read waits until a text has come.
func (s *site) stream(ctx context.Context, of string) (answer *http.Response, read func(text string)) {
	s.T.Helper()
	r, err := http.NewRequestWithContext(ctx, "GET", s.Server.URL+"/a/b/live?of="+of, nil)
	if err != nil {
		s.T.Fatal(err)
	}
	r.Header.Set("X-Caller", "vera")
	if answer, err = http.DefaultClient.Do(r); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { answer.Body.Close() })
	var seen strings.Builder
	buffer := make([]byte, 64<<10)
	return answer, func(text string) {
		s.T.Helper()
		for !strings.Contains(seen.String(), text) {
			n, err := answer.Body.Read(buffer)
			if err != nil {
				s.T.Fatalf("%q has not come: %v\n%s", text, err, seen.String())
			}
			seen.Write(buffer[:n])
		}
	}
}

// drawn lists the pages that are made again and again.
func (s *site) drawn() []string {
	return s.console.hub.Keys()
}

func TestAPageThatIsOpenGetsWhatChanges(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	s.fill()
	ctx := await.Context(t)
	_, read := s.stream(ctx, "dead")
	read("event: put")
	s.Exec(`INSERT INTO outbox.dead_letters (destination, lane, id, message_id, topic, shard, created_at, attempts, reason, error)
		VALUES ('kafka', 'k', 7, '00000000-0000-7000-8000-000000000007', 'orders', 0, now(), 1, 'refused', 'a fresh death')`)
	read("a fresh death")
	if all := s.drawn(); len(all) != 1 {
		t.Errorf("the pages that are drawn: %q", all)
	}
}

func TestAPageIsDrawnOnceForAllWhoLookAtIt(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	s.fill()
	ctx, cancel := context.WithCancel(await.Context(t))
	for range sse.MaxClients {
		_, read := s.stream(ctx, "dead")
		read("event: put") // at once, and not when the page is drawn again
	}
	if all := s.drawn(); len(all) != 1 {
		t.Errorf("the pages that are drawn: %q", all)
	}
	if answer, _ := s.stream(ctx, "dead"); answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == "" {
		t.Errorf("one more than may look on gets %s", answer.Status)
	}
	cancel()
	await.Until(t, "the page to be drawn no more", func() bool { return len(s.drawn()) == 0 })
	_, read := s.stream(await.Context(t), "dead")
	read("event: put")
}

func TestThePanelsButtonsArePressed(t *testing.T) {
	t.Parallel()
	pressed := make(chan string, 1)
	s := setup(t, Options{Panel: &Panel{Title: "Break it",
		Buttons: []Button{{"broker", "Broker down", "It goes away.", func() { pressed <- "broker" }}}}})
	if _, body := s.visit("vera", "GET", "", nil); !strings.Contains(body, "Broker down") {
		t.Error("the overview has no button")
	}
	if answer, _ := s.visit("vera", "POST", "press",
		url.Values{"button": {"broker"}}); answer.StatusCode != http.StatusSeeOther || <-pressed != "broker" {
		t.Errorf("pressing answers %d", answer.StatusCode)
	}
	if answer, _ := s.visit("vera", "POST", "press", url.Values{"button": {"other"}}); answer.StatusCode != http.StatusNotFound {
		t.Errorf("another button answers %d", answer.StatusCode)
	}
}

func TestRatesAreShort(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"12.3k": rate(12345), "0": rate(0), "0.4": rate(.4), "–": rate(nan),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTheHistoryKeepsAnHourAndADay(t *testing.T) {
	t.Parallel()
	var r ring
	r.size = 4
	for slot := int64(10); slot < 17; slot++ {
		if slot != 13 {
			r.put(slot, Point{In: float32(slot)})
		}
	}
	text := ""
	for _, p := range r.until(17, 6) {
		text += fmt.Sprint(p.In, " ")
	}
	if text != "NaN NaN 14 15 16 NaN " {
		t.Errorf("the ring has %s", text)
	}
	for d, most := range map[time.Duration]time.Duration{time.Microsecond: 2 * time.Microsecond,
		999 * time.Microsecond: 1024 * time.Microsecond,
		41 * time.Millisecond:  52 * time.Millisecond, time.Hour: 75 * time.Minute} {
		if got := time.Duration(float64(upper(bucketOf(d))) * float64(time.Second)); got < d || got > most {
			t.Errorf("%v counts as up to %v", d, got)
		}
	}
	var h histogram
	for i := range 100 {
		h[bucketOf(time.Duration(i+1)*time.Millisecond)]++
	}
	if p50, p95, p99 := h.percentiles(); p50 < .05 || p50 > .0625 || p95 < .095 || p95 > .12 || p99 < .099 || p99 > .13 {
		t.Errorf("the percentiles of 1 to 100 ms are %v, %v, %v", p50, p95, p99)
	}
}

func TestAMessageIsFoundAndItsLifeIsTold(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	s.fill()
	s.Exec(`INSERT INTO outbox.messages (message_id, topic, key, payload, event_type, headers)
		VALUES ('00000000-0000-7000-8000-000000000001', 'orders', 'k', 'secret', 'placed', '{"tenant":"acme"}')`)
	for query, want := range map[string]bool{"key=k": true, "topic=orders": true, "header=tenant%3Dacme": true, "topic=none": false,
		"message=00000000-0000-7000-8000-000000000001": true} {
		more := regexp.MustCompile(`href="(messages\?[^"]*after=[^"]*)">More`)
		found, page := false, "messages?"+query
		for page != "" { // a busy machine sees less at once
			_, body := s.visit("vera", "GET", page, nil)
			found = found || strings.Contains(body, `href="message?message=00000000-0000-7000-8000-000000000001"`)
			if page = ""; more.MatchString(body) {
				page = html.UnescapeString(more.FindStringSubmatch(body)[1])
			}
		}
		if found != want {
			t.Errorf("%s: found is %v", query, found)
		}
	}
	for caller, sees := range map[string]bool{"oscar": true, "vera": false} {
		_, body := s.visit(caller, "GET", "message?message=00000000-0000-7000-8000-000000000001", nil)
		for _, text := range []string{"written", ">dead<", "acme", "placed", `href="letter?`} {
			if !strings.Contains(body, text) {
				t.Errorf("%s doesn't see %q", caller, text)
			}
		}
		if strings.Contains(body, "secret") != sees {
			t.Errorf("%s sees the payload: %v", caller, !sees)
		}
	}
}

// The first look at the newest messages ends at a lock. The page looks on, and isn't empty.
func TestThePageOfMessagesLooksOnBeforeItIsEmpty(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	s.fill()
	s.Exec(`INSERT INTO outbox.messages (message_id, topic) VALUES ('00000000-0000-7000-8000-000000000007', 'orders')`)
	tx, err := s.Connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK outbox.messages IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	page := make(chan string, 1)
	go func() {
		_, body := s.visit("vera", "GET", "messages", nil)
		page <- body
	}()
	observer, waited := s.Connect(), map[string]bool{}
	await.Until(t, "a second look waits for the lock", func() bool {
		rows, err := observer.Query(t.Context(), `SELECT query_start::text FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`)
		if err != nil {
			t.Fatal(err)
		}
		starts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, start := range starts {
			waited[start] = true
		}
		return len(waited) > 1 || len(page) > 0 // a page that came has looked more than once
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	// On a machine that stands still, the second look ends at the lock as well, and says that there is more.
	if body := <-page; !strings.Contains(body, `href="message?message=00000000-0000-7000-8000-000000000007"`) && !strings.Contains(body, ">More<") {
		t.Errorf("the page is empty: %s", body)
	}
}

func TestWhatWasFoundIsReplayedFromItsPage(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	s.fill()
	const id = "00000000-0000-7000-8000-000000000042"
	s.Exec(`INSERT INTO outbox.messages (message_id, topic, key) VALUES ('` + id + `', 'orders', 'k')`)
	s.Exec(`UPDATE outbox.cursors SET prev = pg_current_snapshot() WHERE destination = 'kafka'`)
	for caller, may := range map[string]bool{"oscar": true, "vera": false} {
		_, one := s.visit(caller, "GET", "message?message="+id, nil)
		_, many := s.visit(caller, "GET", "messages?key=k", nil)
		_, all := s.visit(caller, "GET", "messages", nil)
		if strings.Contains(one, `href="do-replay?destination=kafka&amp;ids=`+id) != may ||
			strings.Contains(many, `href="do-replay?key=k`) != may ||
			strings.Contains(all, "do-replay") {
			t.Errorf("%s: buttons of one, of many, of all: %s %s %s", caller, one, many, all)
		}
	}
	form := url.Values{"key": {"k"}, "destination": {"kafka"}, "reason": {"lost"}, "_once": {"1"}, "_back": {"messages?key=k"},
		"_proposal": {"1"}}
	if _, body := s.visit("oscar", "POST", "do-replay", form); !strings.Contains(body, "Replay 1 message") ||
		!strings.Contains(body, "passed") {
		t.Errorf("the proposal: %s", body)
	}
	form.Del("_proposal")
	if answer, body := s.visit("oscar", "POST", "do-replay", form); answer.StatusCode != http.StatusSeeOther ||
		!strings.HasPrefix(answer.Header.Get("Location"), "messages?_did=Replay") {
		t.Errorf("%d %s %s", answer.StatusCode, answer.Header.Get("Location"), body)
	}
	if n := s.Value(`SELECT count(*)::text FROM outbox.jobs WHERE verb = 'replay' AND state = 'running' AND total = 1`); n != "1" {
		t.Errorf("%s jobs", n)
	}
}

func TestDeadLettersOfATableThatExistsAreRequeuedFromTheirPage(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	s.Exec(`CREATE TABLE events (id bigint PRIMARY KEY, payload text NOT NULL, status text NOT NULL, error text, attempts int NOT NULL)`)
	s.Exec(`INSERT INTO events SELECT i, 'secret', CASE WHEN i < 3 THEN 'failed' ELSE 'new' END, $1, 5 FROM generate_series(1, 3) i`, hostile)
	s.Exec(`INSERT INTO outbox.tables (destination, shard_group, owner, shard_groups, session, strategy, mapping, state, state_since, lag_objective)
		VALUES ('shop', 0, 'one', 1, 'none', 'advisory', $1::text::jsonb, 'idle', now(), '0')`,
		`{"Table": "events", "ID": "id", "Payload": "payload", "Topic": "t", "Done": {"How": "status", "Column": "status", "Value": "done", "Waiting": "new"},
			"Failure": {"Attempts": "attempts", "Error": "error", "FailedValue": "failed"}}`)
	for caller, may := range map[string]bool{"oscar": true, "vera": false} {
		_, body := s.visit(caller, "GET", "rows?destination=shop", nil)
		if strings.Contains(body, `href="do-tables-requeue?destination=shop&amp;ids=2`) != may || !strings.Contains(body, "events") ||
			strings.Contains(body, "<script>alert") || strings.Contains(body, "secret") {
			t.Errorf("%s sees %s", caller, body)
		}
	}
	form := url.Values{"destination": {"shop"}, "ids": {"2"}, "reason": {"cured"}, "_once": {"1"}, "_proposal": {"1"},
		"_back": {"rows?destination=shop"}}
	if _, body := s.visit("oscar", "POST", "do-tables-requeue", form); !strings.Contains(body, "Requeue 1 message") {
		t.Errorf("the proposal: %s", body)
	}
	form.Del("_proposal")
	if answer, body := s.visit("oscar", "POST", "do-tables-requeue", form); answer.StatusCode != http.StatusSeeOther {
		t.Errorf("%d %s", answer.StatusCode, body)
	}
	if got := s.Value(`SELECT string_agg(concat_ws(' ', id, status, attempts, error IS NULL), ', ' ORDER BY id) FROM events`); got != "1 failed 5 f, 2 new 0 t, 3 new 5 f" {
		t.Errorf("the table has %s", got)
	}
}

func TestTheHelpTellsOfEachState(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	_, body := s.visit("vera", "GET", "help", nil)
	for _, state := range health.States() {
		if !regexp.MustCompile(`<b>` + state.Word() + `</b></span></td><td[^>]*>[^<]`).MatchString(body) {
			t.Errorf("nothing is said of %q", state)
		}
	}
}

func TestAnEmptyListSaysWhyUnlessItIsASelection(t *testing.T) {
	t.Parallel()
	s := setup(t, Options{})
	const why = "nothing is retried, delayed, paused or blocked"
	if _, body := s.visit("vera", "GET", "keys", nil); !strings.Contains(body, why) {
		t.Errorf("all: %s", body)
	}
	if _, body := s.visit("vera", "GET", "keys?key=k", nil); strings.Contains(body, why) || !strings.Contains(body, "Show all") {
		t.Errorf("one key: %s", body)
	}
}
