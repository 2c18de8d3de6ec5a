package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/admin/verbs"
)

// An action is a page before it is done: its preview in numbers, the reason, the command line that does the same.
// Its address has the parameters, by their names in the table of verbs. Names of ours that aren't parameters begin
// with an underline.

// once remembers what was done, so that a form that is sent twice acts once.
type once struct {
	mu   sync.Mutex
	done map[string]*outcome
}

type outcome struct {
	sync.Mutex
	at     time.Time
	where  address
	ending error
	ran    bool
}

const remembered = 10 * time.Minute

// outcome finds the outcome of a token.
func (o *once) outcome(token string, now time.Time) *outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done == nil {
		o.done = map[string]*outcome{}
	}
	for token, old := range o.done {
		if now.Sub(old.at) > remembered {
			delete(o.done, token)
		}
	}
	if o.done[token] == nil {
		o.done[token] = &outcome{at: now}
	}
	return o.done[token]
}

// act is the page of an action, and does it.
func (v *view) act(w http.ResponseWriter, r *http.Request, done *once) {
	v.ctx = r.Context()
	verb, err := named(strings.TrimPrefix(v.path, "do-"))
	if err != nil || verb.Role != verbs.Operator {
		v.fail(w, http.StatusNotFound, "There is no such action", fmt.Errorf("%q is none", v.path))
		return
	}
	rest.ExtendDeadlines(w, verb)
	if r.Method == http.MethodPost {
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
		if err := r.ParseForm(); err != nil {
			v.fail(w, http.StatusBadRequest, "The form can't be read", err)
			return
		}
		v.query = r.PostForm
	}
	params, wrong := v.readParams(verb)
	if err := v.options.API.Allowed(v.caller, verb, params); err != nil {
		v.fail(w, http.StatusForbidden, "This is not for you", err)
		return
	}
	asks := r.Method != http.MethodPost || v.get(proposal) != ""
	if asks || wrong != nil {
		status := http.StatusOK
		if !asks {
			status = http.StatusBadRequest
		}
		v.propose(w, status, verb, params, wrong)
		return
	}
	out := done.outcome(v.caller.Name+" "+v.get("_once"), v.now)
	out.Lock()
	defer out.Unlock()
	if !out.ran || v.get("_once") == "" {
		var result any
		if result, out.ending = v.options.API.Run(v.ctx, v.caller, verb, params); out.ending == nil {
			out.ran, out.where = true, v.back(summary(verb, verb.Show(params, result)), result)
		}
	}
	if out.ending != nil {
		v.propose(w, rest.StatusOf(out.ending), verb, params, out.ending)
		return
	}
	w.Header().Set("Location", string(out.where))
	w.WriteHeader(http.StatusSeeOther)
}

// back is where an action leads: to the page that it was begun on, with what it has done.
func (v *view) back(text string, result any) address {
	path, query, _ := strings.Cut(v.get("_back"), "?")
	values, err := url.ParseQuery(query)
	if _, ok := v.pages[path]; !ok || err != nil {
		path, values = "", url.Values{}
	}
	if path == "letter" {
		path, values = "dead", url.Values{} // it may be gone
	}
	values.Set("_did", text)
	if job, ok := result.(jobs.Job); ok && job.ID > 0 {
		values.Set("_job", strconv.FormatInt(job.ID, 10))
	}
	return here(path) + address("?"+values.Encode())
}

// summary is what an action has done, in sentences.
func summary(verb verbs.Verb, parts sheet.Parts) string {
	var text strings.Builder
	for _, part := range parts {
		if line, ok := part.(sheet.Line); ok {
			text.WriteString(" " + sentence(string(line)))
		}
	}
	if text.Len() == 0 {
		return verb.Label() + ": done."
	}
	return text.String()[1:]
}

// proposal is a field of forms that only preview. They are posted, too, so that payloads don't enter access logs.
const proposal = "_proposal"

// upFront are the parameters that a form shows; the others that the address doesn't give are folded away.
var upFront = []string{"set", "merge", "rate", "for", "reason"}

