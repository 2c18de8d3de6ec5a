// Package rest is the API of an operator: the verbs of package verbs over HTTP, with their description and a stream of
// the status. A viewer's verb is a GET with a query, an operator's a POST with a body of JSON; errors are problems of
// RFC 9457.
package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/settings"
	"github.com/pgoutbox/outbox/internal/sse"
)

// Options configure the API. DB and Access are required.
type Options struct {
	// DB is where verbs run.
	DB admin.DB
	// ViewerDB, if not nil, is where the verbs of viewers run: connections of a database role that can't read payloads.
	ViewerDB admin.DB
	// Access tells who asks. Its error is answered with 401 and Challenge, one that wraps [ErrForbidden] with 403.
	Access func(*http.Request) (Caller, error)
	// Challenge is the header WWW-Authenticate of such an answer.
	Challenge string
	// Mask hides parts of payloads from everybody. nil: nothing is hidden.
	Mask func(payload []byte) []byte
	// MaskHeader reports whether the values of a header are hidden from everybody. nil: those of [CredentialHeaders]
	// are.
	MaskHeader func(name string) bool
	// Logger is told who changed what, and of what went wrong. nil: slog.Default.
	Logger *slog.Logger
}

// Caller is the person or program that sends a request.
type Caller struct {
	// Name is the actor in the audit.
	Name string
	// Role is what it may do.
	Role verbs.Role
	// Destinations, if any, are those on which an operator may act; elsewhere it is a viewer.
	Destinations []string
	// Databases, if any, are those that it may ask and act in, for a program that serves several.
	Databases []string
}

// ErrForbidden is wrapped by the error of [Options.Access] if it is known who asks, who may not ask here.
var ErrForbidden = errors.New("not allowed")

// Within reports whether the caller may ask the database of that name.
func (c Caller) Within(database string) bool {
	return len(c.Databases) == 0 || slices.Contains(c.Databases, database)
}

// may reports whether the caller has the role for a verb with these parameters.
func (c Caller) may(role verbs.Role, v verbs.Verb, params any) bool {
	if role == verbs.Viewer || c.Role != verbs.Operator {
		return c.Role == role || c.Role == verbs.Operator
	}
	if len(c.Destinations) == 0 {
		return true
	}
	allowed := false
	for _, p := range v.Params {
		if p.Of != "destination" || v.Wide {
			continue
		}
		for _, name := range p.Texts(params) {
			if allowed = slices.Contains(c.Destinations, name); !allowed {
				return false
			}
		}
	}
	return allowed
}

const (
	maxBody    = 1 << 20
	maxRunning = 32 // verbs at once
	// answerTimeout is for a client to take an answer.
	answerTimeout = 10 * time.Second
)

// API is the handler. It is safe for concurrent use.
type API struct {
	options Options
	handler http.Handler
	hub     *sse.Hub // of the stream of the status
	running chan struct{}
}

var _ http.Handler = (*API)(nil)

// New makes the API.
func New(options Options) (*API, error) { return newAPI(options, allEndpoints) }

var allEndpoints = sync.OnceValues(func() (*endpoints, error) { return newEndpoints(verbs.All()) })

func newAPI(options Options, of func() (*endpoints, error)) (*API, error) {
	if !settings.Given(options.DB) || options.Access == nil {
		return nil, errors.New("rest: DB and Access are required")
	}
	if options.ViewerDB == nil {
		options.ViewerDB = options.DB
	}
	if !settings.Given(options.ViewerDB) {
		return nil, errors.New("rest: ViewerDB is a nil pointer: open it, or leave it out")
	}
	if options.MaskHeader == nil {
		options.MaskHeader = MaskHeaders(CredentialHeaders())
	}
	settings.Default(&options.Logger, slog.Default()) // unbounded: each line is something that a person did
	a := &API{options: options, hub: sse.NewHub(), running: make(chan struct{}, maxRunning)}
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, refusal{http.StatusForbidden, "the request comes from another site"})
	}))
	served, err := of()
	a.handler = protection.Handler(a.authenticated(func(w http.ResponseWriter, r *http.Request, c Caller) { a.route(served, w, r, c) }))
	return a, err
}

