package main

import (
	"slices"
	"strings"

	"github.com/pgoutbox/outbox/proof/seeds"
)

// system is what a run delivers: a table, its writers and a strategy.
type system struct {
	seeds.System
	exactlyOnce bool // to Kafka, in transactions
}

func (s system) String() string {
	if s.exactlyOnce {
		return s.Name + "/exactly-once"
	}
	return s.System.String()
}

// systems returns those whose names contain part. They take turns.
func systems(part string) (all []system) {
	for _, s := range seeds.Systems() {
		all = append(all, system{System: s})
	}
	all = append(all, system{System: seeds.Find("default", "snapshot"), exactlyOnce: true})
	return slices.DeleteFunc(all, func(s system) bool { return !strings.Contains(s.String(), part) })
}

// systemOf returns the system of a seed and its number of relays: two, but every other time one on a mapped table.
func systemOf(seed uint64, part string) (system, int) {
	all := systems(part)
	s, round := all[seed%uint64(len(all))], seed/uint64(len(all))
	if !s.Default() && round%2 == 0 {
		return s, 1
	}
	return s, 2
}

// groupsOf is the number of shard groups of the destination: every third time several for the default table, of which
// each relay may hold some.
func (s system) groupsOf(seed uint64) int {
	switch {
	case s.Default() && !s.Log && seed%3 == 0:
		return 3
	case s.Default():
		return 1
	}
	return max(s.Groups, 1)
}

// repeats is how many messages may come again when relays forget what is in flight.
func (s system) repeats() int {
	switch {
	case s.exactlyOnce:
		return 0
	case s.Groups > 1 && !s.Default() || s.Log && !s.Default():
		return 10_000 // also messages that were delivered behind one that waited
	case s.WholeTransactions:
		return 4 * maxInFlight
	}
	return maxInFlight
}

// leftOut are the faults that are pointless with some systems.
func leftOut() []struct {
	kind, why string
	of        func(system) bool
} {
	return []struct {
		kind, why string
		of        func(system) bool
	}{
		{standbyPromoted, "the slot is all the memory there is, and the standby has none: the relay stops and says so",
			func(s system) bool { return s.Log && !s.Default() }},
		{heldTransaction, "any open transaction stops it, as its page says", func(s system) bool { return s.Strategy == "xmin" }},
		{oversizeMessages, "the preset alone keeps no dead letters: a key waits behind such a message",
			func(s system) bool { return !s.Default() }},
		{segmentDetached, "it has no segments", func(s system) bool { return !s.Default() }},
		{keyTooLong, "the column is its author's, and so is what fits", func(s system) bool { return !s.Default() }},
		{messageForged, "it reads no log", func(s system) bool { return !s.Log }},
		{topicDeleted, "what was recorded as delivered in the transaction that a topic took with it is delivered to nobody",
			func(s system) bool { return s.exactlyOnce }},
	}
}

// fits reports whether a fault makes sense with that number of relays.
func (s system) fits(f fault, relays int) bool {
	if f.heir && relays == 1 {
		return false
	}
	for _, l := range leftOut() {
		if l.kind == f.kind && l.of(s) {
			return false
		}
	}
	return true
}

// Destination is the system's part of a destination's section. All its messages go to one topic.
func (s system) Destination(database, indent string) string {
	return s.System.Destination(database, indent, 1)
}
