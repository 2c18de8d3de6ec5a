package relay

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/schema"
)

var update = flag.Bool("update", false, "rewrite the transcripts' answers")

// TestTranscripts replays testdata/*.txt: lines that begin with "> " are told to a core, what follows is
// what it then wants. Read them as the core's documentation; -update rewrites the answers.
//
//	> start
//	> read a1 b2 a3        a batch arrived; a letter is a key, a number the position; "-4" has no key;
//	                       suffixes: "!" invalid, "+2s" deliver in 2 s, "@u" of topic u instead of t
//	> done 0 ok fail skip  the call of stripe 0 ended: ok, fail, refused, gone (its topic is), down, skip per message;
//	                       "fail+5s", "gone+5s" and "down+5s" ask for a pause
//	> settled              the settlement succeeded
//	> lanes a b >c         a page of the lanes that have holds, that ends with c or the last; no more if it is empty
//	> due a:1s b@u:0s      lanes with holds, when they are due, and the topics of their heads
//	> held a a3*2 a5^      the holds of lane a; "*2" two attempts so far, "^" blocked
//	> held a a3~ b4@u~     holds that are sent once more: a replay
//	> held a notyet:1s     they can't be had for 1 s
//	> controls a @u rate=5 operators pause keys, topics ("@u"), both ("a@u") or all ("*"), for a time ("+1s") or not
//	> +100ms               time passes
//	> drain
func TestTranscripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("the core answers otherwise (-update accepts it):\n%s", got)
			}
		})
	}
}

// player drives one core.
type player struct {
	t     *testing.T
	core  *core
	now   time.Time
	start time.Time
	calls map[int]*call
}

func replay(t *testing.T, script string) string {
	start := time.Unix(1_700_000_000, 0)
	p := &player{t: t, now: start, start: start, calls: map[int]*call{}}
	cfg := coreConfig{
		Stripes: 1, ReadMax: 4, CallMax: 4, CallBytes: 1 << 20, MaxInFlight: 16, MaxInFlightBytes: 1 << 20,
		MaxHeldLanes: 100, LanesMax: 5, WalkMax: 5,
		MaxLoaded: 10, HeldMax: 4, HeldLanes: 1, MaxAttempts: 3, OnExhausted: DeadLetter,
		Backoff:   Backoff{Initial: 400 * time.Millisecond, Max: 10 * time.Second},
		Outage:    Backoff{Initial: 100 * time.Millisecond, Max: time.Second},
		HoldAfter: 500 * time.Millisecond, SettleDelay: 10 * time.Millisecond, Resync: time.Hour,
	}
	var out strings.Builder
	defer func() {
		if t.Failed() {
			t.Log("so far:\n" + out.String())
		}
	}()
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"), line == "":
			out.WriteString(line + "\n")
		case strings.HasPrefix(line, "> "):
			out.WriteString(line + "\n")
			words := strings.Fields(line[2:])
			if words[0] == "config" {
				p.configure(&cfg, words[1:])
				continue
			}
			if p.core == nil {
				p.core = newCore(cfg, func() float64 { return 0 })
			}
			p.tell(words)
			p.answer(&out)
		}
	}
	return out.String()
}

func (p *player) configure(cfg *coreConfig, words []string) {
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		n, _ := strconv.Atoi(value)
		switch name {
		case "stripes":
			cfg.Stripes = n
		case "attempts":
			cfg.MaxAttempts = n
		case "policy":
			cfg.OnExhausted = Policy(value)
		case "control":
			cfg.Control = p.duration(value)
		case "select":
			cfg.Select = func(m *outbox.Message) bool { return m.Topic == value }
		case "inflight":
			cfg.MaxInFlight = n
		case "lanes":
			cfg.MaxHeldLanes = n
		default:
			p.t.Fatalf("unknown setting %q", w)
		}
	}
}

