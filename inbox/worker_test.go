package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/relay/retention"
)

// work runs a worker until the returned function is called.
func (w *world) work(b *Inbox, fn Handler, cfg WorkerConfig) (stop func()) {
	w.t.Helper()
	conn, err := pgx.ParseConfig(w.url)
	if err != nil {
		w.t.Fatal(err)
	}
	source, err := polling.NewSnapshot(conn, b.Destination(), polling.SnapshotConfig{Lease: 5 * time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	worker, err := NewWorker(b, source, w.pool, fn, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("worker: %v", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *world) store(b *Inbox, msgs ...*outbox.Message) []Result {
	w.t.Helper()
	results, err := b.Store(w.t.Context(), w.pool, msgs...)
	if err != nil {
		w.t.Fatal(err)
	}
	return results
}

func noteEffect(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
	_, err := tx.Exec(ctx, `INSERT INTO effects (message_id, key, note) VALUES ($1::text::uuid, $2, $3)`,
		msg.ID.String(), msg.Key, string(msg.Payload))
	return err
}

// notes are the effects of a key in their order.
func (w *world) notes(key string) (all string) {
	w.t.Helper()
	if err := w.pool.QueryRow(w.t.Context(), `SELECT coalesce(string_agg(note, ' ' ORDER BY no), '') FROM effects WHERE key = $1`,
		key).Scan(&all); err != nil {
		w.t.Fatal(err)
	}
	return all
}

func note(key, text string) *outbox.Message {
	msg := message(key)
	msg.Payload = []byte(text)
	return msg
}

func TestStoredMessagesAreAppliedOnceAndInOrder(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, w *world) {
		b := newInbox(t, Config{})
		var want []string
		var all []*outbox.Message
		for i := range 20 {
			want = append(want, fmt.Sprint(i))
			for _, key := range []string{"a", "b", "c"} {
				all = append(all, note(key, fmt.Sprint(i)))
			}
		}
		stop := w.work(b, noteEffect, WorkerConfig{})
		for batch := range slices.Chunk(all, 7) {
			for _, result := range w.store(b, batch...) {
				if result.Outcome != Applied {
					t.Errorf("stored: %+v", result)
				}
			}
		}
		for _, result := range w.store(b, all[0], all[59]) {
			if result.Outcome != Duplicate {
				t.Errorf("stored again: %+v", result)
			}
		}
		await.Until(t, "all to be applied", func() bool { return w.int(`SELECT count(*) FROM effects`) >= len(all) })
		stop()
		for _, key := range []string{"a", "b", "c"} {
			if got := w.notes(key); got != strings.Join(want, " ") {
				t.Errorf("key %s: %s", key, got)
			}
		}
		// What the engine delivers once more, because it was killed before it could note it, changes nothing.
		w.exec(`UPDATE outbox.cursors SET prev = '1:1:', windows = '{}', last_id = 0, epoch = epoch + 1, owner = NULL, lease_until = '-infinity', delivered = 0`)
		defer w.work(b, noteEffect, WorkerConfig{})()
		await.Until(t, "all to come again", func() bool { return w.int(`SELECT delivered FROM outbox.cursors`) >= len(all) })
		if n := w.int(`SELECT count(*) FROM effects`); n != len(all) {
			t.Errorf("%d effects of %d messages", n, len(all))
		}
	})
}

func TestAStoredMessageComesBackAsItWas(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, cfg := range map[string]Config{"ordered": {}, "unordered": {Unordered: true}} {
		b, err := New(name, cfg)
		if err != nil {
			t.Fatal(err)
		}
		want := outbox.Message{ID: outbox.NewID(), Topic: "orders",
			Key: "k", AggregateType: "order", AggregateID: "4711", EventType: "Paid",
			Payload: []byte{0, 1, 255}, ContentType: "application/x", Headers: []outbox.Header{{Name: "a", Value: "1"},
				{Name: "b", Value: `"2"`}}}
		bare := outbox.Message{ID: outbox.NewID(), Topic: "orders"}
		got := make(chan outbox.Message, 2)
		stop := w.work(b, func(_ context.Context, _ pgx.Tx, msg *outbox.Message) error {
			m := *msg
			m.Payload, m.Headers = slices.Clone(m.Payload), slices.Clone(m.Headers)
			m.Position, m.CreatedAt = 0, time.Time{}
			got <- m
			return nil
		}, WorkerConfig{Relay: relay.Config{Stripes: 1}, Parallel: 1})
		w.store(b, &want)
		if m := <-got; fmt.Sprintf("%+v", m) != fmt.Sprintf("%+v", want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, m, want)
		}
		w.store(b, &bare)
		if m := <-got; fmt.Sprintf("%+v", m) != fmt.Sprintf("%+v", bare) || m.Payload != nil {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, m, bare)
		}
		stop()
	}
}

