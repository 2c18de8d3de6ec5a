package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgoutbox/outbox"
)

// The bubbles of testing/synctest have a clock of their own, and fail a test that leaves a goroutine.

// table is a source in memory.
type table struct {
	mu       sync.Mutex
	rows     []Delivery
	settled  int
	dead     []Dead
	sessions []*tableSession
	acquire  func() error // nil: always
	settle   error        // what sessions that begin now answer to Settle
	hang     func()       // in Settle; nil: it doesn't
	broker   string       // that was recorded
}

func newTable(n int) *table {
	t := &table{}
	for i := range n {
		d := Delivery{Message: outbox.Message{Topic: "t", Key: fmt.Sprint("k", i%7), Position: int64(i + 1)}, Shard: i % 7}
		d.ID[15] = byte(i + 1)
		t.rows = append(t.rows, d)
	}
	return t
}

func (t *table) Acquire(ctx context.Context) (Session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.acquire != nil {
		if err := t.acquire(); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &tableSession{table: t, next: t.settled, expires: time.Now().Add(time.Hour), settle: t.settle}
	t.sessions = append(t.sessions, s)
	return s, nil
}

func (*table) Report(State, error) {}
func (*table) Traits() Traits      { return Traits{} }

func (t *table) done() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.settled
}

type tableSession struct {
	table     *table
	next      int
	expires   time.Time
	settle    error // what Settle answers
	reads     error // what Next answers
	closed    bool
	abandoned bool // closed without giving the lease back
}

func (s *tableSession) Next(ctx context.Context, limit int) (Batch, error) {
	s.table.mu.Lock()
	n := min(limit, len(s.table.rows)-s.next)
	rows := slices.Clone(s.table.rows[s.next : s.next+n])
	s.next += n
	err := s.reads
	s.table.mu.Unlock()
	if err != nil {
		return Batch{}, err
	}
	if n == 0 {
		select {
		case <-ctx.Done():
			return Batch{}, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return Batch{Deliveries: rows}, nil
}

func (s *tableSession) Settle(_ context.Context, st Settlement) error {
	if s.table.hang != nil {
		s.table.hang()
	}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if s.settle != nil {
		return s.settle
	}
	if st.Through != nil {
		s.table.settled = int(st.Through.Position)
	}
	s.table.dead = append(s.table.dead, st.Dead...)
	return nil
}

func (s *tableSession) Lanes(context.Context, string, int) ([]string, string, error) {
	return nil, "", nil
}
func (s *tableSession) Due(context.Context, DueQuery) ([]HeldLane, error) { return nil, nil }
func (s *tableSession) Held(_ context.Context, lanes []string, _ int) ([][]Delivery, error) {
	return make([][]Delivery, len(lanes)), nil
}
func (s *tableSession) Controls(context.Context) (Controls, error) { return Controls{}, nil }

func (s *tableSession) Recognize(_ context.Context, identity []string) error {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	if s.table.broker == "" && len(identity) > 0 {
		s.table.broker = identity[0]
	}
	if s.table.broker != identity[0] {
		return outbox.Permanent(errors.New("another broker"))
	}
	return nil
}

func (s *tableSession) Expires() time.Time {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return s.expires
}

func (s *tableSession) Close(ctx context.Context) error {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	s.closed, s.abandoned = ctx.Err() == nil, ctx.Err() != nil
	return ctx.Err()
}

// wire is a broker in memory whose answers a test decides.
type wire struct {
	mu      sync.Mutex
	got     []int64
	answer  func(m *outbox.Message) error // nil: accepted
	latency time.Duration
	hang    func() // nil: it doesn't
}

func (w *wire) Publish(ctx context.Context, batch []*outbox.Message) []error {
	if w.hang != nil {
		w.hang()
	}
	if w.latency > 0 {
		select {
		case <-time.After(w.latency):
		case <-ctx.Done():
			errs := make([]error, len(batch))
			for i := range errs {
				errs[i] = outbox.Unavailable(ctx.Err())
			}
			return errs
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	errs := make([]error, len(batch))
	for i, m := range batch {
		if w.answer != nil {
			errs[i] = w.answer(m)
		}
		if errs[i] == nil {
			w.got = append(w.got, m.Position)
		}
	}
	return errs
}

func (w *wire) Close() error { return nil }

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.got)
}

// start runs a relay and returns how to end it.
func start(t *testing.T, source Source, broker Broker, cfg Config) (stop func() error) {
	t.Helper()
	r, err := New(source, broker, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() error {
		cancel()
		return <-ended
	}
}

func TestARelayDeliversAndSettlesEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, broker := newTable(1000), &wire{latency: time.Millisecond}
		stop := start(t, source, broker, Config{Batch: 50})
		time.Sleep(time.Minute)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if source.done() != 1000 || broker.count() != 1000 {
			t.Errorf("settled %d, delivered %d, want 1000", source.done(), broker.count())
		}
		if !source.sessions[0].closed {
			t.Error("the lease was not given back")
		}
	})
}

func TestARelayThatIsToldToStopSettlesWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, broker := newTable(20), &wire{latency: 3 * time.Second}
		stop := start(t, source, broker, Config{Batch: 20})
		time.Sleep(time.Second)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if source.done() != 20 {
			t.Errorf("settled %d of 20: what was in flight will be repeated", source.done())
		}
	})
}

func TestADrainGivesUpOnABrokerThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, broker := newTable(20), &wire{latency: time.Hour}
		stop := start(t, source, broker, Config{DrainTimeout: 5 * time.Second})
		time.Sleep(time.Second)
		began := time.Now()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("the drain took %v, want the timeout", took)
		}
		if source.done() != 0 {
			t.Error("settled what nobody accepted")
		}
	})
}

// Publish or a session may ignore that its context has ended.
func TestADrainLeavesACallThatHangsBehindAndKeepsTheLease(t *testing.T) {
	release := make(chan struct{})
	hang := func() { <-release }
	for call, broken := range map[string]bool{"Broker.Publish": false, "Session.Settle": false, "Broker.Publish (2)": true} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release = make(chan struct{})
				source, broker := newTable(20), &wire{}
				if strings.HasPrefix(call, "Broker") {
					broker.hang = hang
				} else {
					source.hang = hang
				}
				seen := &states{}
				stop := start(t, source, broker, Config{DrainTimeout: 5 * time.Second, Grace: time.Second, Observer: seen})
				time.Sleep(time.Minute)
				bound := 6 * time.Second
				if source.mu.Lock(); broken { // the session is over already, and what hangs is waited for
					source.sessions[0].expires = time.Now().Add(-time.Second)
					bound = time.Second
				}
				source.mu.Unlock()
				time.Sleep(time.Minute)
				began := time.Now()
				err := stop()
				if !errors.Is(err, ErrHung) || !strings.Contains(err.Error(), call) {
					t.Errorf("Run has ended with %v", err)
				}
				if took := time.Since(began); took != bound {
					t.Errorf("the drain took %v, want %v", took, bound)
				}
				if s := source.sessions[0]; s.closed || !s.abandoned {
					t.Errorf("the lease was given back: %v; it is renewed on: %v", s.closed, !s.abandoned)
				}
				if last := seen.list[len(seen.list)-1]; last != StateStopped || len(source.sessions) != 1 {
					t.Errorf("%d sessions; the last state is %v", len(source.sessions), last)
				}
				close(release)
			})
		})
	}
}

func TestADrainThatBreaksIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		source, broker := newTable(20), &wire{latency: 3 * time.Second}
		stop := start(t, source, broker, Config{Batch: 20, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		time.Sleep(time.Second)
		source.mu.Lock()
		source.sessions[0].settle = errors.New("connection reset")
		source.mu.Unlock()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(log.String(), "will be delivered again") || !strings.Contains(log.String(), "connection reset") {
			t.Errorf("nothing tells why what was delivered is not settled:\n%s", &log)
		}
	})
}

func TestASessionThatBreaksIsReplacedAndUnsettledMessagesAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, broker := newTable(10), &wire{}
		tries := 0
		source.acquire = func() error {
			if tries++; tries == 2 {
				return errors.New("the database restarts")
			}
			return nil
		}
		stop := start(t, source, broker, Config{})
		synctest.Wait()
		source.mu.Lock()
		source.sessions[0].settle = errors.New("connection reset")
		source.mu.Unlock()
		time.Sleep(time.Minute)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if len(source.sessions) != 2 || source.done() != 10 || broker.count() != 20 {
			t.Errorf("%d sessions, settled %d, delivered %d; want 2, 10, and everything twice", len(source.sessions),
				source.done(), broker.count())
		}
	})
}

// pondering is a source that takes a while to read what operators ask.
type pondering struct {
	*table
	takes       time.Duration
	interrupted atomic.Int32
}

func (p *pondering) Acquire(ctx context.Context) (Session, error) {
	session, err := p.table.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &ponderingSession{session.(*tableSession), p}, nil
}

