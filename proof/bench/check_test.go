package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

// shelf is a topic in memory.
type shelf struct{ payloads [][]byte }

func (s *shelf) readAll(_ context.Context, visit func([]byte)) error {
	for _, p := range s.payloads {
		visit(p)
	}
	return nil
}

func TestTheCheckOfADrainFindsEveryFault(t *testing.T) {
	t.Parallel()
	whole := func() *shelf {
		s := &shelf{}
		for seq := uint64(1); seq <= 3; seq++ {
			for key := range uint32(2) {
				s.payloads = append(s.payloads, check.Encode(nil, key, seq, 40))
			}
		}
		return s
	}
	for name, test := range map[string]struct {
		harm func(*shelf)
		want Result
		ok   bool
	}{
		"nothing":    {func(*shelf) {}, Result{}, true},
		"loss":       {func(s *shelf) { s.payloads = slices.Delete(s.payloads, 2, 3) }, Result{Lost: 1}, false},
		"duplicate":  {func(s *shelf) { s.payloads = append(s.payloads, s.payloads[0]) }, Result{Duplicated: 1}, false},
		"inversion":  {func(s *shelf) { s.payloads[0], s.payloads[2] = s.payloads[2], s.payloads[0] }, Result{Inverted: 1}, false},
		"other keys": {func(s *shelf) { s.payloads[0], s.payloads[1] = s.payloads[1], s.payloads[0] }, Result{}, true},
		"phantom":    {func(s *shelf) { s.payloads = append(s.payloads, check.Encode(nil, 0, 4, 40)) }, Result{Phantom: 1}, false},
		"corruption": {func(s *shelf) { s.payloads[5][30] ^= 1 }, Result{Lost: 1, Corrupted: 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := whole()
			test.harm(s)
			r := Result{Bench: "drain", Contender: Relay}
			if err := readBack(t.Context(), s, &loaded{last: []uint64{3, 3}}, &r); err != nil {
				t.Fatal(err)
			}
			got := Result{Lost: r.Lost, Phantom: r.Phantom, Duplicated: r.Duplicated, Inverted: r.Inverted, Corrupted: r.Corrupted}
			if fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("%s is seen as %s", name, r.Broken())
			}
			if ok := r.Broken() == ""; ok != test.ok {
				t.Errorf("the verdict is %q", r.Broken())
			}
		})
	}
}

func TestALatencyCountsWhatIsMeasuredAndChecksAll(t *testing.T) {
	t.Parallel()
	began := time.Now().UnixNano()
	commit := func(seq uint64, due, took time.Duration) written {
		return written{Key: 1, Seq: seq, Due: due, Committed: began + int64(due+took), Began: began}
	}
	arrive := func(seq uint64, at time.Duration) received {
		return received{id: check.ID{Key: 1, Seq: seq}, at: began + int64(at)}
	}
	all := []written{
		commit(1, 1*time.Millisecond, time.Millisecond), // warm-up
		commit(2, 10*time.Millisecond, 4*time.Millisecond),
		commit(3, 20*time.Millisecond, 4*time.Millisecond),
		commit(4, 30*time.Millisecond, 4*time.Millisecond), // lost
	}
	come := []received{
		arrive(1, time.Second),
		arrive(2, 12*time.Millisecond), // before its writer has learnt of the commit
		arrive(3, 26*time.Millisecond),
		arrive(3, 9*time.Second), // a duplicate is none later
		{bad: true},
	}
	of := run{Config: &Config{WarmUp: 5 * time.Millisecond, For: time.Second}}
	r := Result{Bench: "latency", Contender: Relay}
	of.evaluate(&r, all, come)
	if r.Messages != 3 || r.Lost != 1 || r.Duplicated != 1 || r.Corrupted != 1 || r.Inverted+r.Phantom != 0 {
		t.Errorf("%d messages, %s", r.Messages, r.Broken())
	}
	if r.P50 != 0 || r.P99 != 2 || r.Max != 2 {
		t.Errorf("p50 %v, p99 %v, max %v of 0 and 2 ms", r.P50, r.P99, r.Max)
	}
	if r.WriteP50 < 4 || r.WriteP50 > 4.01 { // to three digits
		t.Errorf("commits took %v ms, not 4", r.WriteP50)
	}
}

func TestTheFloorReadsACopyHoweverItIsCut(t *testing.T) {
	t.Parallel()
	var text []byte
	text = append(text, "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"...)
	field := func(value []byte) {
		text = binary.BigEndian.AppendUint32(text, uint32(len(value)))
		text = append(text, value...)
	}
	const rows = 5
	for i := range byte(rows) {
		text = binary.BigEndian.AppendUint16(text, 3)
		field(bytes.Repeat([]byte{i}, 16))
		field([]byte{'k', i})
		if i == 3 {
			text = binary.BigEndian.AppendUint32(text, 0xffffffff) // NULL
		} else {
			field(bytes.Repeat([]byte{'p'}, int(i)))
		}
	}
	text = binary.BigEndian.AppendUint16(text, 0xffff)
	for size := 1; size <= len(text); size++ {
		to := &list{}
		c := &copier{ctx: t.Context(), free: freePages(1), out: to}
		for part := range slices.Chunk(text, size) {
			if n, err := c.Write(part); err != nil || n != len(part) {
				t.Fatalf("in parts of %d: %d of %d, %v", size, n, len(part), err)
			}
		}
		if err := c.finish(); err != nil {
			t.Fatalf("in parts of %d: %v", size, err)
		}
		if len(to.rows) != rows || to.rows[4] != "\x04k\x04pppp" || to.rows[3] != "\x03k\x03" {
			t.Fatalf("in parts of %d: %q", size, to.rows)
		}
	}
	cut := &copier{ctx: t.Context(), free: freePages(1), out: &list{}}
	if _, err := cut.Write(text[:len(text)-2]); err != nil {
		t.Fatal(err)
	}
	if err := cut.finish(); err == nil {
		t.Error("a COPY without its end is taken for whole")
	}
}

// list is a pipe that notes rows.
type list struct{ rows []string }

func (l *list) send(_ context.Context, p *page) error {
	for _, r := range p.rows {
		l.rows = append(l.rows, string(r.id[:1])+string(r.key)+string(r.payload))
	}
	return nil
}

func (l *list) flush(context.Context) error { return nil }
