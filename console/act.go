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
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/printed"
)

// An action is a page before it is done: what would happen in numbers, the reason, the command line that does the same.
// Its address has the parameters, by their names in the table of verbs. Names of ours that aren't parameters begin with
// an underline.

// doing is the address of the page that asks before a verb is run.
func doing(verb verbs.Verb, params any) address {
	var pairs []string
	for _, p := range verb.Given(params) {
		for _, value := range p.Texts(params) {
			pairs = append(pairs, p.Name, value)
		}
	}
	return to("do-"+slug(verb.Name), pairs...)
}

// label is a verb as a button says it.
func label(verb verbs.Verb) string {
	word := verb.Name[strings.LastIndexByte(verb.Name, ' ')+1:]
	if word == "ack" {
		word = "acknowledge"
	}
	return strings.ToUpper(word[:1]) + word[1:]
}

// button leads to an action; nothing for who may not do it.
func (v *view) button(name, text string, pairs ...string) any {
	verb, params, err := prepared(name, pairs...)
	if err != nil || verb.Role != verbs.Operator {
		return nil
	}
	return v.does(verb, params, "a.button", text)
}

// does is a link to an action, which leads back to this page; nothing for who may not do it.
func (v *view) does(verb verbs.Verb, params any, kind, text string) any {
	if v.console.options.API.Allowed(v.caller, verb, params) != nil {
		return nil
	}
	query := url.Values{}
	for name, values := range v.query {
		if name != "_did" && name != "_job" {
			query[name] = values
		}
	}
	where := doing(verb, params)
	separator := address("?")
	if strings.Contains(string(where), "?") {
		separator = "&"
	}
	return h(kind, where+separator+address("_back="+url.QueryEscape(v.at+"?"+query.Encode())), at("data-dialog", ""), text)
}

// once remembers what was done, so that a form that is sent twice acts once.
type once struct {
	mu   sync.Mutex
	done map[string]*outcome
}

type outcome struct {
	sync.Mutex
	at     time.Time
	where  address
	shown  any // a result that no sentence tells; nil: where has one
	ending error
	ran    bool
}

const remembered = 10 * time.Minute

