// Package console is the page that operators look at: is it flowing, and if not, why, and what is to be done? It draws
// what the verbs of package verbs describe, and runs them. It reads without JavaScript; a small module adds live
// updates. Nothing on it comes from elsewhere.
package console

import (
	"embed"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/admin/rest"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/internal/sse"
)

// Console is the handler. It may be mounted below any path, by [http.StripPrefix]. It is safe for concurrent use.
type Console struct {
	*base
	handler http.Handler
	hub     *sse.Hub // of the pages that are open
	done    once
}

var _ http.Handler = (*Console)(nil)

//go:embed assets
var assets embed.FS

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
	c := &Console{base: &base{options: options, pages: pageTable()}, hub: sse.NewHub()}
	if options.Databases == nil {
		delete(c.pages, "databases")
	}
	var err error
	if c.files, err = assetFiles(); err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	if options.Report == nil {
		own := &poller{api: options.API, history: options.History}
		c.options.Report = own.report
		c.hub.Go(own.run)
	}
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the request comes from another site", http.StatusForbidden)
	}))
	c.handler = protection.Handler(http.HandlerFunc(c.route))
	return c, nil
}

// assetFiles reads the assets once, for all consoles of a process.
var assetFiles = sync.OnceValues(func() (map[string]file, error) {
	list, err := assets.ReadDir("assets")
	if err != nil {
		return nil, err
	}
	files := make(map[string]file, len(list))
	for _, entry := range list {
		text, err := assets.ReadFile("assets/" + entry.Name())
		if err != nil {
			return nil, err
		}
		files[entry.Name()] = file{kinds[path.Ext(entry.Name())], text}
	}
	return files, nil
})

// Close ends the streams, so that a server can be shut down.
func (c *Console) Close() { c.hub.Close() }

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
	v := &view{base: c.base, query: r.URL.Query(), path: name, now: time.Now()}
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
		v.serveLive(w, r, c.hub)
	case strings.HasPrefix(name, "ask-"):
		v.question(w, r)
	case strings.HasPrefix(name, "do-"):
		v.act(w, r, &c.done)
	case name == "press":
		v.press(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		v.fail(w, http.StatusMethodNotAllowed, "This page is only to be read", errors.New("there is nothing to send to it"))
	default:
		v.show(w, r)
	}
}

// show answers with a page.
func (v *view) show(w http.ResponseWriter, r *http.Request) {
	p, ok := v.pages[v.path]
	if !ok {
		v.fail(w, http.StatusNotFound, "There is no such page", errors.New("the links above lead to those that there are"))
		return
	}
	if p.verb != "" {
		if verb, err := verbs.ByName(p.verb); err == nil {
			rest.ExtendDeadlines(w, verb)
		}
	}
	v.ctx, v.page = r.Context(), p
	v.write(w, http.StatusOK, p.title, p.body(v))
}
