package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
)

// reader is what Next has for itself.
type reader struct {
	row     *row
	order   []int              // of the fields of emitted messages
	layouts map[uint32]*layout // of outbox.messages, by relation; nil for another table's
	charset *charset

	// Rows of transactions that seen sees were delivered from the table; past seenUntil there are none.
	seen      *polling.Visibility
	seenUntil LSN
	inTx      LSN // where the open transaction commits

	leave *leaving // the log is being left for the table

	making     bool      // a boundary is being made
	slotReady  *boundary // the slot is there, the table isn't read up to it yet
	makeAgain  time.Time
	page       *polling.Page
	pace       pace
	complained bool // about a message outside of any transaction
}

func (r *reader) init() {
	r.row = newRow()
	r.order = r.row.columns.emittedOrder()
	r.layouts = make(map[uint32]*layout)
}

// Next waits for messages: of the table until the log takes over, and then of the log.
func (s *session) Next(ctx context.Context, limit int) (relay.Batch, error) {
	if limit < 1 {
		return relay.Batch{}, fmt.Errorf("replication: Next was asked for %d messages", limit)
	}
	if s.isStreaming() {
		return s.nextOfLog(ctx, limit)
	}
	return s.nextOfTable(ctx, limit)
}

// stream sends START_REPLICATION. Whoever still streams is a session that has lost the lease, or its last
// breath.
func (s *session) stream(ctx context.Context, conn *pgx.Conn) error {
	command := fmt.Sprintf("START_REPLICATION SLOT %s LOGICAL %s (proto_version '1', publication_names '%s', binary 'true', messages '%t')",
		s.source.cfg.Slot, s.progress.position, quoteList(s.source.cfg.Publication), s.source.cfg.Emitted)
	for {
		wal, err := s.source.connectWAL(ctx)
		if err != nil {
			return err
		}
		charset, err := s.source.asStored(ctx, wal)
		var w *wire
		if err == nil {
			w, err = takeOver(wal)
		}
		if err != nil {
			hangUpWAL(wal)
			return err
		}
		err = w.begin(ctx, command)
		if err == nil {
			s.mu.Lock()
			s.wire, s.heardAt, s.charset = w, time.Now(), charset
			s.received = s.progress.position
			s.mu.Unlock()
			return nil
		}
		w.close()
		if sqlState(err) != "55006" { // not: it is active
			return fmt.Errorf("start streaming from slot %q at %s: %w", s.source.cfg.Slot, s.progress.position, err)
		}
		if failure := s.table.Failure(); failure != nil {
			return failure
		}
		if err := s.evict(ctx, conn); err != nil {
			return err
		}
		if err := pauseFor(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// quoteList writes a list of one identifier inside of a literal.
func quoteList(name string) string {
	out := make([]byte, 0, len(name)+2)
	out = append(out, '"')
	for i := range len(name) {
		if name[i] == '\'' {
			out = append(out, '\'')
		}
		out = append(out, name[i])
	}
	return string(append(out, '"'))
}

// tick is how long Next waits before it returns an empty batch.
const tick = time.Second

func (s *session) nextOfLog(ctx context.Context, limit int) (relay.Batch, error) {
	if s.wantsToLeave() {
		return relay.Batch{}, s.leaveLog(ctx)
	}
	batch, err := s.readLog(ctx, limit)
	if err != nil {
		if failure := s.table.Failure(); failure != nil {
			err = failure // it has closed the connection
		} else if ctx.Err() != nil {
			err = ctx.Err()
		} else {
			err = fmt.Errorf("read the write-ahead log: %w", err)
		}
	}
	return batch, err
}

// readLog collects what has come, and waits if nothing has.
func (s *session) readLog(ctx context.Context, limit int) (relay.Batch, error) {
	if s.page == nil {
		s.page = s.table.NewPage()
	}
	if err := s.collect(ctx, limit); err != nil || s.page.Len() == 0 {
		return relay.Batch{}, err
	}
	s.pace.read(s.page.Len(), time.Now())
	if err := s.awaitStandbys(ctx); err != nil {
		return relay.Batch{}, err
	}
	batch := s.page.Batch()
	if s.page.Full() {
		s.page.Drop()
		s.page = nil
	}
	return batch, nil
}

// awaitStandbys makes a commit behind all that was received, which waits until the synchronous standbys have the log up to
// there. The server sends what only its own disk has, and a failover would take that back.
func (s *session) awaitStandbys(ctx context.Context) error {
	s.mu.Lock()
	standbys := s.standbys
	s.mu.Unlock()
	if !standbys {
		return nil
	}
	return s.store(context.WithoutCancel(ctx), nil)
}

func (s *session) collect(ctx context.Context, limit int) error {
	w := s.wire
	until := time.Now().Add(tick) // also when there is nothing but keepalives
	waited := false               // under load, for more than was there
	for {
		if err := s.parse(limit); err != nil {
			return err
		}
		n := s.page.Len()
		if s.stopped() || n >= limit || s.page.Bytes() >= s.source.cfg.Table.PageBytes {
			return nil
		}
		if mark := s.pace.mark(time.Now()); mark > 0 && !waited && w.low.set(mark) {
			waited = true
			if err := s.gather(w, limit); err != nil {
				return err
			}
			continue
		}
		if n > 0 {
			return nil
		}
		w.low.set(1)
		switch err := w.fill(ctx, until); {
		case errors.Is(err, errTick):
			return ctx.Err()
		case err != nil:
			return err
		}
	}
}

// gather reads for at most a moment, waking up only for as much as the mark says.
func (s *session) gather(w *wire, limit int) error {
	until := time.Now().Add(s.pace.patience())
	for {
		err := w.fill(context.Background(), until)
		late := errors.Is(err, errTick)
		if late {
			// What has come is less than the mark, and can be read all the same.
			if err = w.fill(context.Background(), time.Now().Add(100*time.Microsecond)); errors.Is(err, errTick) {
				return nil
			}
		}
		if err != nil {
			return err
		}
		if err := s.parse(limit); err != nil {
			return err
		}
		if late || s.stopped() || s.page.Len() >= limit || s.page.Bytes() >= s.source.cfg.Table.PageBytes {
			return nil
		}
	}
}

// parse reads the frames that were received, until the page is full.
func (s *session) parse(limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	heard := false
	for s.page.Len() < limit && s.page.Bytes() < s.source.cfg.Table.PageBytes && !s.stopped() {
		typ, body, ok := s.wire.frame()
		if !ok {
			break
		}
		heard = true
		switch typ {
		case 'd':
			if err := s.copyData(body); err != nil {
				return err
			}
		case 'E':
			return serverError(body)
		case 'c', 'C':
			return errStreamEnded
		case 'N', 'S', 'Z':
		default:
			return fmt.Errorf("the server sent an unexpected message %q", typ)
		}
	}
	if heard {
		s.heardAt = time.Now()
	}
	return nil
}

func (s *session) copyData(body []byte) error {
	if len(body) == 0 {
		return errCut
	}
	switch body[0] {
	case 'w': // start, end, when, data
		if len(body) < 25 {
			return errCut
		}
		s.received = max(s.received, LSN(binary.BigEndian.Uint64(body[1:])))
		return s.change(body[25:])
	case 'k': // end, when, wants an answer
		if len(body) < 18 {
			return errCut
		}
		end := LSN(binary.BigEndian.Uint64(body[1:]))
		s.received = max(s.received, end)
		s.pass(end)
		if body[17] != 0 {
			return s.wire.status(s.received, s.confirmed, false)
		}
	}
	return nil
}

// pass notes that everything that commits before end was received.
func (s *session) pass(end LSN) {
	s.progress.passed(end)
}

// stopped reports whether the log is not to be delivered further.
func (s *session) stopped() bool { return s.leave != nil && !s.progress.open }

func (s *session) change(data []byte) error {
	if len(data) > 0 && kind(data[0]) == kindRelation {
		return s.relation(data)
	}
	c, err := decode(data)
	if err != nil {
		return err
	}
	switch c.kind {
	case kindBegin:
		s.inTx = c.lsn
		s.progress.begin(c.lsn)
	case kindCommit:
		s.progress.commit(c.end)
	case kindInsert:
		return s.insert(&c)
	case kindMessage:
		return s.message(&c)
	}
	return nil
}

func (s *session) relation(data []byte) error {
	r, err := decodeRelation(data)
	if err != nil {
		return err
	}
	if r.namespace != "outbox" || r.name != "messages" {
		s.layouts[r.id] = nil // another table of a publication that isn't ours alone
		return nil
	}
	l, err := newLayout(&r, &s.row.columns)
	s.layouts[r.id] = l
	return err
}

func (s *session) insert(c *change) error {
	l, known := s.layouts[c.relation]
	if !known {
		return fmt.Errorf("an insert into relation %d came before its description", c.relation)
	}
	if l == nil {
		return nil
	}
	if err := l.fill(s.row, c.tuple); err != nil {
		return fmt.Errorf("read an insert into outbox.messages: %w", err)
	}
	wanted := s.progress.next()
	if !wanted || s.fromTable(s.row.xid) {
		return nil
	}
	if n := len(s.unseen); n == 0 || s.unseen[n-1] != s.row.xid {
		s.unseen = append(s.unseen, s.row.xid)
	}
	invalid, err := s.row.utf8(s.ctx, s.charset)
	if err != nil {
		return err
	}
	return s.deliver(s.row.xid, invalid)
}

// fromTable reports whether the rows of the open transaction were delivered from the table.
func (s *session) fromTable(xid uint64) bool { return s.inTx < s.seenUntil && s.seen.Sees(xid) }

func (s *session) message(c *change) error {
	if string(c.prefix) != Prefix {
		return nil
	}
	if !c.transactional {
		if !s.complained {
			s.complained = true
			s.log().Error("a logical message with the prefix "+Prefix+" was written outside of its transaction and is not delivered: "+
				"the first argument of pg_logical_emit_message must be true", "position", c.lsn.String())
		}
		return nil
	}
	if !s.progress.next() {
		return nil
	}
	invalid := s.row.fillEmitted(s.order, c.content)
	if invalid != nil {
		s.row.fillBroken(c.lsn, c.content)
	}
	return s.deliver(0, invalid)
}

// deliver adds what row holds to the page.
func (s *session) deliver(xid uint64, invalid error) error {
	d, err := s.page.Add(s.row.values)
	if err != nil {
		return err
	}
	d.Ref = xid
	d.Window = s.progress.deliver()
	if invalid != nil {
		d.Invalid = invalid
	}
	return nil
}

// pace decides whether to wait for more than has come, by how many messages have come lately.
type pace struct {
	rate float64 // messages a millisecond, lately
	at   time.Time
}

// A wake-up costs as much as some messages do, so it is worth waiting when about this many come meanwhile.
const (
	busyRate  = 8  // messages a millisecond
	floodRate = 32 // that is a backlog, where nobody waits for a single message
	markLow   = 16 << 10
	markHigh  = 128 << 10 // bytes

	pauseInFlow = 20 * time.Millisecond // after it nothing is known of what comes
)

// patience is how long messages wait for those that follow them: in a flood longer, for every batch has a
// cost of its own behind here.
func (p *pace) patience() time.Duration {
	if p.rate < floodRate {
		return time.Millisecond
	}
	return 4 * time.Millisecond
}

func (p *pace) read(messages int, now time.Time) {
	if !p.at.IsZero() {
		passed := now.Sub(p.at)
		lately := float64(messages) / max(float64(passed)/float64(time.Millisecond), 0.01)
		if passed > p.patience() {
			p.rate = lately // over so long it is a mean already
		} else {
			p.rate += (lately - p.rate) / 4
		}
	}
	p.at = now
}

// mark is for how many bytes to wait, 0 for not at all: what comes after a pause may be a single message,
// however many came before it.
func (p *pace) mark(now time.Time) int {
	if p.rate < busyRate || now.Sub(p.at) > pauseInFlow {
		return 0
	}
	const size = 512 // of a message, about
	return min(max(int(p.rate*float64(p.patience()/time.Millisecond))*size, markLow), markHigh)
}