type ponderingSession struct {
	*tableSession
	source *pondering
}

func (s *ponderingSession) Controls(ctx context.Context) (Controls, error) {
	select {
	case <-ctx.Done():
		s.source.interrupted.Add(1)
	case <-time.After(s.source.takes):
	}
	return Controls{}, ctx.Err()
}

// A relay whose broker was refused interrupted its own statements. That cost it the connection, so it didn't give the
// lease back, and took it again at the next try: for minutes the destination's own relay didn't get it.
func TestASessionThatBreaksLetsItsStatementsEnd(t *testing.T) {
	for takes, interrupted := range map[time.Duration]bool{usualPause / 10: false, time.Hour: true} {
		synctest.Test(t, func(t *testing.T) {
			source := &pondering{table: newTable(1), takes: takes}
			source.broker = "a"
			stop := start(t, source, &named{name: "b"}, Config{})
			time.Sleep(time.Minute)
			if err := stop(); err != nil {
				t.Error(err)
			}
			source.mu.Lock()
			defer source.mu.Unlock()
			if n := len(source.sessions); n < 5 {
				t.Errorf("%d sessions in a minute", n)
			}
			if n := source.interrupted.Load(); n > 0 != interrupted {
				t.Errorf("%d statements of %v were interrupted", n, takes)
			}
		})
	}
}

func TestALeaseThatRunsOutEndsTheSessionBeforeAnythingMoreIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, broker := newTable(0), &wire{}
		stop := start(t, source, broker, Config{})
		time.Sleep(time.Second)
		source.mu.Lock()
		first := source.sessions[0]
		first.expires = time.Now().Add(-time.Second) // renewal failed, as after a long freeze
		source.acquire = func() error { return errors.New("another relay has it") }
		source.rows = newTable(5).rows
		source.mu.Unlock()
		time.Sleep(time.Minute)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if n := broker.count(); n != 0 {
			t.Errorf("%d messages were published without a lease", n)
		}
		if !first.closed {
			t.Error("the session was left open")
		}
	})
}

func TestAnOutageSpendsNoAttemptAndTheDestinationFlowsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		source := newTable(100)
		broker := &wire{answer: func(*outbox.Message) error {
			if down {
				return outbox.Unavailable(errors.New("connection refused"))
			}
			return nil
		}}
		seen := &states{}
		stop := start(t, source, broker, Config{MaxAttempts: 1, Observer: seen})
		time.Sleep(10 * time.Minute)
		broker.mu.Lock()
		down = false
		broker.mu.Unlock()
		time.Sleep(3 * time.Second)
		if source.done() != 100 || len(source.dead) != 0 {
			t.Errorf("settled %d of 100, %d dead letters", source.done(), len(source.dead))
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if want := []State{StateWaiting, StateFlowing, StateStalled, StateFlowing, StateStopped}; !slices.Equal(seen.list, want) {
			t.Errorf("states %v, want %v", seen.list, want)
		}
	})
}

func TestThePolicyStopEndsRunWithTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("too large")
		source, broker := newTable(5), &wire{answer: func(m *outbox.Message) error {
			if m.Position == 3 {
				return outbox.Permanent(refused)
			}
			return nil
		}}
		r, err := New(source, broker, Config{OnExhausted: Stop})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Run(t.Context()); !errors.Is(err, refused) {
			t.Errorf("Run returned %v, want the broker's reason", err)
		}
		if source.done() != 2 {
			t.Errorf("settled %d, want the 2 before the refused one", source.done())
		}
	})
}

