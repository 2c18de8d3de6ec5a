package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// output is how the demo shows itself: on a screen, as lines, or as JSON. event may be called at any time and from
// anywhere, the others by one goroutine.
type output interface {
	// progress gets lines while the demo is set up.
	progress() io.Writer
	// running is called when all is set up.
	running() error
	event(event)
	// sample is called every interval.
	sample(*view)
	interval() time.Duration
	// keys are those that a person presses. A nil channel if there is none.
	keys() <-chan byte
	// close gives the terminal back, and may be called by anybody and more than once. Then comes the verdict, if there is
	// one.
	close()
	verdict(verdict) error
}

func newOutput(cfg Config, failed func(error)) output {
	if cfg.JSON {
		return &jsonOutput{out: json.NewEncoder(cfg.Stdout), log: cfg.Stderr, failed: failed}
	}
	lines := &lineOutput{out: cfg.Stdout, failed: failed}
	stdout, ok := cfg.Stdout.(*os.File)
	if !ok || !term.IsTerminal(int(stdout.Fd())) {
		return lines
	}
	lines.style = style{color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if os.Getenv("TERM") == "dumb" {
		return lines
	}
	return &screen{lineOutput: lines, out: stdout, in: cfg.Stdin}
}

// lineOutput writes a line a second.
type lineOutput struct {
	style  style
	failed func(error)

	mu  sync.Mutex
	out io.Writer
}

func (o *lineOutput) write(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, err := io.WriteString(o.out, text); err != nil {
		o.failed(fmt.Errorf("write to standard output: %w", err))
	}
}

// Write is for lines of progress.
func (o *lineOutput) Write(p []byte) (int, error) {
	o.write(string(p))
	return len(p), nil
}

func (o *lineOutput) progress() io.Writer     { return o }
func (o *lineOutput) running() error          { return nil }
func (o *lineOutput) interval() time.Duration { return time.Second }
func (o *lineOutput) keys() <-chan byte       { return nil }
func (o *lineOutput) close()                  {}

func (o *lineOutput) event(e event) { o.write(eventLine(e, o.style)) }

func eventLine(e event, s style) string {
	mark, text := "*", e.Text
	if e.Bad {
		mark, text = "!", s.red(text)
	}
	return fmt.Sprintf("%6s  %s %s\n", clock(e.At), s.bold(mark), text)
}

func (o *lineOutput) sample(v *view) { o.write(v.line(o.style)) }

// line is v as one line of text.
func (v *view) line(s style) string {
	leader := "no relay"
	for _, r := range v.Relays {
		if r.Role == leads {
			leader = r.Name
		}
	}
	brokerState := "up"
	if !v.BrokerUp {
		brokerState = "down"
	}
	latency := "no event arrived"
	if v.Latency.Count > 0 {
		latency = "p99 " + duration(v.Latency.P99)
	}
	return fmt.Sprintf("%6s  in %s/s, out %s/s, %s under way, %s, %s, broker %s; %s\n", clock(v.Elapsed),
		number(v.In.Now), number(v.Out.Now), number(v.Counts.Outstanding), latency, leader, brokerState,
		strings.Join([]string{
			s.verdict("lost", uint64(v.Lost)), s.verdict("phantom", v.Counts.Phantom), s.verdict("out of order", v.Counts.Inverted),
			s.tolerated("duplicated", v.Counts.Duplicated),
		}, ", "))
}

func (o *lineOutput) verdict(v verdict) error {
	_, err := io.WriteString(o.out, v.text(o.style)+next(o.style))
	return err
}

// jsonOutput writes an object a line: its "type" is event, sample or verdict. The last one is the verdict.
type jsonOutput struct {
	failed func(error)
	log    io.Writer

	mu  sync.Mutex
	out *json.Encoder
}

func (o *jsonOutput) write(object any) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.out.Encode(object)
}

