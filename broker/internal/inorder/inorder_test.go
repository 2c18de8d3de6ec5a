package inorder_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/inorder"
)

var errRefused = errors.New("refused")

// keyed returns a message for each key; "" is none.
func keyed(keys ...string) []*outbox.Message {
	batch := make([]*outbox.Message, len(keys))
	for i, key := range keys {
		batch[i] = &outbox.Message{ID: outbox.NewID(), Topic: "t", Key: key}
	}
	return batch
}

// take takes everything whose turn it is.
func take(b *inorder.Batch) (all []int32) {
	for i, ok := b.Next(); ok; i, ok = b.Next() {
		b.Take(i)
		all = append(all, i)
	}
	return all
}

func expectTurns(t *testing.T, b *inorder.Batch, want ...int32) {
	t.Helper()
	if got := take(b); !slices.Equal(got, want) {
		t.Errorf("it was the turn of %v, want %v", got, want)
	}
}

// expect compares outcomes with words: ok, skipped, unknown, unsent, or refused.
func expect(t *testing.T, b *inorder.Batch, want ...string) {
	t.Helper()
	var got []string
	for i := range b.Messages {
		var err error
		if b.Errs() != nil {
			err = b.Errs()[i]
		}
		got = append(got, word(err))
	}
	if !slices.Equal(got, want) {
		t.Errorf("outcomes %q, want %q", got, want)
	}
}

func word(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, outbox.ErrSkipped):
		return "skipped"
	case !outbox.IsUnavailable(err):
		return err.Error()
	case err.Error() == "gone (outcome unknown)":
		return "unknown"
	case err.Error() == "gone (not sent)":
		return "unsent"
	}
	return err.Error()
}

func TestAMessageHasItsTurnWhenTheOneBeforeItIsAccepted(t *testing.T) {
	t.Parallel()
	var b inorder.Batch
	b.Begin(keyed("a", "b", "a", "", "", "a"))
	if i, ok := b.Next(); !ok || i != 0 {
		t.Errorf("it is the turn of %d, %v", i, ok)
	}
	expectTurns(t, &b, 0, 1, 3, 4)
	b.Settle(0, nil)
	expectTurns(t, &b, 2)
	for _, i := range []int32{1, 3, 4, 2} {
		b.Settle(i, nil)
	}
	expectTurns(t, &b, 5)
	if b.Left() != 1 || !b.Taken(5) || b.Taken(2) || b.Taken(6) || b.Taken(-1) {
		t.Errorf("%d are left, or what was taken isn't known", b.Left())
	}
	b.Settle(5, nil)
	if b.Left() != 0 || b.Errs() != nil {
		t.Errorf("%d are left, errors %v", b.Left(), b.Errs())
	}
}

func TestWhatIsBehindAFailureIsSkipped(t *testing.T) {
	t.Parallel()
	var b inorder.Batch
	b.Begin(keyed("a", "", "a", "b", "a", ""))
	take(&b)
	b.Settle(1, errRefused) // without a key nothing is behind it
	b.Settle(0, errRefused)
	b.Settle(0, nil) // the first outcome counts
	b.Settle(2, nil)
	b.Settle(3, nil)
	b.Settle(5, nil)
	expect(t, &b, "refused", "refused", "skipped", "ok", "skipped", "ok")
	if b.Left() != 0 {
		t.Errorf("%d are left", b.Left())
	}
	expectTurns(t, &b)
}

func TestABrokerIsNotBelievedWhatItSaysOfMessagesBehindAFailure(t *testing.T) {
	t.Parallel()
	var b inorder.Batch
	b.Begin(keyed("a", "a", "a"))
	for i := range int32(3) {
		b.Take(i) // all at once: this broker keeps the order by itself
	}
	b.Settle(1, nil)
	b.Settle(2, errors.New("other"))
	b.Settle(0, errRefused)
	expect(t, &b, "refused", "skipped", "skipped")
}

func TestAnAnswerAheadOfItsTurnGivesNobodyElseATurn(t *testing.T) {
	t.Parallel()
	var b inorder.Batch
	b.Begin(keyed("a", "a", "a"))
	b.Take(0)
	b.Take(1)
	b.Settle(1, nil)
	expectTurns(t, &b)
	b.Settle(0, nil)
	expectTurns(t, &b, 2)
}