func TestOnlyWhatAnotherConfigurationCuresEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reason := errors.New("no place for dead letters")
		source := newTable(1)
		source.acquire = func() error { return Final(reason) }
		r, err := New(source, &wire{}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Run(t.Context()); !errors.Is(err, reason) || !outbox.IsPermanent(err) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// A right that is missing, a hot standby, a login that is refused: somebody repairs that while the relay runs.
func TestARelayGoesOnByItselfWhenWhatItsSourceLacksIsRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, seen := newTable(20), &states{}
		began := time.Now()
		source.acquire = func() error {
			if time.Since(began) < time.Hour {
				return outbox.Permanent(errors.New("hot standby"))
			}
			return nil
		}
		stop := start(t, source, &wire{}, Config{Observer: seen})
		time.Sleep(30 * time.Minute)
		seen.mu.Lock()
		if last := seen.list[len(seen.list)-1]; last != StateBroken {
			t.Errorf("meanwhile it is %s", last)
		}
		seen.mu.Unlock()
		time.Sleep(30*time.Minute + 10*time.Second)
		if source.done() != 20 {
			t.Errorf("settled %d of 20", source.done())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Each session delivers again what the one before could not settle.
func TestARelayThatMayNotSettleRepeatsLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, broker := newTable(1), &wire{}
		source.settle = outbox.Permanent(errors.New("no right to mark rows"))
		stop := start(t, source, broker, Config{})
		time.Sleep(time.Hour)
		if n := broker.count(); n < 10 || n > 100 {
			t.Errorf("the message was published %d times in an hour", n)
		}
		source.mu.Lock()
		source.settle = nil
		source.mu.Unlock()
		time.Sleep(90 * time.Second)
		if source.done() != 1 {
			t.Error("it was not settled when the right was back")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// What can't be sent is to be set aside, and a full disk refuses that. Which of the two is told doesn't change with
// each attempt.
func TestARelayThatCannotSettleIsBrokenWhateverItsBrokerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, seen := newTable(1), &states{}
		source.settle = errors.New("no space left on device")
		broker := &wire{answer: func(*outbox.Message) error { return outbox.TopicUnavailable(errors.New("no stream")) }}
		stop := start(t, source, broker, Config{Observer: seen})
		time.Sleep(time.Hour)
		seen.mu.Lock()
		first := slices.Index(seen.list, StateBroken)
		if first < 0 || slices.ContainsFunc(seen.list[first:], func(s State) bool { return s != StateBroken && s != StateWaiting }) {
			t.Errorf("its first states are %v", seen.list[:min(len(seen.list), 9)])
		}
		seen.mu.Unlock()
		source.mu.Lock()
		source.settle = nil
		source.mu.Unlock()
		time.Sleep(time.Minute)
		seen.mu.Lock()
		if last := seen.list[len(seen.list)-1]; last == StateBroken {
			t.Error("it is broken when there is room")
		}
		seen.mu.Unlock()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// noted is a source that tells which causes it was told.
type noted struct {
	*table
	causes *[]error
}

func (n noted) Report(_ State, err error) {
	if err != nil {
		*n.causes = append(*n.causes, err)
	}
}

func TestASecondRunLeavesTheFirstAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &states{}
		r, err := New(newTable(20), &wire{}, Config{Observer: seen})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- r.Run(ctx) }()
		time.Sleep(time.Minute)
		if err := r.Run(ctx); !errors.Is(err, ErrActive) || !outbox.IsPermanent(err) {
			t.Errorf("the same relay: %v, want ErrActive", err)
		}
		seen.mu.Lock()
		if !slices.Equal(seen.list, []State{StateWaiting, StateFlowing}) {
			t.Errorf("its observer saw %v", seen.list)
		}
		seen.mu.Unlock()
		cancel()
		if err := <-first; err != nil {
			t.Error(err)
		}

		var causes []error
		source := noted{newTable(0), &causes}
		source.acquire = func() error { return outbox.Permanent(ErrActive) }
		second, err := New(source, &wire{}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := second.Run(t.Context()); !errors.Is(err, ErrActive) {
			t.Errorf("another relay of its source: %v, want ErrActive", err)
		}
		if len(causes) > 0 {
			t.Errorf("its source was told %v", causes)
		}
	})
}

func TestAnAdapterThatAnswersTooFewIsNotBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newTable(5)
		stop := start(t, source, short{}, Config{})
		time.Sleep(time.Second)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if source.done() != 0 {
			t.Errorf("settled %d messages without an answer for each", source.done())
		}
	})
}

func TestConfigReportsAllItsFaultsTogether(t *testing.T) {
	t.Parallel()
	_, err := New(newTable(0), &wire{}, Config{Batch: 10, MaxInFlight: 5, Stripes: 65, OnExhausted: "ignore"})
	var text string
	if err != nil {
		text = err.Error()
	}
	for _, want := range []string{"MaxInFlight: 5", "Stripes: 65", `"ignore"`} {
		if !strings.Contains(text, want) {
			t.Errorf("error %q does not mention %s", text, want)
		}
	}
}

type short struct{}

func (short) Publish(context.Context, []*outbox.Message) []error { return []error{nil} }
func (short) Close() error                                       { return nil }

