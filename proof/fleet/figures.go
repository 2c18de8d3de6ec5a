package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/pgoutbox/outbox/internal/check"
)

func (b *bed) print(out io.Writer, v check.Report) {
	fmt.Fprintln(out, "| committed | delivered | lost | phantom | inverted | delivered again |\n|--:|--:|--:|--:|--:|--:|")
	fmt.Fprintf(out, "| %d | %d | %d | %d | %d | %d |\n\n", v.Committed, v.Delivered, v.Lost, v.Phantom, v.Inverted, v.Duplicated)

	silences, times, moves := map[string][]time.Duration{}, map[string]int{}, map[string]int{}
	for _, h := range b.faults {
		times[h.cause]++
		moves[h.cause] += h.moves
		for _, s := range b.sources {
			if s.cluster != h.cluster && (h.hit == nil || h.hit[s.name]) {
				silences[h.cause] = append(silences[h.cause], s.silence(h.began, h.done))
			}
		}
	}
	fmt.Fprintln(out, "Silence: the longest time between two messages of a database that the fault hits, or, of an outage, of the "+
		"others.\n\n"+
		"| cause | times | databases | p50 s | p99 s | longest s | moves |\n|---|--:|--:|--:|--:|--:|--:|")
	for _, cause := range slices.Sorted(maps.Keys(times)) {
		d := slices.Sorted(slices.Values(silences[cause]))
		if len(d) == 0 {
			continue // it hit a process that delivered nothing
		}
		fmt.Fprintf(out, "| %s | %d | %d | %.2f | %.2f | %.2f | %d |\n", cause, times[cause], len(d), d[len(d)/2].Seconds(),
			d[len(d)*99/100].Seconds(), d[len(d)-1].Seconds(), moves[cause])
	}
	b.printOutage(out)
}

// printOutage compares how late messages of the other clusters are while one is away, and before.
func (b *bed) printOutage(out io.Writer) {
	i := slices.IndexFunc(b.faults, func(h happened) bool { return h.cluster >= 0 })
	if i < 0 {
		return
	}
	away := b.faults[i]
	var before, during []float64
	for _, s := range b.sources {
		if s.cluster == away.cluster {
			continue
		}
		during = append(during, s.late(away.began, away.done)...)
		for _, h := range b.faults[:i] {
			if h.cause == "quiet" {
				before = append(before, s.late(h.began, h.done)...)
			}
		}
	}
	slices.Sort(before)
	slices.Sort(during)
	if len(before) == 0 || len(during) == 0 {
		return
	}
	fmt.Fprintln(out, "\nFrom the commit to the receiver, of the clusters that are there:\n\n"+
		"| | messages | p50 ms | p99 ms |\n|---|--:|--:|--:|")
	for _, row := range []struct {
		name string
		ms   []float64
	}{{"before", before}, {fmt.Sprintf("while a cluster is away for %v", away.done.Sub(away.began).Round(time.Second)), during}} {
		fmt.Fprintf(out, "| %s | %d | %.1f | %.1f |\n", row.name, len(row.ms), row.ms[len(row.ms)/2], row.ms[len(row.ms)*99/100])
	}
}

// silence is the longest time between two messages, of which one comes within a time.
func (s *source) silence(from, to time.Time) (longest time.Duration) {
	last := from
	for _, a := range s.got {
		switch {
		case a.at.Before(from):
			last = a.at
		case a.at.After(to):
			return max(longest, min(a.at.Sub(last), to.Sub(last)))
		default:
			longest = max(longest, a.at.Sub(last))
			last = a.at
		}
	}
	return max(longest, to.Sub(last))
}

// late returns how late the messages are that came for the first time within a time, in milliseconds.
func (s *source) late(from, to time.Time) (ms []float64) {
	seen := map[check.ID]bool{}
	for _, a := range s.got {
		if a.at.After(to) {
			break
		}
		if a.at.Before(from) || seen[a.ID] {
			continue
		}
		seen[a.ID] = true
		if committed, ok := s.load.CommittedAt(a.ID); ok {
			ms = append(ms, a.at.Sub(committed).Seconds()*1000)
		}
	}
	return ms
}