func (p *player) tell(words []string) {
	switch verb, args := words[0], words[1:]; {
	case strings.HasPrefix(verb, "+"):
		p.now = p.now.Add(p.duration(verb[1:]))
	case verb == "read":
		var b Batch
		for _, a := range args {
			b.Deliveries = append(b.Deliveries, p.delivery(a))
		}
		p.core.onRead(p.now, b)
	case verb == "done":
		stripe, _ := strconv.Atoi(args[0])
		k := p.calls[stripe]
		if k == nil {
			p.t.Fatalf("no call in flight on stripe %d", stripe)
		}
		delete(p.calls, stripe)
		p.core.onPublished(p.now, k, p.outcomes(args[1:], len(k.Batch)))
	case verb == "settled":
		if p.core.settling == nil {
			p.t.Fatal("nothing is being settled")
		}
		p.core.onSettled(p.now)
	case verb == "lanes":
		next := ""
		if n := len(args); n > 0 {
			next = strings.TrimPrefix(args[n-1], ">")
			args = slices.DeleteFunc(args, func(a string) bool { return a[0] == '>' })
		}
		p.core.onLanes(p.now, args, next)
	case verb == "due":
		if p.core.listing == nil {
			p.t.Fatalf("due lanes were not asked for: %q", words)
		}
		var list []HeldLane
		for _, a := range args {
			name, due, _ := strings.Cut(a, ":")
			name, topic, other := strings.Cut(name, "@")
			h := HeldLane{Lane: name, Shard: int(name[0] - 'a'), Due: p.now.Add(p.duration(due)), Route: Route{Topic: "t"}}
			if other {
				h.Route.Topic = topic
			}
			list = append(list, h)
		}
		p.core.onDue(p.now, list)
	case verb == "held" && len(args) == 2 && strings.HasPrefix(args[1], "notyet"):
		_, due, _ := strings.Cut(args[1], ":")
		p.core.onHeld(p.now, args[:1], [][]Delivery{NotYet(p.now.Add(p.duration(due)), false)})
	case verb == "held":
		var list []Delivery
		for _, a := range args[1:] {
			list = append(list, p.delivery(a))
		}
		p.core.onHeld(p.now, args[:1], [][]Delivery{list})
	case verb == "controls":
		p.core.onControls(p.now, p.controls(args))
	case verb == "start":
	case verb == "drain":
		p.core.drain()
	default:
		p.t.Fatalf("unknown command %q", words)
	}
}

func (p *player) controls(words []string) (c Controls) {
	for _, w := range words {
		if rate, ok := strings.CutPrefix(w, "rate="); ok {
			c.Rate, _ = strconv.ParseFloat(rate, 64)
			continue
		}
		w, until, ends := strings.Cut(w, "+")
		lane, topic, _ := strings.Cut(w, "@")
		pause := Pause{Topic: topic, Lane: strings.TrimSuffix(lane, "*")}
		if ends {
			pause.Until = p.now.Add(p.duration(until))
		}
		c.Pauses = append(c.Pauses, pause)
	}
	return c
}

func (p *player) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

func (p *player) delivery(word string) Delivery {
	d := Delivery{Message: outbox.Message{Topic: "t"}, Window: 1}
	word, topic, other := strings.Cut(word, "@")
	if other {
		d.Topic = topic
	}
	word, d.Replayed = strings.CutSuffix(word, "~")
	word, blocked := strings.CutSuffix(word, "^")
	d.Blocked = blocked
	word, invalid := strings.CutSuffix(word, "!")
	if invalid {
		d.Invalid = errors.New("headers are not an object")
	}
	word, delay, delayed := strings.Cut(word, "+")
	if delayed {
		d.DeliverAt = p.now.Add(p.duration(delay))
	}
	word, attempts, tried := strings.Cut(word, "*")
	if tried {
		d.Attempts, _ = strconv.Atoi(attempts)
	}
	position, err := strconv.Atoi(word[1:])
	if err != nil {
		p.t.Fatalf("message %q: %v", word, err)
	}
	d.Position = int64(position)
	d.ID[15] = byte(position)
	if word[0] != '-' {
		d.Key = word[:1]
		d.Shard = int(word[0] - 'a')
	}
	return d
}

func (p *player) outcomes(words []string, n int) []error {
	if len(words) == 1 && words[0] == "ok" {
		return nil
	}
	if len(words) != n {
		p.t.Fatalf("%d outcomes for %d messages", len(words), n)
	}
	errs := make([]error, n)
	for i, w := range words {
		w, after, asked := strings.Cut(w, "+")
		switch w {
		case "ok":
		case "fail":
			errs[i] = errors.New("failed")
		case "refused":
			errs[i] = outbox.Permanent(errors.New("refused"))
		case "gone":
			errs[i] = outbox.TopicUnavailable(errors.New("no such topic"))
		case "clock":
			errs[i] = outbox.TopicUnavailable(outbox.Unavailable(errors.New("the topic's server has another time")))
		case "down":
			errs[i] = outbox.Unavailable(errors.New("nobody answers"))
		case "skip":
			errs[i] = outbox.ErrSkipped
		default:
			p.t.Fatalf("unknown outcome %q", w)
		}
		if asked {
			errs[i] = outbox.RetryAfter(errs[i], p.duration(after))
		}
	}
	return errs
}

