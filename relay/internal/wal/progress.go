package wal

// Progress knows which of the deliveries that were handed out are settled, and so how far the position may move. It
// does no I/O.
//
// Positions are the ends of commits and the positions of keepalives: never inside a transaction. Where the settled
// prefix ends inside a transaction, partial counts its settled messages. The log repeats a transaction in the same
// order, so a successor leaves out as many.
type Progress struct {
	handedOut uint64 // number of the last delivery
	settled   uint64 // all deliveries up to this number are

	Mark // up to where everything is settled

	// skip is the part of an unfinished transaction that the predecessor has settled.
	skip Partial

	Open bool // inside a transaction
	at   Partial

	// runs are the deliveries that are not settled, oldest first. A run ends where a transaction ends or leaves out a
	// message. Of a transaction that delivered nothing, only the end is kept, in the previous run.
	runs []run
}

// Mark is the position up to which everything is settled.
type Mark struct {
	Position LSN
	Partial  Partial
}

// Partial means that the first count messages of the transaction whose commit lies at commit are settled.
type Partial struct {
	Commit LSN
	Count  int64
}

// run is a sequence of deliveries of one transaction.
type run struct {
	first, last uint64
	commit      LSN
	index       int64 // of first in its transaction
	ended       bool  // the transaction has ended; the next position is end
	end         LSN
}

// NewProgress continues from a predecessor's mark.
func NewProgress(from Mark) *Progress {
	return &Progress{Mark: from, skip: from.Partial}
}

// Note processes a change that concerns transactions.
func (p *Progress) Note(c *Change) {
	switch c.Kind {
	case KindBegin:
		p.begin(c.LSN)
	case KindCommit:
		p.commit(c.End)
	case KindKeepalive:
		p.passed(c.End)
	}
}

// begin opens the transaction that commits at commit.
func (p *Progress) begin(commit LSN) {
	p.Open, p.at = true, Partial{Commit: commit}
}

// Next counts a message of the open transaction and reports whether to deliver it: not if it was settled before. The
// caller then calls Deliver, or leaves the message out for a reason of its own.
func (p *Progress) Next() bool {
	p.at.Count++
	return p.at.Commit != p.skip.Commit || p.at.Count > p.skip.Count
}

// Deliver gives the message that Next has counted its number.
func (p *Progress) Deliver() uint64 {
	p.handedOut++
	index := p.at.Count - 1
	if n := len(p.runs); n > 0 {
		r := &p.runs[n-1]
		if !r.ended && r.commit == p.at.Commit && r.index+int64(r.last-r.first)+1 == index {
			r.last = p.handedOut
			return p.handedOut
		}
	}
	p.runs = append(p.runs, run{first: p.handedOut, last: p.handedOut, commit: p.at.Commit, index: index})
	return p.handedOut
}

// commit ends the open transaction.
func (p *Progress) commit(end LSN) {
	p.Open = false
	if n := len(p.runs); n > 0 {
		p.runs[n-1].ended = true // the run is this transaction's, or has ended already
	}
	p.pass(end)
}

// passed notes that everything that commits before end was received. Inside a transaction it has no effect.
func (p *Progress) passed(end LSN) {
	if !p.Open {
		p.pass(end)
	}
}

func (p *Progress) pass(end LSN) {
	if n := len(p.runs); n > 0 {
		p.runs[n-1].end = max(p.runs[n-1].end, end)
		p.advance()
		return
	}
	p.move(end)
}

// move takes the position to end.
func (p *Progress) move(end LSN) {
	p.Position = max(p.Position, end)
	if p.Partial.Commit < p.Position {
		p.Partial = Partial{}
	}
}

// Settle notes that the delivery with this number and all earlier ones are settled.
func (p *Progress) Settle(number uint64) {
	p.settled = max(p.settled, number)
	p.advance()
}

func (p *Progress) advance() {
	n := 0
	for ; n < len(p.runs); n++ {
		r := &p.runs[n]
		if r.first > p.settled {
			break
		}
		if done := min(r.last, p.settled); !r.ended || done < r.last {
			p.Partial = Partial{r.commit, r.index + int64(done-r.first) + 1}
			if done < r.last || n == len(p.runs)-1 {
				break // the last run is kept, because its transaction may continue
			}
			continue
		}
		p.move(r.end)
	}
	p.runs = append(p.runs[:0], p.runs[n:]...)
}

// Idle reports whether everything that was handed out is settled.
func (p *Progress) Idle() bool { return p.settled == p.handedOut }