// of finds the outcome of a token.
func (o *once) of(token string, now time.Time) *outcome {
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
func (c *Console) act(w http.ResponseWriter, r *http.Request, v *view) {
	v.ctx = r.Context()
	verb, err := named(strings.TrimPrefix(v.at, "do-"))
	if err != nil || verb.Role != verbs.Operator {
		v.fail(w, http.StatusNotFound, "There is no such action", fmt.Errorf("%q is none", v.at))
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
	params, wrong := v.params(verb)
	if err := c.options.API.Allowed(v.caller, verb, params); err != nil {
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
	out := c.done.of(v.caller.Name+" "+v.get("_once"), v.now)
	out.Lock()
	defer out.Unlock()
	if !out.ran || v.get("_once") == "" {
		var result any
		if result, out.ending = c.options.API.Run(v.ctx, v.caller, verb, params); out.ending == nil {
			sentence, told := did(verb, result)
			out.ran, out.where = true, v.back(sentence, result)
			if !told {
				out.shown = result
			}
		}
	}
	if out.ending != nil {
		v.propose(w, rest.StatusOf(out.ending), verb, params, out.ending)
		return
	}
	if out.shown != nil {
		v.write(w, http.StatusOK, label(verb), list{h("h1", label(verb), ": done"), v.shape(out.shown),
			h("p.buttons", h("a.button", out.where, "Back"))})
		return
	}
	w.Header().Set("Location", string(out.where))
	w.WriteHeader(http.StatusSeeOther)
}

// back is where an action leads: to the page that it was begun on, with what it has done.
func (v *view) back(did string, result any) address {
	path, query, _ := strings.Cut(v.get("_back"), "?")
	values, err := url.ParseQuery(query)
	if _, ok := v.console.pages[path]; !ok || err != nil {
		path, values = "", url.Values{}
	}
	if path == "letter" {
		path, values = "dead", url.Values{} // it may be gone
	}
	values.Set("_did", did)
	if job, ok := result.(jobs.Job); ok && job.ID > 0 {
		values.Set("_job", strconv.FormatInt(job.ID, 10))
	}
	return here(path) + address("?"+values.Encode())
}

// did is what an action has done, in a sentence; told is false if the result says more.
func did(verb verbs.Verb, result any) (sentence string, told bool) {
	switch r := result.(type) {
	case jobs.Job:
		if r.State == jobs.Waiting {
			return fmt.Sprintf("%s: %s, as job %d, which begins in %v.", label(verb),
				printed.Many(r.Total, "message", "messages"), r.ID, jobs.UndoWindow), true
		}
		return fmt.Sprintf("%s: %s.", label(verb), printed.Many(r.Done, "message", "messages")), true
	case admin.Control:
		return fmt.Sprintf("%s: %s.", label(verb), r.Target), true
	case jobs.RowOutcome:
		return fmt.Sprintf("%s: %s.", label(verb), printed.Many(r.Rows, "message", "messages")), true
	case []find.DeadLetter:
		return fmt.Sprintf("%s: %s. Requeue sends it.", label(verb), printed.Many(len(r), "message", "messages")), true
	case []admin.Control:
		return fmt.Sprintf("%s: %s ended.", label(verb), printed.Many(len(r), "control", "controls")), true
	}
	return label(verb) + ": done.", false
}

// proposal is in forms that ask what would happen. They are posted too: an address is logged on its way, and payloads
// are not to be.
const proposal = "_proposal"

// asked are the parameters that a form shows; the others that the address doesn't give are folded away.
var asked = []string{"set", "merge", "rate", "for", "reason"}

// propose is the page of an action that is not done yet.
func (v *view) propose(w http.ResponseWriter, status int, verb verbs.Verb, params any, wrong error) {
	var preview any
	var found int64 = -1
	if wrong == nil {
		intent := verbs.IntentOf(params)
		reason := intent.Reason
		intent.DryRun, intent.Reason = true, ""
		result, err := v.console.options.API.Run(v.ctx, v.caller, verb, params)
		intent.DryRun, intent.Reason = false, reason
		switch out := result.(type) {
		case jobs.Job:
			found = out.Total
		case jobs.RowOutcome:
			found = out.Rows
		}
		if preview = v.would(verb, result); err != nil {
			wrong = err
		}
	}
	if found >= 0 { // not more than was counted
		_ = set(verb, params, "max", strconv.FormatInt(max(found, 1), 10))
	}
	title := label(verb)
	if found >= 0 {
		title += " " + printed.Many(found, "message", "messages")
	} else if d := v.get("destination"); d != "" {
		title += " " + foreign(d, 60)
	}
	form := []any{here(v.at), at("method", "post"), at("class", "act"), hidden("_back", v.get("_back")), hidden("_once", token(v.now))}
	if wrong != nil && status == http.StatusOK { // what is missing is filled in, and counted first
		title, form = title+"…", append(form, hidden(proposal, "1"))
	}
	var shown, more []any
	given := verb.Given(params)
	for _, p := range verb.Params {
		isGiven := slices.ContainsFunc(given, func(g verbs.Param) bool { return g.Name == p.Name })
		switch {
		case slices.Contains(asked, p.Name) || p.Required && !isGiven:
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
		form = append(form, h("details", h("summary", "More"), h("div.act", more...)))
	}
	kind := "button.first"
	if strings.HasSuffix(verb.Name, "discard") || strings.HasSuffix(verb.Name, "drop") {
		kind = "button.danger"
	}
	submit := []any{at("type", "submit"), title}
	if found == 0 {
		submit = append(submit, at("disabled", ""))
	}
	back, query, _ := strings.Cut(v.get("_back"), "?")
	where := here(back)
	if _, ok := v.console.pages[back]; !ok {
		where = here("")
	} else if query != "" {
		where += address("?" + query)
	}
	form = append(form, h("div.buttons", h("a.button", where, at("data-close", ""), "Cancel"), h(kind, submit...)))
	if v.get("_once") == "" {
		wrong = nil // nothing is filled in yet
	}
	body := h("div.proposal", h("h1", title), h("p.lead", foreign(verb.Short, 200), "."),
		when(wrong != nil, h("p.problem", at("role", "alert"), message(wrong))), preview,
		h("form", form...), h("h2", "The same on a command line"), command(verb.Command(params)))
	v.write(w, status, title, body)
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return foreign(err.Error(), 1000)
}

func hidden(name, value string) *element {
	return h("input", at("type", "hidden"), at("name", name), at("value", value))
}

// token is a name for one proposal.
func token(now time.Time) string { return strconv.FormatInt(now.UnixNano(), 36) }

// would tells what an action would do, from its dry run.
func (v *view) would(verb verbs.Verb, result any) any {
	switch r := result.(type) {
	case nil:
		return nil
	case jobs.Job:
		if r.Total == 0 {
			return h("p", "Nothing is like that any more: somebody was faster, or it was delivered.")
		}
		var rows [][]any
		for _, g := range r.Groups {
			rows = append(rows, []any{list{foreign(g.Topic, 80), " → ", foreign(g.Destination, 60)}, g.Reason, printed.Number(g.N)})
		}
		return list{when(r.Note != "", h("p", foreign(r.Note, 1000), ".")),
			table("What it would change", []column{{"Topic → destination", ""}, {"Cause", ""}, {"Messages", "n"}}, rows),
			h("p", consequence(verb, r.Total))}
	case admin.Control:
		until := "until somebody ends it"
		if !r.Until.IsZero() {
			until = "until " + r.Until.UTC().Format("2006-01-02 15:04:05 UTC")
		}
		return h("p", foreign(r.Target.String(), 200), ", ", until, ". ", v.keeps(r))
	case []find.DeadLetter:
		var tables []any
		for _, d := range r {
			tables = append(tables, changes(d))
		}
		return list(tables)
	case []admin.Control:
		var items []any
		for _, c := range r {
			items = append(items, h("li", foreign(c.Target.String(), 200), ", since ", ago(v.now, c.Since), ", by ", foreign(c.Actor, 60)))
		}
		return list{h("p", "This ends:"), h("ul", items...)}
	}
	return v.shape(result)
}

// consequence is what else a person has to know.
func consequence(verb verbs.Verb, n int64) string {
	switch label(verb) {
	case "Requeue":
		return "They are sent again, in order among themselves. What was delivered after them stays delivered, so consumers see them late."
	case "Replay":
		return "They are sent as they were, in order per key among themselves. Those that wait, are held or dead are left as they are."
	case "Discard":
		return "They go to the trash, from which they can be restored for a day. After that " +
			printed.Many(n, "message is", "messages are") + " gone."
	case "Acknowledge":
		return "They stay where they are; the verdict speaks of them no more."
	}
	return ""
}

// keeps is what a pause costs.
func (v *view) keeps(c admin.Control) string {
	i := slices.IndexFunc(v.report.Destinations, func(d health.Destination) bool { return d.Name == c.Destination })
	if i < 0 || c.Rate > 0 {
		return ""
	}
	p := v.console.options.History.Latest(c.Destination, v.now)
	text := v.report.Destinations[i].Pending.String() + " messages wait now"
	if !unknown(p.In) && p.In > 0 {
		text += ", and " + rate(p.In) + " a second come"
	}
	if c.Topic == "" && c.Key == "" {
		text += "; segments can't be emptied meanwhile, so the outbox grows"
	}
	return text + "."
}

// press presses a button of the panel.
func (c *Console) press(w http.ResponseWriter, r *http.Request, v *view) {
	if c.options.Panel == nil || r.Method != http.MethodPost {
		v.fail(w, http.StatusNotFound, "There is no such page", errors.New("there is nothing to press"))
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 1<<16)
	name := r.PostFormValue("button")
	for _, b := range c.options.Panel.Buttons {
		if b.Name == name {
			b.Press()
			w.Header().Set("Location", string(here("", "_did", b.Label)))
			w.WriteHeader(http.StatusSeeOther)
			return
		}
	}
	v.fail(w, http.StatusNotFound, "There is no such button", fmt.Errorf("%q is none", name))
}
