package daemon

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/cmd/internal/report"
)

// known answers with what this relay knows of all databases that the caller may look into. It asks none of them.
func (d *Daemon) known(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	caller, err := d.gate.Load().caller(r)
	if err != nil {
		refuse(w, err)
		return
	}
	whole := r.URL.Query().Get("whole") == "true"
	answer := report.KnownDatabases{Databases: []report.KnownDatabase{}}
	var named []health.Named
	for _, u := range *d.routed.Load() {
		if !caller.Within(u.Name) {
			continue
		}
		db := report.KnownDatabase{Name: u.Name, Elsewhere: u.watch.elsewhere(), Report: &health.Report{}}
		if db.Elsewhere {
			answer.Elsewhere++
		} else {
			found, age := u.watch.summary()
			db.Report, db.Age = found, age.Seconds()
			named = append(named, health.Named{Name: u.Name, Verdict: found.Verdict})
			if !whole && found.Verdict.State.OK() {
				db.Report = &health.Report{At: found.At, Database: found.Database, Verdict: found.Verdict}
			}
		}
		answer.Databases = append(answer.Databases, db)
	}
	over := health.Over(named)
	answer.Sentence, answer.States = over.Sentence(), over.Counts
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client has gone
}

// refuse answers somebody who may not ask.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusUnauthorized
	if errors.Is(err, rest.ErrForbidden) {
		status = http.StatusForbidden
	} else {
		w.Header().Set("WWW-Authenticate", challenge)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(rest.Problem{Title: http.StatusText(status), Status: status, Detail: err.Error()})
}

// probed is how many databases the body of a probe names, the worst first. A probe is asked every few seconds.
const probed = 20

// fewest are the databases that the body of a probe names: all of a few, or with many those that are not well, up to a
// number.
func fewest[T any](units []*unit, all bool, of func(*unit) (body T, well bool)) map[string]T {
	named := make(map[string]T)
	left := probed
	for _, u := range units {
		body, well := of(u)
		if !all && len(units) > probed {
			if well || left == 0 {
				continue
			}
			left--
		}
		named[u.Name] = body
	}
	return named
}
