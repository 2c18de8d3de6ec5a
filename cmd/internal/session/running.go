package session

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/pgoutbox/outbox/cmd/internal/fleet"
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

	Members []fleet.Member `json:"-"` // of its fleet, if it is in one
}

// Running asks the relay of --server which databases it has.
func (s *Session) Running(ctx context.Context) (*Running, error) {
	r, err := s.remote(s.Server())
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var running Running
	if _, err := r.read(ctx, "readyz", &running); err != nil || running.Databases == nil {
		return nil, cmp.Or(err, fmt.Errorf("%s does not list databases: is it a relay whose configuration has databases or "+
			"discover?", r.base))
	}
	var of struct {
		Members []fleet.Member `json:"members"`
	}
	found, err := r.read(ctx, "fleet", &of)
	if found {
		running.Members = of.Members
	}
	return &running, err
}

// read reads what the port answers at a path, and reports whether there is anything.
func (r remote) read(ctx context.Context, path string, into any) (found bool, err error) {
	answer, err := r.get(ctx, path, "all=true", "the relay") // and not those alone that need a look
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusNotFound {
		return false, nil
	}
	if err := json.NewDecoder(answer.Body).Decode(into); err != nil {
		return false, fmt.Errorf("%s/%s is no answer of a relay: check --server", r.base, path)
	}
	return true, nil
}
