package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/internal/sse"
)

// liveFeed is a page as some clients see it: it is drawn again and again, and they get the regions that have changed.
type liveFeed struct {
	view view

	mu      sync.Mutex
	version int
	regions map[string]regionState
	events  map[int][]byte // of this version, by the one that a client has seen
}

type regionState struct {
	text    string
	version int
}

var _ sse.Feed = (*liveFeed)(nil)

// Look draws the page.
func (f *liveFeed) Look(ctx context.Context) {
	v := f.view
	v.ctx, v.now = ctx, time.Now()
	v.report, v.age, v.err = v.options.Report()
	d := &document{}
	d.add(v.page.body(&v))
	d.add(v.asOf())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	f.events = map[int][]byte{}
	for _, r := range d.regions {
		if f.regions[r.id].text != r.text {
			f.regions[r.id] = regionState{r.text, f.version}
		}
	}
}

// Since returns the regions that have changed since a version. The event is made once for all who have seen the same.
func (f *liveFeed) Since(version int) (event []byte, now int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if event, ok := f.events[version]; ok {
		return event, f.version
	}
	changed := map[string]string{}
	for id, r := range f.regions {
		if r.version > version {
			changed[id] = r.text
		}
	}
	body, _ := json.Marshal(changed) // texts can always be written
	f.events[version] = sse.Event("put", body)
	return f.events[version], f.version
}

// serveLive is the handler of one client. The query has the address of its page.
func (v *view) serveLive(w http.ResponseWriter, r *http.Request, hub *sse.Hub) {
	path, query, _ := strings.Cut(v.get("of"), "?")
	values, err := url.ParseQuery(query)
	p, ok := v.pages[path]
	if !ok || err != nil {
		v.fail(w, http.StatusNotFound, "There is no such page", fmt.Errorf("%q has no news", path))
		return
	}
	// What a region shows depends on what its reader may do, and not on who that is.
	key := fmt.Sprintf("%q %q %q %q %q", path, values.Encode(), v.caller.Role, v.caller.Destinations, v.caller.Databases)
	if hub.Serve(w, r, key, func() sse.Feed {
		shared := view{base: v.base, path: path, page: p, query: values, caller: v.caller}
		return &liveFeed{view: shared, regions: map[string]regionState{}}
	}) != nil {
		v.fail(w, http.StatusTooManyRequests, "Too many look on",
			fmt.Errorf("%d pages are live: load this one again when you need news", sse.MaxClients))
	}
}
