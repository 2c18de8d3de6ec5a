package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// summarise prints a line per kind of fault and the sums.
func summarise(out io.Writer, results []result) {
	if len(results) == 0 {
		return
	}
	recoveries := make(map[string][]time.Duration)
	var committed, delivered, duplicates, lost, phantom, inverted, unpromised, erased, gone uint64
	of := make(map[string][2]int) // runs and bad ones of each system
	for _, r := range results {
		for _, f := range r.faults {
			recoveries[f.kind] = append(recoveries[f.kind], f.recovery)
		}
		committed += uint64(r.Truth.Committed)
		erased += uint64(r.Truth.Erased)
		gone += uint64(r.Truth.Gone)
		delivered += r.Report.Delivered
		duplicates += r.Report.Duplicated
		lost += r.Report.Lost
		phantom += r.Report.Phantom
		if r.promised {
			inverted += r.Report.Inverted
		} else {
			unpromised += r.Report.Inverted
		}
		n := of[r.system]
		n[0]++
		if r.err != nil {
			n[1]++
		}
		of[r.system] = n
	}
	fmt.Fprintf(out, "\n%-42s %6s  %s\n", "fault", "times", "until all that was committed is delivered: median, longest")
	for _, f := range faults() {
		times := recoveries[f.kind]
		if len(times) == 0 {
			fmt.Fprintf(out, "%-42s %6d\n", f.kind, 0)
			continue
		}
		slices.Sort(times)
		fmt.Fprintf(out, "%-42s %6d  %6.2fs %6.2fs\n", f.kind, len(times), times[len(times)/2].Seconds(), times[len(times)-1].Seconds())
	}
	fmt.Fprintln(out)
	for _, system := range slices.Sorted(maps.Keys(of)) {
		fmt.Fprintf(out, "%-42s %6d  runs, %d bad\n", system, of[system][0], of[system][1])
	}
	fmt.Fprintf(out, "\n%d runs, %d bad: %d committed, %d delivered, %d lost, %d phantom, %d inverted where order is "+
		"promised (%d elsewhere), %d duplicates after faults\n",
		len(results), badRuns(results), committed, delivered, lost, phantom, inverted, unpromised, duplicates)
	fmt.Fprintf(out, "lost by the servers themselves, and accounted for: %d commits by promotions of a lagging standby, "+
		"%d messages with a deleted topic\n", erased, gone)
}
