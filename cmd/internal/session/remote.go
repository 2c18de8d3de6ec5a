package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
)

// remote runs verbs at a relay's API.
type remote struct {
	base   *url.URL
	login  func(*http.Request)
	client *http.Client
}

// remote reads who logs in where. Its errors repeat no secret.
func (s *Session) remote(server string) (r remote, err error) {
	if s.DatabaseURL != "" {
		return r, exit.Usagef("--server and --database-url exclude each other")
	}
	base, err := url.Parse(server)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return r, exit.Usagef("--server must be a URL such as https://relay.example.com:9187")
	}
	if base.User != nil {
		return r, exit.Usagef("a password in --server can be seen by others on this machine: give OUTBOX_SERVER_USER and " +
			"OUTBOX_SERVER_PASSWORD, or --server-token-file")
	}
	if s.databaseName != "" {
		base = base.JoinPath("databases", s.databaseName)
	}
	r = remote{base: base, login: func(*http.Request) {}, client: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("it redirects elsewhere, where no credentials are sent: correct --server")
	}}}
	file := s.tokenFile
	if file == "" {
		file = s.Getenv("OUTBOX_SERVER_TOKEN_FILE")
	}
	user, password := s.Getenv("OUTBOX_SERVER_USER"), s.Getenv("OUTBOX_SERVER_PASSWORD")
	switch {
	case file != "":
		text, err := os.ReadFile(file)
		if err != nil {
			return r, exit.With(exit.Config, fmt.Errorf("--server-token-file: %w", err))
		}
		token := strings.TrimSpace(string(text))
		s.secrets.add(token)
		r.login = func(q *http.Request) { q.Header.Set("Authorization", "Bearer "+token) }
	case user != "":
		s.secrets.add(password)
		r.login = func(q *http.Request) { q.SetBasicAuth(user, password) }
	}
	return r, nil
}

func (r remote) Run(ctx context.Context, v verbs.Verb, _ string, params any) (any, error) {
	request, err := rest.Request(ctx, r.base, v, params)
	if err != nil {
		return nil, err
	}
	answer, err := r.ask(request, "the relay's API")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	return rest.Result(v, answer)
}

// get asks for what the port answers at a path.
func (r remote) get(ctx context.Context, path, query, what string) (*http.Response, error) {
	at := r.base.JoinPath(path)
	at.RawQuery = query
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	return r.ask(request, what)
}

// ask sends a request with the login. what is asked, for an error.
func (r remote) ask(request *http.Request, what string) (*http.Response, error) {
	r.login(request)
	answer, err := r.client.Do(request)
	if err != nil {
		var where *url.Error
		if errors.As(err, &where) {
			err = where.Err // it has the query, and so keys
		}
		return nil, fmt.Errorf("no answer from %s at %s: %w: check --server, and that a relay listens there (http.listen)",
			what, r.base, err)
	}
	return answer, nil
}

func (r remote) Close() { r.client.CloseIdleConnections() }
