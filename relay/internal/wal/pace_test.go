package wal

import (
	"testing"
	"time"
)

func TestOnlyAStreamOfMessagesIsWaitedFor(t *testing.T) {
	t.Parallel()
	var p pace
	now := time.Now()
	if p.mark(now) != 0 {
		t.Error("the first message is kept waiting")
	}
	for range 20 { // 1,500 every 5 ms
		now = now.Add(5 * time.Millisecond)
		p.read(1500, now)
	}
	if got := p.mark(now.Add(100 * time.Microsecond)); got != markHigh {
		t.Errorf("in a flood the mark is %d bytes", got)
	}
	if got := p.mark(now.Add(time.Second)); got != 0 {
		t.Errorf("a message a second after a flood waits for %d bytes", got)
	}
	for range 10 { // single ones: at most the first waits because of the flood before
		now = now.Add(5 * time.Millisecond)
		p.read(1, now)
		if p.mark(now) != 0 {
			t.Fatal("a single message is kept waiting")
		}
	}
	if got := p.mark(now); got != 0 {
		t.Errorf("after single messages the mark is %d bytes", got)
	}
}

func TestAFastStreamWaitsForLessThanAFlood(t *testing.T) {
	t.Parallel()
	var p pace
	now := time.Now()
	for range 40 { // ten a millisecond
		now = now.Add(time.Millisecond)
		p.read(10, now)
	}
	if got := p.mark(now); got != markLow {
		t.Errorf("the mark is %d bytes", got)
	}
	if p.patience() != time.Millisecond {
		t.Errorf("it waits for %v", p.patience())
	}
}
