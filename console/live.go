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
)

const (
	maxStreams    = 256
	streamPause   = time.Second      // between two versions of a page
	streamComment = 15 * time.Second // without news, so that nobody on the way takes the connection for dead
	frameTimeout  = 10 * time.Second // for a client to take a frame
)

// streams keep pages that are open up to date. A page is made again once a second for all who look at it with the same
// rights, and not at all when nobody does; who looks gets the regions that have changed. One who is slow gets the
// newest ones, not all.
type streams struct {
	console *Console
	ctx     context.Context
	cancel  context.CancelFunc
	drawing sync.WaitGroup

	mu    sync.Mutex
	open_ int
	all   map[string]*sheet
}

// sheet is a page as some clients see it.
type sheet struct {
	view    view
	clients map[chan struct{}]bool
	version int
	regions map[string]regionState
	frames  map[int][]byte // of this version, by the one that a client has seen
	age     time.Duration
}

type regionState struct {
	text    string
	version int
}

func (s *streams) open(c *Console) {
	s.console, s.all = c, map[string]*sheet{}
	s.ctx, s.cancel = context.WithCancel(context.Background())
}

// close ends all streams, and waits until nothing is drawn.
func (s *streams) close() {
	s.cancel()
	s.drawing.Wait()
}

// join adds a client to the sheet of its page; nil: there are too many, or the server ends.
func (s *streams) join(key string, v view) (*sheet, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open_ >= maxStreams || s.ctx.Err() != nil {
		return nil, nil
	}
	s.open_++
	one := s.all[key]
	if one == nil {
		one = &sheet{view: v, clients: map[chan struct{}]bool{}, regions: map[string]regionState{}, frames: map[int][]byte{}}
		s.all[key] = one
		s.drawing.Go(func() { s.draw(key, one) })
	}
	news := make(chan struct{}, 1)
	if one.version > 0 {
		news <- struct{}{} // what the others have seen is new to this one
	}
	one.clients[news] = true
	return one, news
}

func (s *streams) leave(one *sheet, news chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open_--
	delete(one.clients, news)
}

// draw makes a page again and again, as long as somebody looks.
func (s *streams) draw(key string, one *sheet) {
	for {
		began := time.Now()
		v := one.view
		v.ctx, v.now = s.ctx, began
		v.report, v.age, v.err = s.console.options.Report()
		d := &document{}
		d.add(v.page.body(&v))
		d.add(v.status())
		s.mu.Lock()
		if len(one.clients) == 0 || s.ctx.Err() != nil {
			delete(s.all, key)
			s.mu.Unlock()
			return
		}
		one.version++
		clear(one.frames)
		one.age = v.age
		for _, r := range d.regions {
			if one.regions[r.id].text != r.text {
				one.regions[r.id] = regionState{r.text, one.version}
			}
		}
		for news := range one.clients {
			select {
			case news <- struct{}{}:
			default: // the one before wasn't taken
			}
		}
		s.mu.Unlock()
		select {
		case <-time.After(max(streamPause, 20*time.Since(began))): // a page that is slow to make is made less often
		case <-s.ctx.Done():
		}
	}
}

// since is a frame with the regions that have changed since a version, and the version that they are of. It is made
// once for all who have seen the same.
func (s *streams) since(one *sheet, version int) ([]byte, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if frame, ok := one.frames[version]; ok {
		return frame, one.version
	}
	changed := map[string]string{}
	for id, r := range one.regions {
		if r.version > version {
			changed[id] = r.text
		}
	}
	body, _ := json.Marshal(changed) // texts can always be written
	one.frames[version] = fmt.Appendf(nil, "event: put\ndata: %s\n\n", body)
	return one.frames[version], one.version
}

// serve is the handler of one client. The query has the address of its page.
func (s *streams) serve(w http.ResponseWriter, r *http.Request, v *view) {
	name, query, _ := strings.Cut(v.get("of"), "?")
	values, err := url.ParseQuery(query)
	p, ok := s.console.pages[name]
	if !ok || err != nil {
		v.fail(w, http.StatusNotFound, "There is no such page", fmt.Errorf("%q has no news", name))
		return
	}
	// What a region shows depends on what its reader may do, and not on who that is.
	key := fmt.Sprintf("%q %q %q %q %q", name, values.Encode(), v.caller.Role, v.caller.Destinations, v.caller.Databases)
	one, news := s.join(key, view{console: s.console, at: name, page: p, query: values, caller: v.caller})
	if one == nil {
		w.Header().Set("Retry-After", "10")
		v.fail(w, http.StatusTooManyRequests, "Too many look on",
			fmt.Errorf("%d pages are live: load this one again when you need news", maxStreams))
		return
	}
	defer s.leave(one, news)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	control := http.NewResponseController(w)
	frame, seen := []byte("retry: 2000\n\n"), 0
	for {
		// The server's own bound is for a whole answer.
		if control.SetWriteDeadline(time.Now().Add(frameTimeout)) != nil {
			return
		}
		if _, err := w.Write(frame); err != nil || control.Flush() != nil {
			return
		}
		select {
		case <-news:
			frame, seen = s.since(one, seen)
		case <-time.After(streamComment):
			frame = []byte(": no news\n\n")
		case <-r.Context().Done():
			return
		case <-s.ctx.Done():
			return
		}
	}
}