// endpoints are the paths of a table of verbs. They are the same for all servers, which share them.
type endpoints struct {
	description json.RawMessage
	methods     map[string]string // by path
	verbs       map[string]verbs.Verb
}

const (
	descriptionPath = "/api/v1/openapi.json"
	streamPath      = "/api/v1/status/stream"
)

func newEndpoints(table []verbs.Verb) (*endpoints, error) {
	description, err := encode(Describe(table))
	if err != nil {
		return nil, fmt.Errorf("rest: describe the API: %w", err)
	}
	e := &endpoints{description: description, verbs: make(map[string]verbs.Verb, len(table)),
		methods: map[string]string{descriptionPath: http.MethodGet, streamPath: http.MethodGet}}
	for _, v := range table {
		e.methods[v.Path()], e.verbs[v.Path()] = v.Method(), v
	}
	return e, nil
}

func (a *API) route(e *endpoints, w http.ResponseWriter, r *http.Request, c Caller) {
	path, allowed := r.URL.Path, e.methods[r.URL.Path]
	switch {
	case allowed == "":
		refuse(w, refusal{http.StatusNotFound, "there is no such path: GET /api/v1/openapi.json describes those that are"})
	case r.Method != allowed && !(allowed == http.MethodGet && r.Method == http.MethodHead):
		if allowed == http.MethodGet {
			allowed += ", HEAD"
		}
		w.Header().Set("Allow", allowed)
		refuse(w, refusal{http.StatusMethodNotAllowed, fmt.Sprintf("%s is not for %s, but for %s", path, r.Method, allowed)})
	case path == descriptionPath:
		write(w, http.StatusOK, "application/json", e.description)
	case path == streamPath:
		a.stream(w, r, c)
	default:
		a.verb(w, r, c, e.verbs[path])
	}
}

// Close ends the streams, so that a server can be shut down.
func (a *API) Close() { a.hub.Close() }

// ServeHTTP refuses what comes from another site in a browser, and serves the rest.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.URL.Path, "//") || strings.Contains(r.URL.Path, "/.") { // otherwise the router would redirect
		refuse(w, refusal{http.StatusNotFound, "there is no such path"})
		return
	}
	a.handler.ServeHTTP(w, r)
}

// Caller identifies who sends a request. If it can't, or if that caller has no access, answer with the error and the
// status: 401, for which the answer gets the header that asks for a login, or 403.
func (a *API) Caller(w http.ResponseWriter, r *http.Request) (caller Caller, status int, err error) {
	caller, err = a.options.Access(r)
	switch {
	case err == nil:
		return caller, http.StatusOK, nil
	case errors.Is(err, ErrForbidden):
		return caller, http.StatusForbidden, err
	}
	if a.options.Challenge != "" {
		w.Header().Set("WWW-Authenticate", a.options.Challenge)
	}
	return caller, http.StatusUnauthorized, err
}

// authenticated wraps serve: callers without a login get 401.
func (a *API) authenticated(serve func(http.ResponseWriter, *http.Request, Caller)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		caller, status, err := a.Caller(w, r)
		if err != nil {
			refuse(w, refusal{status, err.Error()})
			return
		}
		serve(w, r, caller)
	}
}

func (a *API) verb(w http.ResponseWriter, r *http.Request, c Caller, v verbs.Verb) {
	// Without the right nothing is told about the parameters, and no body is read.
	if v.Role == verbs.Operator && c.Role != verbs.Operator {
		refuse(w, forbidden(c, v))
		return
	}
	params := v.New()
	if err := read(w, r, v, params); err != nil {
		refuse(w, err)
		return
	}
	ExtendDeadlines(w, v)
	result, err := a.Run(r.Context(), c, v, params)
	if errors.Is(err, errBusy) {
		w.Header().Set("Retry-After", "1")
	}
	if err != nil {
		refuse(w, err)
		return
	}
	write(w, http.StatusOK, "application/json", result)
}