// A message belongs to the handler, as with Handle: it may keep the message, and change it without harm to a retry.
func TestAHandlerMayKeepAndChangeStoredMessages(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := newInbox(t, Config{})
	const messages = 200
	var mu sync.Mutex
	var copies []string
	failed := map[outbox.ID]bool{}
	text := func(msg *outbox.Message) string {
		return fmt.Sprint(msg.Topic, msg.Key, msg.Headers, string(msg.Payload))
	}
	var all []*outbox.Message
	defer w.work(b, func(_ context.Context, _ pgx.Tx, msg *outbox.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if string(msg.Payload) != "as it was" {
			t.Errorf("the payload is %q", msg.Payload)
		}
		if msg.Key == "fails" && !failed[msg.ID] {
			failed[msg.ID] = true
			msg.Payload[0] = '!'
			return errors.New("not yet")
		}
		all, copies = append(all, msg), append(copies, text(msg))
		return nil
	}, WorkerConfig{Relay: relay.Config{Backoff: relay.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond}}})()
	for i := range messages / 50 {
		var batch []*outbox.Message
		for j := range 50 {
			msg := note(fmt.Sprintf("key %05d", i*50+j), "as it was")
			if j == 7 {
				msg.Key = "fails"
			}
			msg.Headers = []outbox.Header{{Name: "h", Value: fmt.Sprint("value ", i*50+j)}}
			batch = append(batch, msg)
		}
		w.store(b, batch...)
		await.Until(t, "the batch to be applied", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(all) == (i+1)*50
		})
	}
	for i, msg := range all {
		if now := text(msg); now != copies[i] {
			t.Errorf("kept as %s, and is now %s", copies[i], now)
		}
	}
}

func TestAPoisonMessageBecomesADeadLetterAndComesBackWhenRequeued(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := newInbox(t, Config{})
	var mu sync.Mutex
	poisoned := true
	defer w.work(b, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case poisoned && string(msg.Payload) == "panics":
			panic("boom")
		case poisoned && string(msg.Payload) == "refused":
			return outbox.Permanent(errors.New("no such order"))
		}
		return noteEffect(ctx, tx, msg)
	}, WorkerConfig{Relay: relay.Config{MaxAttempts: 3, Backoff: relay.Backoff{Initial: time.Millisecond, Max: 10 * time.Millisecond}}})()
	w.store(b, note("k", "1"), note("k", "panics"), note("k", "2"), note("j", "refused"), note("j", "3"))
	await.Until(t, "the others to be applied", func() bool { return w.notes("k") == "1 2" && w.notes("j") == "3" })
	await.Until(t, "two dead letters", func() bool { return w.int(`SELECT count(*) FROM outbox.dead_letters`) == 2 })
	dead, err := find.DeadLetters(t.Context(), w.pool, find.Selection{Destination: b.Destination()}, find.Page{})
	if err != nil || len(dead) != 2 {
		t.Fatalf("%+v, %v", dead, err)
	}
	for _, d := range dead {
		want := map[string]string{"k": "exhausted the handler panicked: boom 3", "j": "refused no such order 1"}[d.Key]
		if parts := strings.Fields(want); d.Reason != parts[0] ||
			!strings.Contains(d.Error, strings.Join(parts[1:len(parts)-1], " ")) || fmt.Sprint(d.Attempts) != parts[len(parts)-1] {
			t.Errorf("dead letter %+v, want %s", d, want)
		}
	}
	mu.Lock()
	poisoned = false
	mu.Unlock()
	if _, err := jobs.Requeue(t.Context(), w.pool, find.Selection{Destination: b.Destination()},
		10, admin.Action{Actor: "anna"}); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the dead letters to be applied", func() bool { return w.notes("k") == "1 2 panics" && w.notes("j") == "3 refused" })
}

