package notify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/notify"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/relay"
)

// recorder is a channel that remembers what it was given; answer says how attempts end.
type recorder struct {
	mu     sync.Mutex
	got    []notify.Notification
	at     []time.Time
	answer func(attempt int) error
}

func (*recorder) Name() string { return "recorder" }

func (r *recorder) Send(ctx context.Context, n *notify.Notification) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got, r.at = append(r.got, *n), append(r.at, time.Now())
	if r.answer != nil {
		return r.answer(len(r.got))
	}
	return nil
}

func (r *recorder) all() []notify.Notification {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]notify.Notification(nil), r.got...)
}

// frozen never answers.
type frozen struct{}

func (frozen) Name() string { return "frozen" }

func (frozen) Send(ctx context.Context, _ *notify.Notification) error {
	<-ctx.Done()
	return ctx.Err()
}

func delivery(key string) *relay.Delivery {
	return &relay.Delivery{Message: outbox.Message{ID: outbox.NewID(), Topic: "orders", Key: key}, Attempts: 10}
}

func dead(n int) *relay.Settlement {
	s := &relay.Settlement{}
	for i := range n {
		s.Dead = append(s.Dead, relay.Dead{Delivery: delivery(fmt.Sprint("key-", i)), Reason: relay.ReasonExhausted,
			Err: errors.New("broker says no")})
	}
	return s
}

// running starts a notifier, in a bubble where time is not real, and returns what ends it.
func running(t *testing.T, cfg notify.Config, channels ...notify.Channel) (*notify.Notifier, func()) {
	t.Helper()
	n := notify.New(cfg, channels...)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		n.Run(ctx)
		close(ended)
	}()
	return n, func() {
		cancel()
		<-ended
	}
}

func TestAThousandDeadLettersAreOneNotification(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		n, end := running(t, notify.Config{Relay: "relay-1", Database: "orders", Next: func(d string) string { return "look at " + d }}, r)
		defer end()
		for range 10 {
			n.Settled("events", dead(100))
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		got := r.all()
		if len(got) != 1 || got[0].DeadLetters != 1000 || len(got[0].First) != 5 {
			t.Fatalf("%d notifications: %+v", len(got), got)
		}
		for _, want := range []string{"relay relay-1, database orders, destination events: 1,000 dead letters",
			"key key-0: exhausted after 10 attempts: broker says no", "and 995 more", "look at events"} {
			if !strings.Contains(got[0].Text, want) {
				t.Errorf("the text has no %q:\n%s", want, got[0].Text)
			}
		}
	})
}

func TestNotificationsOnADestinationKeepTheirDistance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		n, end := running(t, notify.Config{Every: time.Minute}, r)
		defer end()
		for range 150 {
			n.Settled("events", dead(1))
			time.Sleep(time.Second)
		}
		n.Settled("others", dead(1)) // waits for nobody else's distance
		time.Sleep(3 * time.Second)
		total := 0
		for i, got := range r.all() {
			total += got.DeadLetters
			if i > 0 && got.Destination == "events" && r.at[i].Sub(r.at[i-1]) < time.Minute {
				t.Errorf("notification %d comes %v after the one before", i, r.at[i].Sub(r.at[i-1]))
			}
		}
		if got := r.all(); len(got) != 4 || got[3].Destination != "others" {
			t.Fatalf("notifications: %+v", got)
		}
		end()
		for _, got := range r.all()[4:] {
			total += got.DeadLetters
		}
		if total != 151 {
			t.Errorf("%d dead letters were told of, want 151", total)
		}
	})
}

func TestWhatFailsIsSentAgainAndThenDropped(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		answer   func(int) error
		attempts int
		dropped  int
	}{
		{"it recovers", func(n int) error {
			if n < 3 {
				return errors.New("down")
			}
			return nil
		}, 3, 0},
		{"it stays down", func(int) error { return errors.New("down") }, 5, 7},
		{"it refuses", func(int) error { return outbox.Permanent(errors.New("no such hook")) }, 1, 7},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := &recorder{answer: test.answer}
				dropped := make(chan int, 10)
				n, end := running(t, notify.Config{Observe: func(o notify.Outcome) {
					if o.Err == nil {
						dropped <- 0
						return
					}
					dropped <- o.Messages
				}}, r)
				defer end()
				n.Settled("events", dead(7))
				if got := <-dropped; got != test.dropped || len(r.all()) != test.attempts {
					t.Errorf("%d messages dropped after %d attempts, want %d after %d", got, len(r.all()), test.dropped, test.attempts)
				}
				for i := 1; i < len(r.at); i++ {
					if r.at[i].Sub(r.at[i-1]) < 500*time.Millisecond {
						t.Errorf("attempt %d follows without a pause", i+1)
					}
				}
			})
		})
	}
}

func TestAFrozenReceiverHoldsUpNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		n, end := running(t, notify.Config{Every: time.Second}, frozen{}, r)
		began := time.Now()
		for range 100_000 {
			n.Settled("events", dead(1))
		}
		if time.Since(began) != 0 {
			t.Error("what takes events in has waited")
		}
		time.Sleep(time.Hour)
		n.Settled("events", dead(1))
		time.Sleep(time.Minute)
		if got := r.all(); len(got) != 2 || got[0].DeadLetters != 100_000 || got[1].DeadLetters != 1 {
			t.Errorf("the channel beside the frozen one has %+v", got)
		}
		began = time.Now()
		end()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("the end waited %v for the frozen receiver", took)
		}
	})
}