// ExtendDeadlines sets the deadlines of an answer by the verb: a verb may run for longer than a server allows by
// default, and the client needs time to read the answer.
func ExtendDeadlines(w http.ResponseWriter, v verbs.Verb) {
	control := http.NewResponseController(w)
	// not every server has them
	_, _ = control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Now().Add(v.Timeout+answerTimeout))
}

// errBusy refuses a verb for a moment.
var errBusy = refusal{http.StatusTooManyRequests, fmt.Sprintf("%d verbs are running: try again", maxRunning)}

// Run runs a verb for a caller, if it may: with the connections, the masks and the log of the API. [StatusOf] tells its
// errors apart.
func (a *API) Run(ctx context.Context, c Caller, v verbs.Verb, params any) (any, error) {
	if err := a.Allowed(c, v, params); err != nil {
		return nil, err
	}
	select {
	case a.running <- struct{}{}:
		defer func() { <-a.running }()
	default:
		return nil, errBusy
	}
	db := a.options.DB
	if c.Role == verbs.Viewer {
		db = a.options.ViewerDB
	}
	result, err := v.Run(ctx, db, c.Name, params)
	if v.Role == verbs.Operator {
		a.options.Logger.Info("verb", "verb", v.Name, "actor", c.Name, "dry_run", verbs.IntentOf(params).DryRun, "error", err)
	}
	if err != nil {
		if StatusOf(err) >= http.StatusInternalServerError {
			a.options.Logger.Warn("verb failed", "verb", v.Name, "error", err)
		}
		return nil, err
	}
	return a.masked(result), nil
}

func forbidden(c Caller, v verbs.Verb) error {
	if c.Role == verbs.Operator {
		return refusal{http.StatusForbidden, fmt.Sprintf("%s may act on %s alone: name one of these", c.Name,
			strings.Join(c.Destinations, ", "))}
	}
	return refusal{http.StatusForbidden, fmt.Sprintf("%q is for operators, and %s is a viewer", v.Name, c.Name)}
}

// Allowed returns an error if the caller may not use the verb with these parameters.
func (a *API) Allowed(c Caller, v verbs.Verb, params any) error {
	if !c.may(v.Role, v, params) {
		return forbidden(c, v)
	}
	for _, p := range v.Params {
		if p.Role == verbs.Operator && len(p.Texts(params)) > 0 && !c.may(verbs.Operator, v, params) {
			return refusal{http.StatusForbidden, fmt.Sprintf("%q of %q is for operators", p.Name, v.Name)}
		}
		if p.Name != "header" {
			continue
		}
		for _, text := range p.Texts(params) { // otherwise a hidden value could be guessed
			if name, _, byValue := strings.Cut(text, "="); byValue && a.options.MaskHeader(name) {
				return &verbs.Fault{Field: p.Name,
					Text: "can't have a value for " + name + ", whose values are hidden: search by the name alone"}
			}
		}
	}
	return nil
}

