package session

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/report"
)

// Ask asks the relay of --server for a path of its API.
func (s *Session) Ask(ctx context.Context, path string) ([]byte, error) {
	answer, close, err := s.ask(ctx, path, "")
	if err != nil {
		return nil, err
	}
	defer close()
	switch answer.StatusCode {
	case http.StatusOK:
		return io.ReadAll(answer.Body)
	case http.StatusNotFound:
		return nil, fmt.Errorf("the relay at %s is in no fleet, or serves no API (http.api)", s.Server())
	}
	_, err = rest.Result(verbs.Status(), answer)
	return nil, err
}

func (s *Session) ask(ctx context.Context, path, query string) (answer *http.Response, close func(), err error) {
	r, err := s.remote(s.Server())
	if err != nil {
		return nil, nil, err
	}
	if answer, err = r.get(ctx, path, query, "the relay's API"); err != nil {
		return nil, nil, err
	}
	return answer, func() { _ = answer.Body.Close(); r.Close() }, nil
}

// Known is what the relay of --server knows of all its databases, without asking them: a report of each. several is
// false where there is no server, or a database is named, or the server has only one. Unless whole is true, those that
// are well have little more than their verdicts.
func (s *Session) Known(ctx context.Context, whole bool) (results []Result, several bool, err error) {
	if s.Server() == "" || s.databaseName != "" {
		return nil, false, nil
	}
	query := ""
	if whole {
		query = "whole=true"
	}
	answer, close, err := s.ask(ctx, report.KnownPath, query)
	if err != nil {
		return nil, false, err
	}
	defer close()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound: // it has one, and is asked for that
		return nil, false, nil
	default:
		_, err := rest.Result(verbs.Status(), answer)
		return nil, false, err
	}
	var known report.KnownDatabases
	if err := json.NewDecoder(answer.Body).Decode(&known); err != nil {
		return nil, false, fmt.Errorf("read the server's answer: %w", err)
	}
	for _, db := range known.Databases {
		results = append(results, Result{Name: db.Name, Value: db.Report, Elsewhere: db.Elsewhere})
	}
	if !slices.ContainsFunc(results, func(r Result) bool { return !r.Elsewhere }) {
		return nil, false, fmt.Errorf("the relay at %s delivers from none of its %d databases: ask another member of its fleet",
			s.Server(), len(results))
	}
	return results, true, nil
}