// propose is the page of an action that is not done yet.
func (v *view) propose(w http.ResponseWriter, status int, verb verbs.Verb, params any, wrong error) {
	var preview, result any
	var found int64
	counted := false
	if wrong == nil {
		intent := verbs.IntentOf(params)
		reason := intent.Reason
		intent.DryRun, intent.Reason = true, ""
		result, wrong = v.options.API.Run(v.ctx, v.caller, verb, params)
		intent.DryRun, intent.Reason = false, reason
		if wrong == nil {
			found, counted = verbs.Count(result)
			preview = list{v.draw(verb.Preview(params, result)), v.pauseCost(result)}
		}
	}
	if counted { // not more than was counted
		_ = set(verb, params, "max", strconv.FormatInt(max(found, 1), 10))
	}
	title := verb.Label()
	if result != nil {
		title = foreign(strings.TrimSuffix(verb.Question(params, result), "?"), 100)
	}
	form := []any{here(v.path), attr("method", "post"), attr("class", "act"), hidden("_back", v.get("_back")),
		hidden("_once", token(v.now))}
	if wrong != nil && status == http.StatusOK { // what is missing is filled in, and counted first
		title, form = title+"…", append(form, hidden(proposal, "1"))
	}
	var shown, more []any
	given := verb.Given(params)
	for _, p := range verb.Params {
		isGiven := slices.ContainsFunc(given, func(g verbs.Param) bool { return g.Name == p.Name })
		switch {
		case slices.Contains(upFront, p.Name) || p.Required && !isGiven:
			shown = append(shown, v.input(p, params))
		case p.Name == "dry_run":
		case isGiven:
			for _, value := range p.Texts(params) {
				form = append(form, hidden(p.Name, value))
			}
		default:
			more = append(more, v.input(p, params))
		}
	}
	form = append(form, shown...)
	if len(more) > 0 {
		form = append(form, el("details", el("summary", "More"), el("div.act", more...)))
	}
	kind := "button.first"
	if strings.HasSuffix(verb.Name, "discard") || strings.HasSuffix(verb.Name, "drop") {
		kind = "button.danger"
	}
	submit := []any{attr("type", "submit"), title}
	if counted && found == 0 {
		submit = append(submit, attr("disabled", ""))
	}
	back, query, _ := strings.Cut(v.get("_back"), "?")
	where := here(back)
	if _, ok := v.pages[back]; !ok {
		where = here("")
	} else if query != "" {
		where += address("?" + query)
	}
	form = append(form, el("div.buttons", el("a.button", where, attr("data-close", ""), "Cancel"), el(kind, submit...)))
	if v.get("_once") == "" {
		wrong = nil // nothing is filled in yet
	}
	body := el("div.proposal", el("h1", title), el("p.lead", foreign(verb.Short, 200), "."),
		when(wrong != nil, el("p.problem", attr("role", "alert"), errorText(wrong))), preview,
		el("form", form...), el("h2", "The same on a command line"), command(verb.Command(params)))
	v.write(w, status, title, body)
}

// token is a name for one proposal.
func token(now time.Time) string { return strconv.FormatInt(now.UnixNano(), 36) }

// pauseCost describes what a pause holds back.
func (v *view) pauseCost(result any) any {
	c, ok := result.(admin.Control)
	d := v.reported(c.Destination)
	if !ok || d == nil || c.Rate > 0 {
		return nil
	}
	p := v.options.History.Latest(c.Destination, v.now)
	text := d.Pending.String() + " messages wait now"
	if !unknown(p.In) && p.In > 0 {
		text += ", and " + rate(p.In) + " a second come"
	}
	if c.Topic == "" && c.Key == "" {
		text += "; segments can't be emptied meanwhile, so the outbox grows"
	}
	return el("p", text+".")
}

// press presses a button of the panel.
func (v *view) press(w http.ResponseWriter, r *http.Request) {
	if v.options.Panel == nil || r.Method != http.MethodPost {
		v.fail(w, http.StatusNotFound, "There is no such page", errors.New("there is nothing to press"))
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 1<<16)
	name := r.PostFormValue("button")
	for _, b := range v.options.Panel.Buttons {
		if b.Name == name {
			b.Press()
			w.Header().Set("Location", string(here("", "_did", b.Label)))
			w.WriteHeader(http.StatusSeeOther)
			return
		}
	}
	v.fail(w, http.StatusNotFound, "There is no such button", fmt.Errorf("%q is none", name))
}