// read reads the parameters from the query or the body.
func read(w http.ResponseWriter, r *http.Request, v verbs.Verb, params any) error {
	if v.Method() == http.MethodGet {
		return readQuery(r.URL.RawQuery, v, params)
	}
	if r.URL.RawQuery != "" {
		return &verbs.Fault{Text: "the parameters of a POST stand in its body, not in a query"}
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return refusal{http.StatusUnsupportedMediaType, "the body must be of Content-Type application/json"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", maxBody)}
	case err != nil:
		return refusal{http.StatusBadRequest, "the body ended too early"}
	}
	return readJSON(body, v, params)
}

func readQuery(raw string, v verbs.Verb, params any) error {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return &verbs.Fault{Text: "the query is not well-formed"}
	}
	for name, texts := range values {
		p, err := paramOf(v, name)
		if err != nil {
			return err
		}
		if len(texts) > 1 && !p.Repeats() {
			return &verbs.Fault{Field: name, Text: "is given more than once"}
		}
		for _, text := range texts {
			if err := p.Set(params, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// readJSON reads by the exact names, unlike package json.
func readJSON(body []byte, v verbs.Verb, params any) error {
	d := json.NewDecoder(strings.NewReader(string(body)))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return &verbs.Fault{Text: "the body is not an object of JSON"}
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		name, _ := t.(string)
		if err != nil {
			break
		}
		p, err := paramOf(v, name)
		if err != nil {
			return err
		}
		if seen[name] {
			return &verbs.Fault{Field: name, Text: "is given more than once"}
		}
		seen[name] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			break
		}
		if err := p.Decode(params, value); err != nil {
			return err
		}
	}
	if t, err := d.Token(); err != nil || t != json.Delim('}') {
		return &verbs.Fault{Text: "the body is not well-formed JSON"}
	}
	if _, err := d.Token(); err != io.EOF {
		return &verbs.Fault{Text: "something follows the object in the body"}
	}
	return nil
}

func paramOf(v verbs.Verb, name string) (verbs.Param, error) {
	if i := slices.IndexFunc(v.Params, func(p verbs.Param) bool { return p.Name == name }); i >= 0 {
		return v.Params[i], nil
	}
	return verbs.Param{}, &verbs.Fault{Field: name, Text: fmt.Sprintf("is no parameter of %q", v.Name)}
}

// masked hides the configured parts of payloads and headers.
func (a *API) masked(result any) any {
	mask := func(headers *json.RawMessage, payload *[]byte) {
		*headers = hideHeaders(*headers, a.options.MaskHeader)
		if *payload != nil && a.options.Mask != nil {
			*payload = a.options.Mask(*payload)
		}
	}
	switch found := result.(type) {
	case []find.DeadLetter:
		for i := range found {
			mask(&found[i].Headers, &found[i].Payload)
			if original := found[i].Original; original != nil {
				mask(&original.Headers, &original.Payload)
			}
		}
	case []find.MessageLife:
		for i := range found {
			mask(&found[i].Headers, &found[i].Payload)
		}
	case find.FoundMessages:
		for i := range found.Messages {
			mask(&found.Messages[i].Headers, &found.Messages[i].Payload)
		}
	}
	return result
}

// Request makes the request for a verb, for a server at base. The parameters that have their defaults are left out.
func Request(ctx context.Context, base *url.URL, v verbs.Verb, params any) (*http.Request, error) {
	at := base.JoinPath(v.Path())
	if v.Method() == http.MethodGet {
		query := url.Values{}
		for _, p := range v.Given(params) {
			query[p.Name] = p.Texts(params)
		}
		at.RawQuery = query.Encode()
		return http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	}
	given := map[string]any{}
	for _, p := range v.Given(params) {
		given[p.Name] = p.Value(params)
	}
	body, err := encode(given)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, v.Method(), at.String(), strings.NewReader(string(body)))
	if err == nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r, err
}

// Result reads the answer to a request for a verb. Its errors are those of Run: a [*verbs.Fault], [admin.ErrNotFound].
func Result(v verbs.Verb, answer *http.Response) (any, error) {
	if answer.StatusCode != http.StatusOK {
		var p Problem
		body, _ := io.ReadAll(io.LimitReader(answer.Body, maxBody))
		if kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type")); kind != problemType || json.Unmarshal(body, &p) != nil {
			return nil, fmt.Errorf("the server answers %s, which is no answer of this API", answer.Status)
		}
		switch p.Status {
		case http.StatusBadRequest:
			return nil, &verbs.Fault{Field: p.Field, Text: strings.TrimPrefix(p.Detail, p.Field+" ")}
		case http.StatusNotFound:
			return nil, remoteError{p.Detail, admin.ErrNotFound}
		}
		return nil, errors.New(p.Detail)
	}
	result := reflect.New(v.Result())
	if err := json.NewDecoder(answer.Body).Decode(result.Interface()); err != nil {
		return nil, fmt.Errorf("read the server's answer: %w", err)
	}
	return result.Elem().Interface(), nil
}

// remoteError is an error with the server's text.
type remoteError struct {
	text string
	kind error
}

func (r remoteError) Error() string { return r.text }
func (r remoteError) Unwrap() error { return r.kind }
