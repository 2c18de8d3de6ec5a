// Package console is the page that operators look at: is it flowing, and if not, why, and what is to be done? It shows
// what the verbs of package verbs tell, and acts by them. It reads without JavaScript; a small module adds live
// updates. Nothing on it comes from elsewhere.
package console

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
)

// Options is what a console needs. API is required.
type Options struct {
	// API runs the verbs, and tells who asks: access, roles and masks are those of the API.
	API *rest.API
	// Report tells how things are, from memory, how old that is, and why it isn't newer. nil: the console looks at the
	// database, every few seconds, and once a second while somebody looks at it.
	Report func() (r *health.Report, age time.Duration, err error)
	// History is what the charts show. nil: an own one, which the looks fill.
	History *History
	// Name is that of the database, if the program delivers from several.
	Name string
	// Databases are those that the program delivers from, at least one: they get a page. nil: there is one.
	Databases func() []Database
	// Panel adds a section of forms to the overview. nil: none.
	Panel *Panel
}

// Panel is a section of buttons that a program adds, such as the faults of a demonstration.
type Panel struct {
	Title   string
	Buttons []Button
}

// Button is an action for everyone who may see the page.
type Button struct {
	Name, Label, Help string
	Press             func()
}

// Console is the handler. It may be mounted below any path, by [http.StripPrefix]. It is safe for concurrent use.
type Console struct {
	options Options
	handler http.Handler
	pages   map[string]page
	files   map[string]file
	look    look
	streams streams
	done    once
}

var _ http.Handler = (*Console)(nil)

//go:embed assets
var assets embed.FS

// file is an asset. Its name has its digest, so that it may be kept for good.
type file struct {
	kind string
	text []byte
}

var kinds = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

// New makes a console.
func New(options Options) (*Console, error) {
	if options.API == nil {
		return nil, errors.New("console: the API is required")
	}
	if options.History == nil {
		options.History = NewHistory()
		if options.Report != nil {
			return nil, errors.New("console: a report needs its history")
		}
	}
	c := &Console{options: options, pages: pages(), files: map[string]file{}}
	if options.Databases == nil {
		delete(c.pages, "databases")
	}
	if c.options.Report == nil {
		c.look.console = c
		c.options.Report = c.look.report
	}
	c.streams.open(c)
	if c.look.console != nil {
		c.streams.drawing.Go(func() { c.look.run(c.streams.ctx) })
	}
	list, err := assets.ReadDir("assets")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	for _, entry := range list {
		text, err := assets.ReadFile("assets/" + entry.Name())
		if err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
		c.files[entry.Name()] = file{kinds[path.Ext(entry.Name())], text}
	}
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the request comes from another site", http.StatusForbidden)
	}))
	c.handler = protection.Handler(http.HandlerFunc(c.route))
	return c, nil
}

// Close ends the streams, so that a server can be shut down.
func (c *Console) Close() { c.streams.close() }

// ServeHTTP serves the pages.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "+
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	c.handler.ServeHTTP(w, r)
}

// asset is the address of a file, by its digest.
func (c *Console) asset(name string) address {
	sum := sha256.Sum256(c.files[name].text)
	return address("asset-" + hex.EncodeToString(sum[:6]) + "-" + name)
}

// route finds the page. All pages stand beside each other, so that links between them hold below any prefix.
func (c *Console) route(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	if r.URL.Path == "" { // the prefix without a slash
		w.Header().Set("Location", url.PathEscape(path.Base(r.URL.Path+strings.Split(r.RequestURI, "?")[0]))+"/")
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	}
	if rest, ok := strings.CutPrefix(name, "asset-"); ok {
		_, rest, _ = strings.Cut(rest, "-")
		if f, ok := c.files[rest]; ok {
			w.Header().Set("Content-Type", f.kind)
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
			_, _ = w.Write(f.text) // the client has gone
			return
		}
	}
	v := &view{console: c, query: r.URL.Query(), at: name, now: time.Now()}
	caller, status, err := c.options.API.Caller(w, r)
	if err != nil {
		title := "Log in"
		if status == http.StatusForbidden {
			title = "Not allowed"
		}
		v.fail(w, status, title, err)
		return
	}
	v.caller = caller
	v.report, v.age, v.err = c.options.Report()
	switch {
	case name == "live":
		c.streams.serve(w, r, v)
	case strings.HasPrefix(name, "ask-"):
		c.ask(w, r, v)
	case strings.HasPrefix(name, "do-"):
		c.act(w, r, v)
	case name == "press":
		c.press(w, r, v)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		v.fail(w, http.StatusMethodNotAllowed, "This page is only to be read", errors.New("there is nothing to send to it"))
	default:
		c.show(w, r, v)
	}
}