func TestBlockedKeysAndADestinationThatGaveUpAreToldOfAtTheEndToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		n, end := running(t, notify.Config{}, r)
		n.Settled("events", &relay.Settlement{
			Hold: []relay.Hold{
				{Delivery: delivery("a"), Blocked: true, Err: outbox.Permanent(errors.New("too large"))},
				{Delivery: delivery("a")}, // behind it
				{Delivery: delivery("b"), RetryAt: time.Now().Add(time.Hour), Err: errors.New("later")},
			},
			HeldRetry: []relay.Hold{{Delivery: delivery("c"), Blocked: true, Err: errors.New("no")}},
			HeldDead:  []relay.Dead{{Delivery: delivery("d"), Reason: relay.ReasonInvalid}},
		})
		n.Settled("events", &relay.Settlement{HeldRetry: []relay.Hold{{Delivery: delivery("e"), RetryAt: time.Now()}}})
		n.Stopped("events", errors.New("the policy is stop"))
		end()
		got := r.all()
		if len(got) != 1 || got[0].Blocked != 2 || got[0].DeadLetters != 1 || len(got[0].First) != 3 ||
			got[0].Stopped != "the policy is stop" {
			t.Fatalf("notifications: %+v", got)
		}
		if f := got[0].First; f[0].Reason != "invalid" || f[1].Reason != "refused" || f[1].Outcome != "blocked" ||
			f[2].Reason != "exhausted" {
			t.Errorf("first: %+v", f)
		}
	})
}

func TestTheWebhookSpeaksSlacksFormat(t *testing.T) {
	t.Parallel()
	bodies := make(chan map[string]string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := map[string]string{}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Method != http.MethodPost ||
			r.Header.Get("Content-Type") != "application/json" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		bodies <- body
	}))
	defer server.Close()
	if err := notify.NewWebhook(server.URL, time.Minute).Send(t.Context(), &notify.Notification{Text: "a <!channel> & b"}); err != nil {
		t.Fatal(err)
	}
	if got := <-bodies; len(got) != 1 || got["text"] != "a &lt;!channel&gt; &amp; b" {
		t.Errorf("got %v", got)
	}
}

func TestAnswersOfAWebhookSayWhetherToTryAgain(t *testing.T) {
	t.Parallel()
	for status, permanent := range map[int]bool{http.StatusNotFound: true, http.StatusFound: true,
		http.StatusInternalServerError: false, http.StatusTooManyRequests: false} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "no_service")
		}))
		defer server.Close()
		err := notify.NewWebhook(server.URL+"/services/hidden", time.Minute).Send(t.Context(), &notify.Notification{})
		if err == nil || outbox.IsPermanent(err) != permanent || !strings.Contains(err.Error(), "no_service") {
			t.Errorf("status %d: error %v, permanent %v", status, err, outbox.IsPermanent(err))
		}
		if status == http.StatusTooManyRequests && outbox.RetryDelay(err) != 7*time.Second {
			t.Errorf("it asks for %v", outbox.RetryDelay(err))
		}
	}
	err := notify.NewWebhook("http://127.0.0.1:1/services/hidden", time.Minute).Send(t.Context(), &notify.Notification{})
	if err == nil || outbox.IsPermanent(err) || strings.Contains(err.Error(), "hidden") {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestACommandGetsTheNotificationOnStandardInput(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out put; $(false).json")
	want := notify.Notification{Destination: "events", DeadLetters: 3, Text: "three"}
	if err := notify.NewCommand([]string{"tee", file}, time.Minute).Send(t.Context(), &want); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got notify.Notification
	if err := json.Unmarshal(text, &got); err != nil || got.DeadLetters != 3 || got.Destination != "events" {
		t.Errorf("%s: %v", text, err)
	}
}

func TestACommandThatFailsOrHangsIsNamed(t *testing.T) {
	t.Parallel()
	err := notify.NewCommand([]string{"sh", "-c", "echo no pager; exit 3"}, time.Minute).Send(t.Context(), &notify.Notification{})
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no pager") {
		t.Errorf("got %v", err)
	}
	err = notify.NewCommand([]string{"sleep", "1000"}, 50*time.Millisecond).Send(t.Context(), &notify.Notification{})
	if err == nil || !strings.Contains(err.Error(), "killed after 50ms") {
		t.Errorf("got %v", err)
	}
}

func TestACommandIsKilledWithWhatItHasStarted(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- notify.NewCommand([]string{"sh", "-c", "sleep 1000 & echo $! > " + file + "; wait"}, time.Hour).Send(ctx,
			&notify.Notification{})
	}()
	pid := ""
	await.Until(t, "the command has a child", func() bool {
		text, err := os.ReadFile(file)
		pid = strings.TrimSpace(string(text))
		return err == nil && pid != ""
	})
	cancel()
	if err := <-ended; err == nil {
		t.Error("it ended well")
	}
	await.Until(t, "the child is gone", func() bool { return !alive(pid) })
}

// alive reports whether a process runs: neither gone nor a zombie.
func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}
