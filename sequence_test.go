package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
)

func numbering(t *testing.T) *outbox.Writer {
	t.Helper()
	w, err := outbox.NewWriter(outbox.WriterConfig{Sequences: true})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// numbers are the sequence numbers in the outbox, in the order of the ids, as "topic key n".
func numbers(t *testing.T, conn *pgx.Conn) (all []string) {
	t.Helper()
	for _, m := range stored(t, conn) {
		n, ok, err := outbox.SequenceOf(&m)
		if err != nil {
			t.Fatal(err)
		}
		text := "-"
		if ok {
			text = strconv.FormatInt(n, 10)
		}
		all = append(all, strings.Join([]string{m.Topic, m.OrderingKey(), text}, " "))
	}
	return all
}

func TestAWriterNumbersTheMessagesOfEachTopicAndKey(t *testing.T) {
	t.Parallel()
	onMajors(t, func(t *testing.T, url string) {
		conn, db, w := connect(t, url), openSQL(t, url, pgx.QueryExecModeCacheStatement), numbering(t)
		a := outbox.Message{Topic: "t", Key: "a"}
		agg := outbox.Message{Topic: "t", AggregateID: "a", Headers: []outbox.Header{{Name: "tenant", Value: "7"}}}
		b, u, none := outbox.Message{Topic: "t", Key: "b"}, outbox.Message{Topic: "u", Key: "a"}, outbox.Message{Topic: "t"}
		for _, call := range [][]outbox.Message{{a}, {none}, {a, b, none, agg, u, a, b}, {agg}} {
			if err := w.InTx(t.Context(), conn, func(tx pgx.Tx) error {
				_, err := w.Write(t.Context(), tx, call...)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range [][]outbox.Message{{a}, {b, a}} {
			if _, err := w.WriteSQL(t.Context(), tx, call...); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		want := []string{"t a 1", "t  -", "t a 2", "t b 1", "t  -", "t a 3", "u a 1", "t a 4", "t b 2", "t a 5", "t a 6", "t b 3", "t a 7"}
		if got := numbers(t, conn); !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
		if m := stored(t, conn)[5]; !slices.Contains(m.Headers, outbox.Header{Name: "tenant", Value: "7"}) {
			t.Errorf("the other header was lost: %v", m.Headers)
		}
	})
}

func TestNumbersOfConcurrentWritersHaveNoGapsAndFollowTheIDs(t *testing.T) {
	t.Parallel()
	url := database(t)
	pool, w := connectPool(t, url), numbering(t)
	var all sync.WaitGroup
	boom := errors.New("rolled back")
	const writers, each = 8, 25
	for n := range writers {
		all.Go(func() {
			for i := range each {
				fail := (n+i)%5 == 0
				err := w.InTx(t.Context(), pool, func(tx pgx.Tx) error {
					// In opposite orders within a call: it must not end in a deadlock.
					keys := []string{"x", "y", fmt.Sprint("z", n)}
					if n%2 == 0 {
						slices.Reverse(keys)
					}
					var msgs []outbox.Message
					for _, key := range keys {
						msgs = append(msgs, outbox.Message{Topic: "t", Key: key})
					}
					if _, err := w.Write(t.Context(), tx, msgs...); err != nil {
						return err
					}
					if fail {
						return boom
					}
					return nil
				})
				if err != nil && !errors.Is(err, boom) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	last := map[string]int64{}
	for _, m := range stored(t, connect(t, url)) {
		n, _, err := outbox.SequenceOf(&m)
		if err != nil || n != last[m.Key]+1 {
			t.Fatalf("key %s: number %d after %d: %v", m.Key, n, last[m.Key], err)
		}
		last[m.Key] = n
	}
	if last["x"] == 0 || last["x"] != last["y"] {
		t.Errorf("numbers end with %v", last)
	}
}

func TestTheSQLFunctionNumbersTogetherWithTheWriter(t *testing.T) {
	t.Parallel()
	url := database(t)
	conn, w := connect(t, url), numbering(t)
	write := func() {
		t.Helper()
		if err := w.InTx(t.Context(), conn, func(tx pgx.Tx) error {
			_, err := w.Write(t.Context(), tx, outbox.Message{Topic: "t", Key: "a"})
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	write()
	if _, err := conn.Exec(t.Context(), `SELECT outbox.publish('t', '{}', key => 'a', headers => jsonb_build_object('sequence', outbox.next_sequence('t', 'a')::text))`); err != nil {
		t.Fatal(err)
	}
	write()
	if got, want := numbers(t, conn), []string{"t a 1", "t a 2", "t a 3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestANumberingWriterRefusesWhatItCannotNumber(t *testing.T) {
	t.Parallel()
	conn, w := connect(t, database(t)), numbering(t)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = w.Write(t.Context(), tx,
		outbox.Message{Topic: "t", Key: "a", Headers: []outbox.Header{{Name: outbox.SequenceHeader, Value: "7"}}})
	var fault *outbox.ValidationError
	if !errors.As(err, &fault) || fault.Field != `Headers["sequence"]` {
		t.Errorf("a number that is given: %v", err)
	}
	if _, err := w.Copy(t.Context(), tx, func(func(outbox.Message, error) bool) {}); err == nil ||
		!strings.Contains(err.Error(), "use Write") {
		t.Errorf("copy: %v", err)
	}
}

func TestASequenceHeaderThatIsNoNumberIsAnError(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"", "0", "-1", "x", "1.5", "99999999999999999999"} {
		m := outbox.Message{Headers: []outbox.Header{{Name: outbox.SequenceHeader, Value: value}}}
		if n, _, err := outbox.SequenceOf(&m); err == nil {
			t.Errorf("%q is %d", value, n)
		}
	}
	if _, ok, err := outbox.SequenceOf(&outbox.Message{}); ok || err != nil {
		t.Errorf("no header: %v %v", ok, err)
	}
}
