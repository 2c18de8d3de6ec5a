package main

import (
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

func TestTheBookKnowsWhatWasOvertaken(t *testing.T) {
	t.Parallel()
	b := newBook(2)
	now := time.Now()
	fates := make(chan fate, 4)
	var ids []check.ID
	for range 4 {
		id := b.draw(1)
		b.depart(id, departure{at: now.Add(-time.Minute), poison: id.Seq == 2, fate: fates})
		ids = append(ids, id)
	}
	if n := b.overtaken(now, time.Second); n != 0 {
		t.Errorf("%d overtaken while nothing has arrived", n)
	}
	if b.passed(ids[1]) {
		t.Error("the order has gone on before anything has arrived")
	}
	b.arrive(ids[2], now, true)
	if got := <-fates; got.took != time.Minute {
		t.Errorf("the third took %v", got.took)
	}
	if n := b.overtaken(now, time.Second); n != 1 {
		t.Errorf("%d overtaken, want the first; the second is poison", n)
	}
	if n := b.overtaken(now, time.Hour); n != 0 {
		t.Errorf("%d overtaken for an hour", n)
	}
	if !b.passed(ids[1]) || b.passed(ids[2]) {
		t.Error("the order goes on behind the second, and not yet behind the third")
	}
	if !b.settle(ids[1], &deadLetter{Reason: "refused"}) {
		t.Error("the second isn't known as poison")
	}
	if got := <-fates; got.letter.Reason != "refused" {
		t.Errorf("the second became %+v", got)
	}
	b.arrive(ids[3], now, true)
	if b.settle(ids[0], nil) {
		t.Error("the first is taken for poison")
	}
	if n := b.overtaken(now, time.Second); n != 0 {
		t.Errorf("%d overtaken after the first was settled", n)
	}
	b.arrive(ids[3], now, true)
	b.arrive(check.ID{Key: 99, Seq: 1}, now, true)
	if _, all, _ := b.latencies(); all.Count != 2 {
		t.Errorf("%d events arrived for the first time, want 2", all.Count)
	}
}

func TestLatenciesAreOfTheLastSeconds(t *testing.T) {
	t.Parallel()
	b := newBook(1)
	now := time.Now()
	arrive := func(took time.Duration, calm bool) {
		id := b.draw(0)
		b.depart(id, departure{at: now.Add(-took), calm: calm})
		b.arrive(id, now, true)
	}
	arrive(time.Second, false)
	for range latencySeconds - 1 {
		b.turn()
		arrive(time.Millisecond, true)
	}
	if got, _, _ := b.latencies(); got.Count != latencySeconds || got.P99 < 990*time.Millisecond {
		t.Errorf("the second is still among the last ones, and isn't in %+v", got)
	}
	b.turn()
	got, all, calm := b.latencies()
	if got.Count != latencySeconds-1 || got.P99 > 2*time.Millisecond {
		t.Errorf("the second has passed, and is in %+v", got)
	}
	if all.Count != latencySeconds || calm.Count != latencySeconds-1 || all.Max < 990*time.Millisecond || calm.Max > 2*time.Millisecond {
		t.Errorf("all %+v, calm %+v", all, calm)
	}
}