// answer writes what the core wants now.
func (p *player) answer(out *strings.Builder) {
	r := p.core.next(p.now)
	if r.Read > 0 {
		fmt.Fprintf(out, "read up to %d\n", r.Read)
	}
	for _, k := range r.Publish {
		p.calls[k.stripe] = k
		fmt.Fprintf(out, "publish %d:", k.stripe)
		for _, it := range k.items {
			fmt.Fprintf(out, " %s", name(it.d))
		}
		out.WriteString(map[bool]string{true: " (probe)\n", false: "\n"}[k.outageProbe])
	}
	if s := r.Settle; s != nil {
		out.WriteString("settle:")
		if s.Through != nil {
			fmt.Fprintf(out, " through %s", name(s.Through))
		}
		for _, h := range s.Hold {
			fmt.Fprintf(out, "; hold %s%s", name(h.Delivery), p.until(h))
		}
		for _, d := range s.Dead {
			fmt.Fprintf(out, "; dead %s %s", name(d.Delivery), d.Reason)
		}
		for _, d := range s.HeldDelivered {
			fmt.Fprintf(out, "; held %s delivered", name(d))
		}
		for _, h := range s.HeldRetry {
			fmt.Fprintf(out, "; held %s again%s", name(h.Delivery), p.until(h))
		}
		for _, d := range s.HeldDead {
			fmt.Fprintf(out, "; held %s dead %s", name(d.Delivery), d.Reason)
		}
		out.WriteString("\n")
	}
	if r.Controls {
		out.WriteString("read the controls\n")
	}
	if q := r.Lanes; q != nil {
		out.WriteString("list held lanes" + map[bool]string{true: " after " + q.After}[q.After != ""] + "\n")
	}
	if q := r.Due; q != nil {
		fmt.Fprintf(out, "list due lanes, up to %d%s\n", q.Limit, besides(q))
	}
	if r.Held != nil {
		fmt.Fprintf(out, "load holds of %s, up to %d\n", strings.Join(r.Held.Lanes, ", "), r.Held.Limit)
	}
	if r.Drained {
		fmt.Fprintf(out, "drained, error: %v\n", r.Err)
	}
	if !r.Wake.IsZero() {
		fmt.Fprintf(out, "wake in %v\n", r.Wake.Sub(p.now))
	}
}

// besides tells which routes and pauses are named in a query.
func besides(q *DueQuery) string {
	var closed, probes, paused []string
	for _, r := range q.Closed {
		closed = append(closed, " not @"+r.Topic)
	}
	for _, r := range q.Probes {
		probes = append(probes, " one of @"+r.Topic)
	}
	for _, pause := range q.Paused {
		paused = append(paused, " not "+pause.Lane+map[bool]string{true: "@" + pause.Topic}[pause.Topic != ""])
	}
	all := slices.Concat(closed, probes, paused)
	slices.Sort(all)
	return strings.Join(all, "")
}

func (p *player) until(h Hold) string {
	switch {
	case h.Blocked:
		return " blocked"
	case h.RetryAt.IsZero():
		return ""
	}
	return fmt.Sprintf(" for %v", h.RetryAt.Sub(p.now))
}

func name(d *Delivery) string {
	key := d.Key
	if key == "" {
		key = "-"
	}
	return fmt.Sprint(key, d.Position)
}

// What an operator has discarded waits for nothing any more, and no probe would tell that its topic is there.
func TestTheOutageOfATopicEndsWithTheLastMessageThatWaitsForIt(t *testing.T) {
	t.Parallel()
	p := &player{t: t, now: time.Unix(1_700_000_000, 0), calls: map[int]*call{}}
	p.core = newCore(coreConfig{
		Stripes: 1, ReadMax: 4, CallMax: 4, CallBytes: 1 << 20, MaxInFlight: 16, MaxInFlightBytes: 1 << 20,
		MaxHeldLanes: 100, LanesMax: 5, WalkMax: 5, MaxLoaded: 10, HeldMax: 4, HeldLanes: 1,
		MaxAttempts: 3, Outage: Backoff{Initial: time.Second, Max: time.Second}, HoldAfter: time.Millisecond, Resync: 5 * time.Second,
		Control: time.Hour,
	}, func() float64 { return 0 })
	play := func(steps ...string) {
		for _, step := range steps {
			p.tell(strings.Fields(step))
			p.answer(new(strings.Builder))
		}
	}
	play("start", "controls", "lanes", "due", "read a1@u b2@u", "done 0 gone gone", "settled")
	play("+2s", "due a@u:0s", "held a a1@u", "done 0 gone", "settled")
	play("+1s", "due b@u:-1s", "held b")
	if p.core.oldestOutage() == nil {
		t.Fatal("it has ended while a message waits")
	}
	play("due a@u:0s", "held a")
	if p.core.oldestOutage() == nil {
		t.Fatal("it has ended before nothing was found")
	}
	p.core.onControls(p.now, Controls{Pauses: []Pause{{Topic: "u"}}})
	play("due a@u:0s", "held a", "due")
	if p.core.oldestOutage() == nil {
		t.Fatal("it has ended while what waits is paused")
	}
	p.core.onControls(p.now, Controls{Pauses: []Pause{{Lane: schema.Lane("a")}}})
	play("start", "due")
	if p.core.oldestOutage() == nil {
		t.Fatal("it has ended while a key that waits is paused")
	}
	p.core.onControls(p.now, Controls{Pauses: []Pause{{Topic: "t"}}})
	play("start", "due a@u:1h")
	if o := p.core.oldestOutage(); o != nil {
		t.Errorf("it goes on although nothing waits for it: %v", o.cause)
	}
}
