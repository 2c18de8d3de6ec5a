package http_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/testnet"
	"github.com/pgoutbox/outbox/webhook"
)

// raw is a server that answers each connection with f, once a request's headers have come.
func raw(t *testing.T, f func(net.Conn)) (url string) {
	t.Helper()
	return "http://" + brokertest.Serve(t, func(conn net.Conn) {
		buf := make([]byte, 64<<10)
		if _, err := conn.Read(buf); err == nil {
			f(conn)
		}
	})
}

func TestAnEndlessAnswerIsNotReadToItsEnd(t *testing.T) {
	t.Parallel()
	var wrote atomic.Int64
	url := raw(t, func(conn net.Conn) {
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
		for piece := make([]byte, 64<<10); ; {
			n, err := conn.Write(piece)
			wrote.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	accepted(t, newBroker(t, url, webhooks.Config{}).Publish(patient(t), messages(1, 1)))
	// What the kernel takes in is not the broker's; megabytes per connection would be.
	if n := wrote.Load(); n > 32<<20 {
		t.Errorf("%d bytes were taken", n)
	}
}

func TestAnAnswerWhoseBodyComesInDropsIsCutOff(t *testing.T) {
	t.Parallel()
	cut := make(chan struct{})
	url := raw(t, func(conn net.Conn) {
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
		for {
			if _, err := conn.Write([]byte("x")); err != nil {
				close(cut)
				return
			}
			time.Sleep(20 * time.Millisecond) // the fault itself
		}
	})
	accepted(t, newBroker(t, url, webhooks.Config{Timeout: time.Hour}).Publish(patient(t), messages(1, 1)))
	select {
	case <-cut:
	case <-patient(t).Done():
		t.Error("the connection stays open")
	}
}

func TestAnAnswerWhoseHeadersComeInDropsLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	url := raw(t, func(conn net.Conn) {
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nX-Drop: ")
		for {
			if _, err := conn.Write([]byte("x")); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond) // the fault itself
		}
	})
	errs := newBroker(t, url, webhooks.Config{Timeout: await.Expiry(300 * time.Millisecond)}).Publish(patient(t), messages(1, 1))
	if len(errs) != 1 || kind(errs[0]) != "unavailable" || !strings.Contains(errs[0].Error(), "no answer within 300ms (outcome unknown)") {
		t.Errorf("outcome %v", errs)
	}
}

func TestAnAnswerWithHugeHeadersIsRefused(t *testing.T) {
	t.Parallel()
	url := raw(t, func(conn net.Conn) {
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n")
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(conn, "X-Header-%d: %s\r\n", i, strings.Repeat("x", 1000)); err != nil {
				return
			}
		}
	})
	errs := newBroker(t, url, webhooks.Config{}).Publish(patient(t), messages(1, 1))
	if len(errs) != 1 || kind(errs[0]) != "unavailable" || !strings.Contains(errs[0].Error(), "exceeded") {
		t.Errorf("outcome %v", errs)
	}
}

func TestFailuresLostAnswersAndCutsInvertNothing(t *testing.T) {
	t.Parallel()
	for name, batched := range map[string]int{"single": 1, "batches": 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got brokertest.Seen
			var requests atomic.Int64
			r := newReceiver(t, webhook.Config{}, func(m *outbox.Message) error {
				if m.ID[15]%16 == 0 && requests.Load()%3 == 0 {
					return fmt.Errorf("not now")
				}
				got.Note(m)
				return nil
			})
			inner := r.Config.Handler
			r.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				switch n := requests.Add(1); {
				case n%97 == 0:
					w.WriteHeader(http.StatusBadGateway)
				case n%89 == 0: // accepted, and the answer lost
					inner.ServeHTTP(discard{http.Header{}}, req)
					panic(http.ErrAbortHandler)
				case n%83 == 0: // an answer about the whole request
					w.WriteHeader(http.StatusInternalServerError)
				default:
					inner.ServeHTTP(w, req)
				}
			})
			r.Start()
			p := testnet.New(t, r.Listener.Addr().String())
			b := newBroker(t, "http://"+p.Addr(), webhooks.Config{Batch: batched, Timeout: 5 * time.Second})
			all := messages(3000, 60)
			for part := range slices.Chunk(all, 500) {
				p.CutAfter(40_000) // inside a request, most likely
				brokertest.Deliver(patient(t), t, b, part)
			}
			got.Check(t, all)
		})
	}
}