func TestAMessageThatFailsHoldsUpItsKeyAndNoOther(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := newInbox(t, Config{})
	var mu sync.Mutex
	broken := true
	stop := w.work(b, func(ctx context.Context, tx pgx.Tx, msg *outbox.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if broken && string(msg.Payload) == "first" {
			return errors.New("not yet")
		}
		return noteEffect(ctx, tx, msg)
	}, WorkerConfig{Relay: relay.Config{MaxAttempts: 1000, HoldAfter: time.Millisecond,
		Backoff: relay.Backoff{Initial: 5 * time.Millisecond, Max: 20 * time.Millisecond}}})
	defer stop()
	w.store(b, note("k", "first"), note("k", "second"), note("j", "other"))
	await.Until(t, "the other key", func() bool { return w.notes("j") == "other" })
	await.Until(t, "a hold", func() bool {
		return w.int(`SELECT count(*) FROM outbox.holds WHERE destination = 'inbox:payments'`) == 2
	})
	if got := w.notes("k"); got != "" {
		t.Errorf("applied before the head of the key: %s", got)
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	await.Until(t, "the key", func() bool { return w.notes("k") == "first second" })
}

func TestUnorderedMessagesWaitForTheirNumbers(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := newInbox(t, Config{Gaps: GapWait, Unordered: true})
	defer w.work(b, effect, WorkerConfig{Relay: relay.Config{MaxAttempts: 1000,
		Backoff: relay.Backoff{Initial: 2 * time.Millisecond, Max: 10 * time.Millisecond}}})()
	w.store(b, numbered("k", 4), numbered("k", 2), numbered("k", 3))
	w.store(b, numbered("k", 1))
	await.Until(t, "all to be applied", func() bool { return w.int(`SELECT count(*) FROM effects`) == 4 })
	if n := w.int(`SELECT sequence FROM outbox.inbox_positions WHERE key = 'k'`); n != 4 || w.gaps() != "" {
		t.Errorf("at %d, gaps %s", n, w.gaps())
	}
	conn, err := pgx.ParseConfig(w.url)
	if err != nil {
		t.Fatal(err)
	}
	ordered := newInbox(t, Config{Gaps: GapWait})
	source, err := polling.NewSnapshot(conn, ordered.Destination(), polling.SnapshotConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewWorker(ordered, source, w.pool, effect, WorkerConfig{}); err == nil || !strings.Contains(err.Error(), "Unordered") {
		t.Errorf("ordered, and waiting for gaps: %v", err)
	}
}

func TestStoredMessagesOfSeveralConsumersAndTheOutboxDoNotMix(t *testing.T) {
	t.Parallel()
	w := setup(t)
	payments := newInbox(t, Config{})
	shipping, err := New("shipping", Config{})
	if err != nil {
		t.Fatal(err)
	}
	w.exec(`SELECT outbox.publish('orders', 'not for an inbox', key => 'k')`)
	w.store(shipping, note("k", "shipping"))
	w.store(payments, note("k", "payments"))
	stop := w.work(payments, noteEffect, WorkerConfig{})
	await.Until(t, "the message", func() bool { return w.notes("k") != "" })
	await.Until(t, "the cursor to pass both", func() bool { return w.pending("inbox:payments") == 0 })
	stop()
	if got := w.notes("k"); got != "payments" {
		t.Errorf("applied: %s", got)
	}
	if n := w.pending("inbox:shipping"); n != 2 {
		t.Errorf("%d pending for shipping, want both, until its worker has looked", n)
	}
	defer w.work(shipping, noteEffect, WorkerConfig{})()
	await.Until(t, "shipping's", func() bool { return w.notes("k") == "payments shipping" })
}

func (w *world) pending(destination string) int64 {
	w.t.Helper()
	all, err := health.Backlogs(w.t.Context(), w.pool)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, b := range all {
		if b.Destination == destination {
			return b.Pending.N
		}
	}
	return -1
}

// The segments of the stored inbox are emptied when its consumers have passed them, whatever the outbox's
// destinations do; and before a consumer's worker has run for the first time, nothing is.
func TestSegmentsOfTheStoredInboxAreEmptiedByItsOwnCursors(t *testing.T) {
	t.Parallel()
	w := setup(t, servers.PostgresConfig{})
	b := newInbox(t, Config{})
	w.store(b, note("k", "1"))
	w.exec(`INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier)
		SELECT 'kafka', 0, 1, system_identifier FROM pg_control_system()`)
	w.exec(`INSERT INTO outbox.messages (topic, segment) VALUES ('t', (date_part('epoch', now())::bigint / 600 + 3) % 8)`)
	// As if stored half an hour ago.
	w.exec(`DROP PUBLICATION everything`)
	w.exec(`WITH m AS (DELETE FROM outbox.inbox_messages RETURNING message_id, topic, key, payload, headers)
		INSERT INTO outbox.inbox_messages (message_id, topic, key, payload, headers, segment)
		SELECT m.*, (date_part('epoch', now())::bigint / 600 + 5) % 8 FROM m`)
	conn, err := pgx.ParseConfig(w.url)
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan retention.Report)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	retention, err := retention.New(conn,
		retention.Config{Interval: 20 * time.Millisecond, Observe: func(r retention.Report) {
			select {
			case reports <- r:
			case <-ctx.Done():
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = retention.Run(ctx) }()
	report := <-reports
	by := map[string]string{}
	for _, k := range report.Kept {
		by[strings.TrimRight(k.Table, "01234567")] = k.Destination
	}
	if report.Err != nil || len(report.Emptied) != 0 || by["outbox.messages_"] != "kafka" ||
		by["outbox.inbox_messages_"] != "inbox:payments" {
		t.Fatalf("before the worker: %+v", report)
	}
	defer w.work(b, noteEffect, WorkerConfig{})()
	await.Until(t, "the stored inbox to be emptied", func() bool {
		report := <-reports
		return len(report.Emptied) == 1 && strings.HasPrefix(report.Emptied[0], "outbox.inbox_messages_")
	})
	if got := w.notes("k"); got != "1" {
		t.Errorf("emptied before it was applied: %q", got)
	}
	if n := w.int(`SELECT count(*) FROM outbox.messages`); n != 1 {
		t.Errorf("%d messages are left in the outbox, want the one that kafka hasn't passed", n)
	}
}

// A message of the stored inbox names its consumer, by which its destination finds it.
func TestAStoredMessageWithoutAConsumerIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const insert = `INSERT INTO outbox.inbox_messages (topic, headers) VALUES ('t', $1)`
	for _, headers := range []any{nil, `{}`, `{"a": "inbox-consumer"}`, `["inbox-consumer"]`, `{"inbox-consumer": null}`} {
		if _, err := w.pool.Exec(t.Context(), insert, headers); err == nil || !strings.Contains(err.Error(), "check constraint") {
			t.Errorf("%v: %v", headers, err)
		}
	}
	if _, err := w.pool.Exec(t.Context(), insert, `{"a": "b", "inbox-consumer": "c"}`); err != nil {
		t.Error(err)
	}
}

func TestStoreRefusesWhatItCouldNotGiveBack(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := newInbox(t, Config{})
	twice := message("k")
	twice.Headers = []outbox.Header{{Name: "a", Value: "1"}, {Name: "a", Value: "2"}}
	own := message("k")
	own.Headers = []outbox.Header{{Name: "inbox-consumer", Value: "x"}}
	nul := message("a\x00b")
	none := message("k")
	none.Topic = ""
	for want, msg := range map[string]*outbox.Message{"is there twice": twice,
		"the inbox's own": own, "NUL": nul, "no topic": none, "neither an id": {Topic: "t"}} {
		if _, err := b.Store(t.Context(), w.pool, message("k"), msg); err == nil ||
			!strings.Contains(err.Error(), want) || !outbox.IsPermanent(err) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if n := w.int(`SELECT count(*) FROM outbox.inbox_messages`); n != 0 {
		t.Errorf("%d messages were stored beside a refused one", n)
	}
	if results, err := b.Store(t.Context(), w.pool); err != nil || results != nil {
		t.Errorf("nothing: %v, %v", results, err)
	}
}

func TestWhatHasToBeLookedAfterRunsBesideTheWorkerAndEndsWithIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if err := health.SetInboxWindow(t.Context(), w.pool, time.Second, admin.Action{Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	var turns atomic.Int32
	records, err := NewRetention(w.pool, RetentionConfig{Interval: 20 * time.Millisecond, Observe: func(r RetentionReport) {
		if r.Turned {
			turns.Add(1)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	b := newInbox(t, Config{})
	stop := w.work(b, noteEffect, WorkerConfig{Beside: []func(context.Context) error{records.Run, func(ctx context.Context) error {
		<-ctx.Done()
		close(ended)
		return nil
	}}})
	msg := message("k")
	w.store(b, msg)
	await.Until(t, "it is applied and the turn goes on", func() bool { return w.effects(msg) == 1 && turns.Load() > 0 })
	stop()
	select {
	case <-ended:
	default:
		t.Error("Run has returned, and what is beside it runs on")
	}
}
