package replication

// progress knows which of the deliveries that were handed out are settled, and therefore how far the
// position may move. It does no I/O.
//
// Positions are ends of commits, and what the server says to have sent (keepalives): never inside a
// transaction. Where the settled prefix ends inside one, partial counts the settled messages of it; the
// log repeats a transaction in the same order, so a successor leaves out as many.
type progress struct {
	handedOut uint64 // number of the last delivery
	settled   uint64 // all up to this number are

	position LSN
	partial  partial

	// skip is what the predecessor has settled of a transaction that was not settled whole.
	skip partial

	open bool // between begin and commit
	at   partial

	// runs are the deliveries that are not settled, oldest first, cut where a transaction ends or leaves a
	// message out. Of a transaction that delivered nothing, only the end is kept, with the run before it.
	runs []run
}

// partial says that the first count messages of the transaction whose commit lies at commit are settled.
type partial struct {
	commit LSN
	count  int64
}

// run is a row of deliveries of one transaction.
type run struct {
	first, last uint64
	commit      LSN
	index       int64 // of first in its transaction
	ended       bool  // the transaction has; the next position is end
	end         LSN
}

func newProgress(position LSN, done partial) *progress {
	return &progress{position: position, partial: done, skip: done}
}

// begin opens the transaction that commits at commit.
func (p *progress) begin(commit LSN) {
	p.open, p.at = true, partial{commit: commit}
}

// next counts a message of the open transaction and reports whether it is to be delivered: not if it was
// settled before. Then the caller says deliver, or leaves it out for a reason of its own.
func (p *progress) next() bool {
	p.at.count++
	return p.at.commit != p.skip.commit || p.at.count > p.skip.count
}

// deliver gives the message that next has counted its number.
func (p *progress) deliver() uint64 {
	p.handedOut++
	index := p.at.count - 1
	if n := len(p.runs); n > 0 {
		r := &p.runs[n-1]
		if !r.ended && r.commit == p.at.commit && r.index+int64(r.last-r.first)+1 == index {
			r.last = p.handedOut
			return p.handedOut
		}
	}
	p.runs = append(p.runs, run{first: p.handedOut, last: p.handedOut, commit: p.at.commit, index: index})
	return p.handedOut
}

// commit ends the open transaction.
func (p *progress) commit(end LSN) {
	p.open = false
	if n := len(p.runs); n > 0 {
		p.runs[n-1].ended = true // it is this transaction's, or has ended already
	}
	p.pass(end)
}

// passed notes that everything that commits before end was received. Inside a transaction it says nothing.
func (p *progress) passed(end LSN) {
	if !p.open {
		p.pass(end)
	}
}

func (p *progress) pass(end LSN) {
	if n := len(p.runs); n > 0 {
		p.runs[n-1].end = max(p.runs[n-1].end, end)
		p.advance()
		return
	}
	p.move(end)
}

// move takes the position to end.
func (p *progress) move(end LSN) {
	p.position = max(p.position, end)
	if p.partial.commit < p.position {
		p.partial = partial{}
	}
}

// settle notes that the delivery with this number and all before it are settled.
func (p *progress) settle(number uint64) {
	p.settled = max(p.settled, number)
	p.advance()
}

func (p *progress) advance() {
	n := 0
	for ; n < len(p.runs); n++ {
		r := &p.runs[n]
		if r.first > p.settled {
			break
		}
		if done := min(r.last, p.settled); !r.ended || done < r.last {
			p.partial = partial{r.commit, r.index + int64(done-r.first) + 1}
			if done < r.last || n == len(p.runs)-1 {
				break // the last one is kept: its transaction may go on
			}
			continue
		}
		p.move(r.end)
	}
	p.runs = append(p.runs[:0], p.runs[n:]...)
}

// idle reports whether everything that was handed out is settled.
func (p *progress) idle() bool { return p.settled == p.handedOut }