func TestAMessageIsDueWhenItWasWrittenOrIsToBeDelivered(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	k := &call{ages: make([]time.Duration, 5)}
	for _, m := range []outbox.Message{
		{CreatedAt: now.Add(-time.Minute)},
		{CreatedAt: now.Add(-time.Minute), DeliverAt: now.Add(-time.Second)},
		{CreatedAt: now.Add(-time.Minute), DeliverAt: now.Add(-time.Hour)},
		{CreatedAt: now.Add(time.Minute)}, // the database's clock is ahead
	} {
		k.Batch = append(k.Batch, &m)
	}
	if got, want := k.age(now), []time.Duration{time.Minute, time.Second, time.Minute, 0}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// states collects what an observer is told.
type states struct {
	mu   sync.Mutex
	list []State
}

func (s *states) Published([]*outbox.Message, []error, []time.Duration, time.Duration) {}
func (s *states) Settled(*Settlement)                                                  {}

func (s *states) Changed(state State, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, state)
}

// pinged is a wire that can be asked whether it is reachable.
type pinged struct {
	wire
	down  error
	pings int
}

func (p *pinged) Ping(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pings++
	return p.down
}

func TestABrokerThatCantBeReachedIsKnownBeforeTheFirstMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, broker, seen := newTable(0), &pinged{down: errors.New("connection refused")}, &states{}
		stop := start(t, source, broker, Config{Observer: seen})
		time.Sleep(7 * time.Second)
		broker.mu.Lock()
		broker.down = nil
		asked := broker.pings
		broker.mu.Unlock()
		time.Sleep(5 * time.Minute)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if want := []State{StateWaiting, StateFlowing, StateStalled, StateFlowing, StateStopped}; !slices.Equal(seen.list, want) {
			t.Errorf("states %q, want %q", seen.list, want)
		}
		if all := broker.pings; asked != 2 || all > 10 {
			t.Errorf("asked %d times while it was down, and %d times in all", asked, all)
		}
	})
}

func TestAFaultOfManyMessagesIsToldInAFewLines(t *testing.T) {
	const messages, minutes = 3000, 3
	refuse := func(m *outbox.Message) error {
		return outbox.Permanent(fmt.Errorf("refused, since it is %d", m.Position))
	}
	fail := func(m *outbox.Message) error { return fmt.Errorf("failed, since it is %d", m.Position) }
	for _, c := range []struct {
		name    string
		answer  func(*outbox.Message) error
		invalid error
		cfg     Config
		text    string
		told    int // at least; 0: the fault tells nothing of messages
	}{
		{"refused", refuse, nil, Config{}, "dead letter", messages},
		{"exhausted", fail, nil, Config{MaxAttempts: 1}, "dead letter", messages},
		{"invalid", nil, errors.New("no message"), Config{}, "dead letter", messages},
		{"held", fail, nil, Config{Backoff: Backoff{Initial: time.Hour, Max: time.Hour}}, "message not accepted", 7},
		{"blocked", refuse, nil, Config{OnExhausted: Block}, "message not accepted", 7},
		{"outage", func(m *outbox.Message) error { return outbox.Unavailable(fail(m)) }, nil, Config{}, "destination stalled", 0},
		{"outage of a topic", func(m *outbox.Message) error { return outbox.TopicUnavailable(fail(m)) }, nil, Config{},
			"topic unavailable", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				logger := Bounded(slog.New(slog.NewTextHandler(&log, nil)))
				var stops []func() error
				for range 2 { // shard groups of a destination, in one process
					source := newTable(messages / 2)
					for i := range source.rows {
						source.rows[i].Invalid = c.invalid
					}
					cfg := c.cfg
					cfg.Batch, cfg.Logger = 50, logger
					stops = append(stops, start(t, source, &wire{answer: c.answer, latency: 10 * time.Millisecond}, cfg))
				}
				time.Sleep(minutes * time.Minute)
				for _, stop := range stops {
					if err := stop(); err != nil {
						t.Fatal(err)
					}
				}
				lines := strings.Split(strings.TrimSpace(log.String()), "\n")
				if len(lines) > 20*minutes {
					t.Errorf("%d messages are told in %d lines:\n%s", messages, len(lines), &log)
				}
				told := 0
				for _, line := range lines {
					n := 1
					if _, more, ok := strings.Cut(line, " more="); ok {
						fmt.Sscan(more, &n)
					}
					if strings.Contains(line, `msg="`+c.text) {
						told += n
					}
				}
				if told < c.told || told == 0 || c.told == messages &&
					(told != messages || !strings.Contains(log.String(), "message_ids=")) {
					t.Errorf("%d are told of:\n%s", told, &log)
				}
			})
		})
	}
}
