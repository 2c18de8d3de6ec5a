package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

// Running is what a relay with several databases says of itself at /readyz.
type Running struct {
	Databases map[string]struct {
		Settings string `json:"settings"`
	} `json:"databases"`
	Discovery []struct {
		Source   string   `json:"source"`
		Withheld []string `json:"withheld"`
	} `json:"discovery"`
}

// Running asks the relay of --server which databases it has.
func (s *Session) Running(ctx context.Context) (*Running, error) {
	r, err := s.remote(s.Server())
	if err != nil {
		return nil, err
	}
	defer r.Close()
	at := r.base.JoinPath("readyz")
	at.RawQuery = "all=true"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	r.login(request)
	answer, err := r.client.Do(request)
	if err != nil {
		var where *url.Error
		if errors.As(err, &where) {
			err = where.Err
		}
		return nil, fmt.Errorf("no answer from the relay at %s: %w: check --server, and that a relay listens there (http.listen)",
			r.base, err)
	}
	defer answer.Body.Close()
	var running Running
	if err := json.NewDecoder(answer.Body).Decode(&running); err != nil || running.Databases == nil {
		return nil, fmt.Errorf("%s does not list databases: is it a relay whose configuration has databases or discover?", at)
	}
	return &running, nil
}