func (o *jsonOutput) tell(object any) {
	if err := o.write(object); err != nil {
		o.failed(fmt.Errorf("write to standard output: %w", err))
	}
}

func (o *jsonOutput) progress() io.Writer     { return o.log }
func (o *jsonOutput) running() error          { return nil }
func (o *jsonOutput) interval() time.Duration { return time.Second }
func (o *jsonOutput) keys() <-chan byte       { return nil }
func (o *jsonOutput) close()                  {}

func (o *jsonOutput) event(e event) {
	o.tell(struct {
		Type  string  `json:"type"`
		At    seconds `json:"at_seconds"`
		Event string  `json:"event"`
		Text  string  `json:"text"`
		Bad   bool    `json:"bad,omitempty"`
	}{"event", seconds(e.At), e.Kind, e.Text, e.Bad})
}

func (o *jsonOutput) sample(v *view) {
	relays := make(map[string]relayJSON, len(v.Relays))
	for _, r := range v.Relays {
		relays[r.Name] = relayJSON{r.PID, r.Role}
	}
	o.tell(struct {
		Type       string               `json:"type"`
		At         seconds              `json:"at_seconds"`
		Phase      phase                `json:"phase"`
		In         int                  `json:"committed_per_second"`
		Out        int                  `json:"delivered_per_second"`
		Committed  uint64               `json:"committed"`
		RolledBack uint64               `json:"rolled_back"`
		Delivered  uint64               `json:"delivered"`
		UnderWay   uint64               `json:"under_way"`
		Dead       uint64               `json:"dead_lettered"`
		Lost       int                  `json:"lost"`
		Phantom    uint64               `json:"phantom"`
		Inverted   uint64               `json:"inverted"`
		Corrupted  uint64               `json:"corrupted"`
		Duplicated uint64               `json:"duplicated"`
		Latency    latencyJSON          `json:"latency_ms"`
		BrokerUp   bool                 `json:"broker_up"`
		Relays     map[string]relayJSON `json:"relays"`
	}{
		"sample", seconds(v.Elapsed), v.Phase, v.In.Now, v.Out.Now, v.Counts.Committed, v.Counts.RolledBack, v.Counts.Delivered,
		v.Counts.Outstanding, v.Counts.DeadLettered, v.Lost, v.Counts.Phantom, v.Counts.Inverted, v.Counts.Corrupted,
		v.Counts.Duplicated, v.Latency.json(), v.BrokerUp, relays,
	})
}

func (o *jsonOutput) verdict(v verdict) error {
	faults, dead := v.Faults, v.Dead
	if faults == nil {
		faults = []result{}
	}
	if dead == nil {
		dead = []deadLetter{}
	}
	return o.write(struct {
		Type     string       `json:"type"`
		OK       bool         `json:"ok"`
		Reasons  []string     `json:"reasons,omitempty"`
		Took     seconds      `json:"took_seconds"`
		Report   any          `json:"report"`
		Pending  uint64       `json:"under_way"`
		Latency  latencyJSON  `json:"latency_ms"`
		Calm     latencyJSON  `json:"undisturbed_latency_ms"`
		Faults   []result     `json:"faults"`
		Dead     []deadLetter `json:"dead_letters"`
		Postgres string       `json:"postgres"`
		Broker   string       `json:"broker"`
		Seed     uint64       `json:"seed"`
	}{"verdict", v.OK, v.Reasons, seconds(v.Took), v.Report, v.Pending, v.Latency.json(), v.Calm.json(), faults, dead, v.Postgres, v.Broker, v.Seed})
}

type relayJSON struct {
	PID  int  `json:"pid,omitempty"`
	Role role `json:"role"`
}

type latencyJSON struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

func (l latencies) json() latencyJSON {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return latencyJSON{l.Count, ms(l.P50), ms(l.P95), ms(l.P99), ms(l.Max)}
}

// seconds is a duration in JSON.
type seconds time.Duration

func (s seconds) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", time.Duration(s).Seconds()), nil
}
