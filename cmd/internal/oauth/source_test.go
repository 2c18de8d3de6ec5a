package oauth

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
)

// authority is a token server. answer may be replaced between requests.
type authority struct {
	*httptest.Server
	asked atomic.Int64

	mu     sync.Mutex
	answer http.HandlerFunc
}

func newAuthority(t *testing.T, start func(*httptest.Server), answer http.HandlerFunc) *authority {
	t.Helper()
	a := &authority{answer: answer}
	a.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.asked.Add(1)
		_ = r.ParseForm() // a server sees that a client is gone once the body is read
		a.mu.Lock()
		defer a.mu.Unlock()
		a.answer(w, r)
	}))
	a.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	start(a.Server)
	t.Cleanup(a.Close)
	return a
}

func (a *authority) say(answer http.HandlerFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// grants answers with token-1, token-2 and so on, to who knows the secret.
func grants(life int) http.HandlerFunc {
	n := 0
	return func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != "relay" || password != "s3cret" {
			says(http.StatusUnauthorized, `{"error":"invalid_client","error_description":"no such client"}`)(w, r)
			return
		}
		n++
		says(http.StatusOK, fmt.Sprintf(`{"access_token":"token-%d","token_type":"Bearer","expires_in":%d}`, n, life))(w, r)
	}
}

func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "https://elsewhere.example/login")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// clock is moved by hand.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time       { return time.Unix(0, c.at.Load()) }
func (c *clock) pass(d time.Duration) { c.at.Add(int64(d)) }

func newSource(t *testing.T, url string, cfg Config) (*Source, *clock) {
	t.Helper()
	cfg.TokenURL, cfg.ClientID = url, "relay"
	if cfg.ClientSecret == "" {
		cfg.ClientSecret = "s3cret"
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &clock{}
	c.at.Store(time.Now().UnixNano())
	s.now = c.now
	return s, c
}

func wantToken(t *testing.T, s *Source, want string) {
	t.Helper()
	if got, err := s.Token(t.Context()); err != nil || got != want {
		t.Fatalf("token %q, error %v; want %q", got, err, want)
	}
}

func TestATokenIsKeptAndRenewedBeforeItExpires(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, (*httptest.Server).Start, grants(1000))
	s, c := newSource(t, a.URL, Config{})
	wantToken(t, s, "token-1")
	c.pass(790 * time.Second)
	wantToken(t, s, "token-1")
	c.pass(20 * time.Second)
	wantToken(t, s, "token-2")
}

func TestATokenOfAShortLifeIsRenewedWhileASessionCanBegin(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, (*httptest.Server).Start, grants(10))
	s, c := newSource(t, a.URL, Config{})
	wantToken(t, s, "token-1")
	c.pass(6500 * time.Millisecond)
	wantToken(t, s, "token-1")
	c.pass(time.Second)
	wantToken(t, s, "token-2")
}

func TestATokenWhoseLifeIsUnknownIsKeptForAMinute(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, (*httptest.Server).Start, grants(0))
	s, c := newSource(t, a.URL, Config{})
	wantToken(t, s, "token-1")
	c.pass(59 * time.Second)
	wantToken(t, s, "token-1")
	c.pass(2 * time.Second)
	wantToken(t, s, "token-2")
}

func TestAnOldTokenIsUsedWhileThereIsNoNewOne(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, (*httptest.Server).Start, grants(1000))
	var log bytes.Buffer
	s, c := newSource(t, a.URL, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	wantToken(t, s, "token-1")
	a.say(says(http.StatusServiceUnavailable, ""))
	c.pass(900 * time.Second)
	wantToken(t, s, "token-1")
	asked := a.asked.Load()
	wantToken(t, s, "token-1")
	if a.asked.Load() != asked {
		t.Error("a server without an answer was asked again at once")
	}
	if !strings.Contains(log.String(), "no new token") || strings.Contains(log.String(), "token-1") {
		t.Errorf("logged: %s", &log)
	}
	c.pass(200 * time.Second)
	if token, err := s.Token(t.Context()); err == nil {
		t.Errorf("token %q is used after it has expired", token)
	}
}

func TestAServerThatGaveNoTokenIsAskedAgainAfterASecond(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, (*httptest.Server).Start, says(http.StatusInternalServerError, ""))
	s, c := newSource(t, a.URL, Config{})
	_, first := s.Token(t.Context())
	asked := a.asked.Load()
	_, second := s.Token(t.Context())
	if first == nil || second == nil || a.asked.Load() != asked {
		t.Fatalf("errors %v and %v, and %d requests more", first, second, a.asked.Load()-asked)
	}
	a.say(grants(1000))
	c.pass(2 * time.Second)
	wantToken(t, s, "token-1")
}

func TestManyConnectionsFetchOneToken(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, (*httptest.Server).Start, grants(1000))
	s, _ := newSource(t, a.URL, Config{})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if got, err := s.Token(t.Context()); err != nil || got != "token-1" {
				t.Errorf("token %q, error %v", got, err)
			}
		})
	}
	all.Wait()
	if n := a.asked.Load(); n != 1 {
		t.Errorf("the server was asked %d times", n)
	}
}

