package main

const (
	simulation = "TestEveryScheduleKeepsThePromises"
	stress     = "TestNothingIsLostDoubledOrOvertakenUnderAdversarialWriters"
)

// mutants is every wrong turn that a check must notice.
var mutants = []mutant{
	{
		name: "a lane goes on after an unknown outcome",
		file: "relay/outcomes.go",
		old:  "		it.state = queued\n		name := it.d.Lane()\n",
		wrong: "		if outbox.IsUnavailable(err) {\n			it.state = done\n			continue\n		}\n" +
			"		it.state = queued\n		name := it.d.Lane()\n",
		pkg: "./relay", run: simulation,
	},
	{
		name:  "a per-message error is ignored",
		file:  "relay/outcomes.go",
		old:   "		err := errs[i]\n		if err == nil {",
		wrong: "		err := errs[i]\n		if err == nil || i > 0 {",
		pkg:   "./relay", run: simulation,
	},
	{
		name:  "acknowledged before it is published",
		file:  "relay/core.go",
		old:   "		it.state = inFlight\n",
		wrong: "		it.state = done\n",
		pkg:   "./relay", run: simulation,
	},
	{
		name:  "returned messages go to the back of the queue",
		file:  "relay/outcomes.go",
		old:   "		s.queue = append(back, s.queue...)\n",
		wrong: "		s.queue = append(s.queue, back...)\n",
		pkg:   "./relay", run: simulation,
	},
	{
		name:  "a key goes on before its dead letter is settled",
		file:  "relay/outcomes.go",
		old:   "		l.mode, l.barrier = laneBarrier, it\n		it.state = toDead\n",
		wrong: "		it.state = toDead\n		l.due = time.Time{}\n",
		pkg:   "./relay", run: simulation,
	},
	{
		name:  "an outage spends attempts",
		file:  "relay/outcomes.go",
		old:   "		if unavailable || errors.Is(err, outbox.ErrSkipped) {\n			continue\n		}\n",
		wrong: "		if errors.Is(err, outbox.ErrSkipped) {\n			continue\n		}\n",
		pkg:   "./relay", run: simulation,
	},
	{
		name:  "holds are forgotten on restart",
		file:  "relay/core.go",
		old:   "	return !c.reading && !c.draining && c.stopped == nil && c.synced && !c.crowded &&",
		wrong: "	return !c.reading && !c.draining && c.stopped == nil && !c.crowded &&",
		pkg:   "./relay", run: simulation,
	},
	{
		name:  "a held key is overtaken",
		file:  "relay/core.go",
		old:   "		if l.mode == laneHeld {\n			it.state, it.retryAt, it.blocked = toHold, time.Time{}, false\n",
		wrong: "		if l.mode == laneHeld && it.d.Position%3 == 0 {\n			return false\n		}\n		if l.mode == laneHeld {\n			it.state, it.retryAt, it.blocked = toHold, time.Time{}, false\n",
		pkg:   "./relay", run: simulation,
	},
	{
		name:  "the cursor passes what waits for a retry",
		file:  "relay/settle.go",
		old:   "		for c.prefix.item < len(p.items) && p.items[c.prefix.item].state >= done {",
		wrong: "		for c.prefix.item < len(p.items) && (p.items[c.prefix.item].state >= done || p.items[c.prefix.item].err != nil) {",
		pkg:   "./relay", run: simulation,
	},
	{
		name:  "a released lane loses what waited to be held",
		file:  "relay/lanes.go",
		old:   "	l.queue, l.pending = l.pending, nil\n",
		wrong: "	l.pending = nil\n",
		pkg:   "./relay", run: simulation,
	},
	{
		name:  "a delayed message goes out at once",
		file:  "relay/core.go",
		old:   "	return it.d.Invalid == nil && !it.d.DeliverAt.After(now)\n",
		wrong: "	return it.d.Invalid == nil\n",
		pkg:   "./relay", run: simulation,
	},
	{
		name:  "memory is not bounded",
		file:  "relay/core.go",
		old:   "		c.unsettled+c.cfg.ReadMax <= c.cfg.MaxInFlight && c.bytes < c.cfg.MaxInFlightBytes &&\n",
		wrong: "		c.bytes < c.cfg.MaxInFlightBytes &&\n",
		pkg:   "./relay", run: simulation,
	},
	{
		name:  "a lease that ran out is not noticed",
		file:  "relay/runner.go",
		old:   "		if now.After(l.session.Expires()) {",
		wrong: "		if false {",
		pkg:   "./relay", run: "TestALeaseThatRunsOut",
	},
	{
		name:  "a drain forgets what is in flight",
		file:  "relay/runner.go",
		old:   "			l.core.drain()\n			l.closeIntake()\n",
		wrong: "			return &ended{}\n",
		pkg:   "./relay", run: "TestARelayThatIsToldToStop",
	},
	{
		name:  "a window is ordered by xid",
		file:  "relay/polling/reader.go",
		old:   "\n) w ORDER BY w.id`",
		wrong: "\n) w ORDER BY w.xid, w.id`",
		pkg:   "./relay/polling", run: stress,
	},
	{
		name:  "late finishers are not looked for",
		file:  "relay/polling/reader.go",
		old:   "	for _, x := range prev.xip {\n		ranges = append(ranges, xidRange{x, x})\n	}\n",
		wrong: "",
		pkg:   "./relay/polling", run: stress,
	},
	{
		name:  "transactions in progress are taken for read",
		file:  "relay/polling/txid.go",
		old:   "			s.xip = append(s.xip, x)\n",
		wrong: "",
		pkg:   "./relay/polling", run: stress,
	},
	{
		name:  "the rows are read without the snapshot",
		file:  "relay/polling/reader.go",
		old:   "		AND pg_visible_in_snapshot(m.xid, (SELECT current_setting('outbox.next')::pg_snapshot))\n",
		wrong: "",
		pkg:   "./relay/polling", run: stress,
	},
	{
		name:  "a window is closed before it is settled",
		file:  "relay/polling/session.go",
		old:   "	for n < len(c.windows) && c.windows[n].complete && c.windows[n].settled >= c.windows[n].last {",
		wrong: "	for n < len(c.windows) && c.windows[n].complete {",
		pkg:   "./relay/polling", run: stress,
	},
	{
		name:  "a cursor is written without its epoch",
		file:  "relay/polling/lease.go",
		old:   "	lease_until = clock_timestamp() + $8::bigint * interval '1 microsecond', updated_at = clock_timestamp()\nWHERE destination = $1 AND shard_group = $2 AND epoch = $3`",
		wrong: "	lease_until = clock_timestamp() + $8::bigint * interval '1 microsecond', updated_at = clock_timestamp()\nWHERE destination = $1 AND shard_group = $2 AND epoch >= $3`",
		pkg:   "./relay/polling", run: "TestSnapshotIsASource$",
	},
	{
		name:  "a message is published before its commit is on disk",
		file:  "relay/polling/session.go",
		old:   "	if pg != nil && found.onDisk {\n",
		wrong: "	if pg != nil {\n",
		pkg:   "./relay/polling", run: "TestWhatIsHandedOutSurvives",
	},
	{
		name:  "a segment is emptied without another look under the lock",
		file:  "relay/polling/retention.go",
		old:   "		if kept, err = neededBy(ctx, tx, table); kept != nil || err != nil {\n			return err\n		}\n",
		wrong: "",
		pkg:   "./relay/polling", run: "TestALateWriterKeepsItsMessage|TestNothingIsLostWhileSegmentsAreEmptied",
	},
	{
		name:  "a standby is read",
		file:  "relay/polling/identity.go",
		old:   "	if standby {",
		wrong: "	if standby && false {",
		pkg:   "./relay/polling", run: "TestAHotStandbyIsRefused",
	},
	{
		name:  "a cursor of another cluster is believed",
		file:  "relay/polling/identity.go",
		old:   "	if why == \"\" {",
		wrong: "	if true {",
		pkg:   "./relay/polling", run: "TestARestoredDumpIsRefused",
	},
}