// discard is an answer that is not sent.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

func TestOneRequestOfAKeyIsUnderWayAndManyOfOthers(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	underWay := map[string]int{}
	var all, most int
	together := make(chan struct{})
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Outbox-Key")
		mu.Lock()
		if underWay[key]++; underWay[key] > 1 {
			t.Errorf("two requests of %s at once", key)
		}
		if all++; all > most {
			if most = all; most == 8 {
				close(together)
			}
		}
		mu.Unlock()
		select {
		case <-together: // eight keys have been seen at the same time
		case <-patient(t).Done():
		}
		mu.Lock()
		underWay[key]--
		all--
		mu.Unlock()
	})
	b := newBroker(t, s.URL, webhooks.Config{MaxInFlight: 8})
	accepted(t, b.Publish(patient(t), messages(400, 20)))
	if most != 8 {
		t.Errorf("%d requests at once, the bound is 8", most)
	}
}

func TestARequestThatTimesOutAloneCounts(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Outbox-Key") == "poison" {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
	})
	defer close(release)
	b := newBroker(t, s.URL, webhooks.Config{Timeout: await.Expiry(time.Second)})
	ctx, stop := context.WithCancel(patient(t))
	var others sync.WaitGroup
	others.Go(func() {
		for ctx.Err() == nil {
			b.Publish(ctx, messages(1, 1))
		}
	})
	var errs []error
	// A machine that stops for most of the request's time lets nobody be answered within it: that is an outage.
	await.UntilElse(t, func() bool {
		errs = b.Publish(patient(t), []*outbox.Message{message("poison", 1)})
		return len(errs) == 1 && kind(errs[0]) == "retried" && strings.Contains(errs[0].Error(), "while others were answered")
	}, func() string { return fmt.Sprintf("another outcome than %v", errs) })
	stop()
	others.Wait()
	// Alone it is an outage.
	errs = b.Publish(patient(t), []*outbox.Message{message("poison", 1)})
	if len(errs) != 1 || kind(errs[0]) != "unavailable" {
		t.Errorf("outcome %v", errs)
	}
}

func TestTheEndOfTheContextInterruptsRequests(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := server(t, func(w http.ResponseWriter, r *http.Request) { <-release })
	defer close(release)
	b := newBroker(t, s.URL, webhooks.Config{Timeout: time.Hour, MaxInFlight: 3})
	ctx, cancel := context.WithTimeout(t.Context(), await.Expiry(100*time.Millisecond))
	defer cancel()
	for i, err := range b.Publish(ctx, messages(20, 10)) {
		if want := map[bool]string{true: "unavailable", false: "skipped"}[i < 10]; kind(err) != want {
			t.Errorf("message %d: %v", i, err)
		}
	}
}

func TestNobodyListening(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "http://127.0.0.1:1", webhooks.Config{})
	brokertest.CheckFirst(t, b, messages(5, 2), "unavailable", "not sent")
	brokertest.CheckPing(t, b)
}

func TestAKeptConnectionThatTheServerClosedIsNoFault(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, webhook.Config{}, nil)
	r.Config.IdleTimeout = await.Expiry(time.Millisecond)
	r.Start()
	b := newBroker(t, r.URL, webhooks.Config{MaxInFlight: 1})
	for i := range 200 {
		accepted(t, b.Publish(patient(t), []*outbox.Message{message("k", i)}))
		time.Sleep(time.Duration(i%3) * time.Millisecond) // about when the server closes; any moment is right
	}
	if n := len(r.Messages()); n < 200 {
		t.Errorf("%d received", n)
	}
}