// show answers with a page.
func (c *Console) show(w http.ResponseWriter, r *http.Request, v *view) {
	p, ok := c.pages[v.at]
	if !ok {
		v.fail(w, http.StatusNotFound, "There is no such page", errors.New("the links above lead to those that there are"))
		return
	}
	if p.patient != "" {
		if verb, err := verbs.ByName(p.patient); err == nil {
			rest.ExtendDeadlines(w, verb)
		}
	}
	v.ctx, v.page = r.Context(), p
	v.write(w, http.StatusOK, p.title, p.body(v))
}

// fail answers with a page that tells what is wrong.
func (v *view) fail(w http.ResponseWriter, status int, title string, err error) {
	v.write(w, status, title, list{h("h1", title), h("p.lead", foreign(err.Error(), 2000))})
}

// write answers with a page.
func (v *view) write(w http.ResponseWriter, status int, title string, body any) {
	d := &document{}
	d.WriteString("<!doctype html>")
	d.add(v.layout(title, body))
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(d.Bytes()) // the client has gone
}

// view is one request of a page.
type view struct {
	console *Console
	ctx     context.Context
	page    page
	at      string // the page's path
	query   url.Values
	caller  rest.Caller
	now     time.Time

	report *health.Report
	age    time.Duration
	err    error
}

func (v *view) get(name string) string { return v.query.Get(name) }

// operates reports whether the caller may act somewhere.
func (v *view) operates() bool { return v.caller.Role == verbs.Operator }

// may reports whether the caller may run a verb with these parameters.
func (v *view) may(name string, pairs ...string) bool {
	verb, params, err := prepared(name, pairs...)
	return err == nil && v.console.options.API.Allowed(v.caller, verb, params) == nil
}

// prepared are a verb and its parameters, from pairs; empty values are left out.
func prepared(name string, pairs ...string) (verbs.Verb, any, error) {
	verb, err := verbs.ByName(name)
	if err != nil {
		return verb, nil, err
	}
	params := verb.New()
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			continue
		}
		if err := set(verb, params, pairs[i], pairs[i+1]); err != nil {
			return verb, nil, err
		}
	}
	return verb, params, nil
}

// set gives a parameter its value.
func set(verb verbs.Verb, params any, name, value string) error {
	for _, p := range verb.Params {
		if p.Name == name {
			return p.Set(params, value)
		}
	}
	return &verbs.Fault{Field: name, Text: fmt.Sprintf("is no parameter of %q", verb.Name)}
}

// ask runs a verb that reads.
func ask[R any](v *view, name string, pairs ...string) (found R, err error) {
	verb, params, err := prepared(name, pairs...)
	if err != nil {
		return found, err
	}
	result, err := v.console.options.API.Run(v.ctx, v.caller, verb, params)
	if err != nil {
		return found, err
	}
	found, _ = result.(R)
	return found, nil
}

// look reads the database for a console that nobody tells how things are: rarely, for the history, and up to once a
// second while somebody looks at a page.
type look struct {
	console *Console

	mu     sync.Mutex
	last   *health.Report
	at     time.Time
	tried  time.Time
	failed error
}

const (
	lookEvery = 5 * time.Second
	lookSoon  = 900 * time.Millisecond // less than the pause of streams, so that each of their pages is of a look of its own
)

func (l *look) run(ctx context.Context) {
	for ctx.Err() == nil {
		_, _, _ = l.report()
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
		}
	}
}

func (l *look) report() (*health.Report, time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		l.last = &health.Report{}
	}
	if time.Since(l.tried) > lookSoon {
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), health.ReadWithin/3)
		status := verbs.Status()
		found, err := l.console.options.API.Run(ctx, rest.Caller{Role: verbs.Viewer}, status, status.New())
		cancel()
		l.tried = time.Now()
		if l.failed = err; err == nil {
			l.last, l.at = found.(*health.Report), began
			l.console.options.History.Add(l.last, l.tried)
		}
	}
	age := time.Duration(0)
	if !l.at.IsZero() {
		age = time.Since(l.at)
	}
	return l.last.Amended(nil, age, l.failed), age, l.failed
}