func TestAnAbandonedBatchTellsWhatWasSent(t *testing.T) {
	t.Parallel()
	var b inorder.Batch
	b.Begin(keyed("a", "a", "b", "c", "c", "", "d"))
	b.Take(0)
	b.Take(6)
	b.Settle(6, nil)
	b.Take(2)
	b.Abandon(errors.New("gone"))
	expect(t, &b, "unknown", "skipped", "unknown", "unsent", "skipped", "unsent", "ok")
	if b.Left() != 0 {
		t.Errorf("%d are left", b.Left())
	}
	b.Abandon(errors.New("gone again"))
	expect(t, &b, "unknown", "skipped", "unknown", "unsent", "skipped", "unsent", "ok")
}

func TestAStoppedBatchWaitsForWhatWasTaken(t *testing.T) {
	t.Parallel()
	var b inorder.Batch
	b.Begin(keyed("a", "a", "a", "b"))
	b.Take(0)
	b.Stop(errRefused)
	b.Stop(errors.New("later"))
	if b.Left() != 3 {
		t.Errorf("%d are left, want those of a", b.Left())
	}
	b.Settle(0, nil)
	expectTurns(t, &b)
	expect(t, &b, "ok", "refused", "skipped", "refused")
}

func TestABatchIsUsedAgain(t *testing.T) {
	t.Parallel()
	var pool inorder.Pool
	for range 3 {
		b := pool.Begin(keyed("a", "a"))
		expectTurns(t, b, 0)
		b.Abandon(errors.New("gone"))
		errs := b.Errs()
		pool.End(b)
		if len(errs) != 2 || word(errs[0]) != "unknown" {
			t.Errorf("outcomes %v", errs)
		}
	}
}

func TestABatchThatIsUsedAgainAllocatesNothing(t *testing.T) {
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint(i % 300)
	}
	messages := keyed(keys...)
	var b inorder.Batch
	n := testing.AllocsPerRun(20, func() {
		b.Begin(messages)
		for i, ok := b.Next(); ok; i, ok = b.Next() {
			b.Take(i)
			b.Settle(i, nil)
		}
		b.End()
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// A broker at random: whatever it answers in whatever order, the outcomes keep the promise.
func TestNoKeyHasAnAcceptedMessageBehindAFailedOne(t *testing.T) {
	t.Parallel()
	var b inorder.Batch
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 0))
		keys := make([]string, random.IntN(20))
		for i := range keys {
			keys[i] = []string{"", "a", "b", "c"}[random.IntN(4)]
		}
		b.Begin(keyed(keys...))
		ahead := random.IntN(2) == 0
		told := play(t, &b, random, ahead)
		check(t, &b, told, fmt.Sprintf("seed %d", seed))
		b.End()
	}
}

// play settles all of b at random, and returns what was answered first about each message.
func play(t *testing.T, b *inorder.Batch, random *rand.Rand, ahead bool) map[int32]error {
	told := map[int32]error{}
	var way []int32
	for b.Left() > 0 {
		switch n := random.IntN(20); {
		case n == 0:
			b.Stop(outbox.Unavailable(errors.New("stopped")))
		case n == 1:
			b.Abandon(errors.New("gone"))
		case n < 10 && ahead:
			if i := int32(random.IntN(len(b.Messages))); !b.Settled(i) && !b.Taken(i) {
				b.Take(i)
				way = append(way, i)
			}
		case n < 10:
			i, ok := b.Next()
			if !ok {
				break
			}
			for before := range i {
				if key := b.Messages[i].Key; key != "" && b.Messages[before].Key == key && told[before] == nil && !b.Settled(before) {
					t.Errorf("%d has its turn before %d is settled", i, before)
				}
			}
			b.Take(i)
			way = append(way, i)
		case len(way) > 0:
			at := random.IntN(len(way))
			i := way[at]
			way = slices.Delete(way, at, at+1)
			var err error
			if random.IntN(4) == 0 {
				err = errRefused
			}
			if !b.Settled(i) {
				told[i] = err
			}
			b.Settle(i, err)
		}
	}
	return told
}

func check(t *testing.T, b *inorder.Batch, told map[int32]error, when string) {
	t.Helper()
	broken := map[string]bool{}
	for i, m := range b.Messages {
		var err error
		if b.Errs() != nil {
			err = b.Errs()[i]
		}
		if skipped := errors.Is(err, outbox.ErrSkipped); skipped != broken[m.Key] {
			t.Errorf("%s: message %d of key %q: %v, failed before: %v", when, i, m.Key, err, broken[m.Key])
		} else if said, answered := told[int32(i)]; !skipped && answered && !errors.Is(err, said) {
			t.Errorf("%s: message %d was answered with %v, and its outcome is %v", when, i, said, err)
		} else if err == nil && !answered {
			t.Errorf("%s: message %d counts as accepted, and nobody has said so", when, i)
		}
		if err != nil && m.Key != "" {
			broken[m.Key] = true
		}
	}
}
