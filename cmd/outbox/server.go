package main

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

// server is the API to use in place of a database, "" for none. An address of a database that is given goes before the
// environment's server.
func (a *app) server() string {
	if a.serverURL == "" && a.databaseURL == "" {
		return a.getenv("OUTBOX_SERVER")
	}
	return a.serverURL
}

// remote is a seat at a relay's API.
type remote struct {
	base   *url.URL
	login  func(*http.Request)
	client *http.Client
}

// remote reads who logs in where. Its errors repeat no secret.
func (a *app) remote(server string) (seat, error) {
	if a.databaseURL != "" {
		return nil, exit.Usagef("--server and --database-url exclude each other")
	}
	base, err := url.Parse(server)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, exit.Usagef("--server must be a URL such as https://relay.example.com:9187")
	}
	if base.User != nil {
		return nil, exit.Usagef("a password in --server can be seen by others on this machine: give OUTBOX_SERVER_USER and " +
			"OUTBOX_SERVER_PASSWORD, or --server-token-file")
	}
	if a.databaseName != "" {
		base = base.JoinPath("databases", a.databaseName)
	}
	r := remote{base: base, login: func(*http.Request) {}, client: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("it redirects elsewhere, where no credentials are sent: correct --server")
	}}}
	file := a.tokenFile
	if file == "" {
		file = a.getenv("OUTBOX_SERVER_TOKEN_FILE")
	}
	user, password := a.getenv("OUTBOX_SERVER_USER"), a.getenv("OUTBOX_SERVER_PASSWORD")
	switch {
	case file != "":
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, exit.With(exit.Config, fmt.Errorf("--server-token-file: %w", err))
		}
		token := strings.TrimSpace(string(text))
		a.secrets.add(token)
		r.login = func(q *http.Request) { q.Header.Set("Authorization", "Bearer "+token) }
	case user != "":
		a.secrets.add(password)
		r.login = func(q *http.Request) { q.SetBasicAuth(user, password) }
	}
	return r, nil
}

func (r remote) run(ctx context.Context, v verbs.Verb, _ string, params any) (any, error) {
	request, err := rest.Request(ctx, r.base, v, params)
	if err != nil {
		return nil, err
	}
	r.login(request)
	answer, err := r.client.Do(request)
	if err != nil {
		var where *url.Error
		if errors.As(err, &where) {
			err = where.Err // it has the query, and so keys
		}
		return nil, fmt.Errorf("no answer from the relay's API at %s: %w: check --server, and that a relay listens "+
			"there (http.listen)", r.base, err)
	}
	defer answer.Body.Close()
	return rest.Result(v, answer)
}

func (r remote) close() { r.client.CloseIdleConnections() }