func TestTheRequestHasScopesAndParameters(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, (*httptest.Server).Start, func(w http.ResponseWriter, r *http.Request) {
		form := r.FormValue("grant_type") + " " + r.FormValue("scope") + " " + r.FormValue("audience")
		says(http.StatusOK, fmt.Sprintf(`{"access_token":%q}`, form))(w, r)
	})
	s, _ := newSource(t, a.URL, Config{Scopes: []string{"kafka", "write"}, Parameters: map[string]string{"audience": "cluster"}})
	wantToken(t, s, "client_credentials kafka write cluster")
}

func TestASecretMayGoIntoTheBody(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, (*httptest.Server).Start, func(w http.ResponseWriter, r *http.Request) {
		if r.PostFormValue("client_secret") != "s3cret" {
			says(http.StatusUnauthorized, `{"error":"invalid_client"}`)(w, r)
			return
		}
		says(http.StatusOK, `{"access_token":"by body"}`)(w, r)
	})
	s, _ := newSource(t, a.URL, Config{})
	wantToken(t, s, "by body")
}

func TestWhyThereIsNoTokenIsSaidWithWhatToDo(t *testing.T) {
	t.Parallel()
	const secret = "s3cret-that-nobody-sees"
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"wrong secret": {grants(1000), `401 Unauthorized, "invalid_client": "no such client"; check client_id and client_secret`},
		"bare 401":     {says(http.StatusUnauthorized, "<html>"+secret), "401 Unauthorized; check client_id and client_secret"},
		"scope":        {says(http.StatusBadRequest, `{"error":"invalid_scope"}`), "check scopes"},
		"grant":        {says(http.StatusBadRequest, `{"error":"unauthorized_client"}`), "allow the client the grant client_credentials"},
		"forbidden":    {says(http.StatusForbidden, ``), "allow the client"},
		"other place":  {says(http.StatusNotFound, `nothing here`), "check token_url"},
		"redirect":     {says(http.StatusTemporaryRedirect, ``), `redirects to "https://elsewhere.example/login"`},
		"fault":        {says(http.StatusBadGateway, `<html>`), "502 Bad Gateway; it is asked again"},
		"other fault":  {says(http.StatusBadRequest, `{"error":"invalid_request"}`), `"invalid_request"; see its log`},
		"no token":     {says(http.StatusOK, `{"id_token":"`+secret+`"}`), "has no access_token"},
		"a web page":   {says(http.StatusOK, `<html>`+secret), "check that token_url is the token endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t, (*httptest.Server).Start, c.answer)
			s, _ := newSource(t, a.URL, Config{ClientSecret: secret})
			_, err := s.Token(t.Context())
			wantFault(t, err, c.want)
			if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "<html>") {
				t.Errorf("it shows too much: %v", err)
			}
		})
	}
}

func TestAServerThatIsAwayOrSilentIsAnOutage(t *testing.T) {
	t.Parallel()
	away := newAuthority(t, (*httptest.Server).Start, grants(1))
	away.Close()
	s, _ := newSource(t, away.URL, Config{})
	_, err := s.Token(t.Context())
	wantFault(t, err, "refused", "check token_url, and that the server can be reached")

	silent := newAuthority(t, (*httptest.Server).Start, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	s, _ = newSource(t, silent.URL, Config{Timeout: await.Expiry(50 * time.Millisecond)})
	_, err = s.Token(t.Context())
	wantFault(t, err, "Client.Timeout exceeded", "check token_url")
}

func TestACallerThatGivesUpLeavesNoFaultBehind(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, (*httptest.Server).Start, nil)
	s, _ := newSource(t, a.URL, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	a.say(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	_, err := s.Token(ctx)
	wantFault(t, err, "gave up waiting")
	a.say(grants(1000))
	wantToken(t, s, "token-1")
}

func TestTheCertificateOfTheServerIsChecked(t *testing.T) {
	t.Parallel()
	a := newAuthority(t, (*httptest.Server).StartTLS, grants(1000))
	trusted := x509.NewCertPool()
	trusted.AddCert(a.Certificate())
	s, _ := newSource(t, a.URL, Config{TLS: &tls.Config{RootCAs: trusted}})
	wantToken(t, s, "token-1")

	s, _ = newSource(t, a.URL, Config{})
	_, err := s.Token(t.Context())
	wantFault(t, err, "certificate of the token server isn't trusted", "tls.ca_file")

	s, _ = newSource(t, a.URL, Config{TLS: &tls.Config{RootCAs: trusted, ServerName: "login.example.org"}})
	_, err = s.Token(t.Context())
	wantFault(t, err, "login.example.org", "check the host in token_url")
}

func TestAConfigurationThatLacksSomethingIsRefused(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{},
		{TokenURL: "login.example.com", ClientID: "a", ClientSecret: "b"},
		{TokenURL: "ftp://login.example.com", ClientID: "a", ClientSecret: "b"},
		{TokenURL: "https://login.example.com", ClientID: "a"},
		{TokenURL: "https://login.example.com", ClientSecret: "b"},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("taken: %+v", cfg)
		}
	}
}

func wantFault(t *testing.T, err error, parts ...string) {
	t.Helper()
	if !outbox.IsUnavailable(err) {
		t.Fatalf("error %v, want an unavailable one", err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q doesn't have %q", err, part)
		}
	}
}
