package wal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// Stream is the log as a slot sends it. One goroutine reads; any goroutine may tell the server how far everything is
// settled. Locks: sending, then the owner's.
type Stream struct {
	wire    *wire
	charset *charset
	pace    pace
	change  Change // the one being taken
	warned  func(error) error
	every   time.Duration // between two statuses

	sending sync.Mutex // held while a status is sent

	mu                  *sync.Mutex // the owner's
	received, confirmed LSN
	heard, asked, told  time.Time
}

// Config configures a stream.
type Config struct {
	Slot        string
	Publication string
	Options     string // additional options of START_REPLICATION
	From        LSN    // transactions that commit before it are not sent

	// Lock is held while a change is taken.
	Lock *sync.Mutex

	// StatusInterval is the longest time without a status to the server.
	StatusInterval time.Duration

	// Warned, if not nil, is called with each warning of the server while it streams. Its error ends the stream. The
	// lock is held.
	Warned func(warning error) error

	// Busy is called while another process streams from the slot. Open returns its error.
	Busy func(ctx context.Context) error
}

// Open sends START_REPLICATION until the slot is free.
func Open(ctx context.Context, server Server, cfg Config) (*Stream, error) {
	// The publication is an identifier inside a literal.
	command := fmt.Sprintf(`START_REPLICATION SLOT %s LOGICAL %s (proto_version '1', publication_names '"%s"'%s)`,
		cfg.Slot, cfg.From, strings.ReplaceAll(cfg.Publication, "'", "''"), cfg.Options)
	s := &Stream{mu: cfg.Lock, every: cfg.StatusInterval, warned: cfg.Warned, received: cfg.From, confirmed: cfg.From}
	for {
		conn, err := server.ConnectWAL(ctx)
		if err != nil {
			return nil, err
		}
		if s.charset, err = server.asStored(ctx, conn); err == nil {
			s.wire, err = takeOver(conn)
		}
		if err != nil {
			conn.HangUp()
			return nil, err
		}
		if err = s.wire.begin(ctx, command); err == nil {
			s.heard = time.Now()
			return s, nil
		}
		s.wire.close()
		if sqlstate.Of(err) != "55006" { // other than: the slot is active
			return nil, fmt.Errorf("start streaming from slot %q at %s: %w", cfg.Slot, cfg.From, err)
		}
		if err := cfg.Busy(ctx); err != nil {
			return nil, err
		}
		if err := dial.Pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// Evict ends the process that streams from a slot, if that is a stream of this name: one that another relay has left.
func (s Server) Evict(ctx context.Context, conn *pgx.Conn, slot string) error {
	var pid int
	var application string
	var ended bool
	err := conn.QueryRow(ctx, `SELECT a.pid, coalesce(a.application_name, ''),
		CASE WHEN a.application_name = $2 THEN pg_terminate_backend(a.pid) ELSE false END
		FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = $1`,
		slot, s.application()).Scan(&pid, &application, &ended)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil // it has ended
	case err != nil:
		return fmt.Errorf("end the former stream: %w", err)
	case !ended:
		return fmt.Errorf("slot %q is read by process %d (%q), which reads nothing for this destination: stop that process, "+
			"or give the destination another slot name",
			slot, pid, application)
	}
	return nil
}

// Taker takes the changes of a stream, in the stream's goroutine.
type Taker interface {
	// Take takes a change, which is valid until Take returns, and reports whether it was a message. The lock is held.
	// After ErrFull, the next Read offers the same change first; after any other error the stream is unusable.
	Take(c *Change) (message bool, err error)

	// Full reports whether Take would return ErrFull for any change.
	Full() bool
}

// ErrFull means that the taker has no room for a change.
var ErrFull = errors.New("there is no room for the change now")

// tick is how long Read waits for a message.
const tick = time.Second

// Read makes t take the changes that have arrived, and returns the number of messages. It waits until there is one, at
// most a second.
func (s *Stream) Read(ctx context.Context, t Taker) (n int, err error) {
	n, err = s.read(ctx, t)
	switch {
	case err == nil && n > 0:
		s.pace.read(n, time.Now())
	case err != nil && ctx.Err() != nil:
		err = ctx.Err()
	case err != nil:
		err = fmt.Errorf("read the write-ahead log: %w", err)
	}
	return n, err
}

func (s *Stream) read(ctx context.Context, t Taker) (n int, err error) {
	until := time.Now().Add(tick) // the limit, even if only keepalives come
	waited := false               // under load, for more than had arrived
	for {
		taken, err := s.parse(t)
		if n += taken; err != nil || t.Full() {
			return n, err
		}
		if mark := s.pace.mark(time.Now()); mark > 0 && !waited && s.wire.low.set(mark) {
			waited = true
			taken, err := s.gather(t)
			if n += taken; err != nil {
				return n, err
			}
			continue
		}
		if n > 0 {
			return n, nil
		}
		s.wire.low.set(1)
		switch err := s.wire.fill(ctx, until); {
		case errors.Is(err, errTick):
			return n, ctx.Err()
		case err != nil:
			return n, err
		}
	}
}

// gather reads for a moment at most, and wakes up only when the mark is reached.
func (s *Stream) gather(t Taker) (n int, err error) {
	until := time.Now().Add(s.pace.patience())
	for {
		err := s.wire.fill(context.Background(), until)
		late := errors.Is(err, errTick)
		if late {
			// Fewer bytes than the mark may have arrived; they can be read all the same.
			if err = s.wire.fill(context.Background(), time.Now().Add(100*time.Microsecond)); errors.Is(err, errTick) {
				return n, nil
			}
		}
		if err != nil {
			return n, err
		}
		taken, err := s.parse(t)
		if n += taken; err != nil || late || t.Full() {
			return n, err
		}
	}
}

// parse makes t take the frames that were received.
func (s *Stream) parse(t Taker) (n int, err error) {
	n, answer, err := s.frames(t)
	if err == nil && answer {
		err = s.tell(false)
	}
	return n, err
}

func (s *Stream) frames(t Taker) (n int, answer bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wire.start < s.wire.end {
		s.heard = time.Now()
	}
	for {
		at := s.wire.start
		typ, body, ok := s.wire.frame()
		if !ok {
			return n, answer, nil
		}
		switch typ {
		case 'd':
			asked, message, err := s.copyData(body, t)
			if errors.Is(err, ErrFull) {
				s.wire.start = at
				return n, answer, nil
			}
			if err != nil {
				return n, answer, err
			}
			answer = answer || asked
			if message {
				n++
			}
		case 'E':
			return n, answer, serverError(body)
		case 'c', 'C':
			return n, answer, errStreamEnded
		case 'N':
			if s.warned != nil {
				if err := s.warned(serverError(body)); err != nil {
					return n, answer, err
				}
			}
		case 'S', 'Z':
		default:
			return n, answer, fmt.Errorf("the server sent an unexpected message %q", typ)
		}
	}
}

// copyData makes t take the content of a frame. asked means that the server wants an answer.
func (s *Stream) copyData(body []byte, t Taker) (asked, message bool, err error) {
	var end LSN
	switch {
	case len(body) >= 25 && body[0] == 'w': // start, end, when, data
		end = LSN(binary.BigEndian.Uint64(body[1:]))
		s.change, err = Decode(body[25:])
	case len(body) >= 18 && body[0] == 'k': // end, when, wants an answer
		end = LSN(binary.BigEndian.Uint64(body[1:]))
		s.change, asked = Change{Kind: KindKeepalive, End: end}, body[17] != 0
	default:
		err = errCut
	}
	if err == nil {
		message, err = t.Take(&s.change)
	}
	if err == nil {
		s.received = max(s.received, end)
	}
	return asked, message, err
}

// Confirm tells the server that nothing before position is needed any more, if the position has moved, if the server
// has had no status for long, or if now is set.
func (s *Stream) Confirm(position LSN, now bool) error {
	s.mu.Lock()
	due := now || position > s.confirmed || time.Since(s.told) > s.every
	s.confirmed = max(s.confirmed, position)
	s.mu.Unlock()
	if !due {
		return nil
	}
	return s.tell(false)
}

// Ask makes the server report how far it has read the log.
func (s *Stream) Ask() error { return s.tell(true) }

func (s *Stream) tell(ask bool) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	received, confirmed := s.received, s.confirmed
	s.told = time.Now()
	if ask {
		s.asked = s.told
	}
	s.mu.Unlock()
	if err := s.wire.status(received, confirmed, ask); err != nil {
		return fmt.Errorf("confirm the position: %w", err)
	}
	return nil
}

// Silent is for how long the server has sent nothing since it was asked. The lock is held.
func (s *Stream) Silent() time.Duration { return min(time.Since(s.heard), time.Since(s.asked)) }

// UTF8 converts texts of the log from the database's encoding; see charset. Only the reader may call it.
func (s *Stream) UTF8(ctx context.Context, texts [][]byte) (faults map[int]error, err error) {
	return s.charset.convert(ctx, texts)
}

// Interrupt ends the connection as a crash does, even while a goroutine reads.
func (s *Stream) Interrupt() { s.wire.close() }

// Abort is Interrupt for a stream that no goroutine reads any more.
func (s *Stream) Abort() {
	s.wire.close()
	s.charset.close()
}

// Goodbye ends the stream regularly. No goroutine may be reading.
func (s *Stream) Goodbye() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.wire.goodbye()
	s.charset.close()
}

// Part is Goodbye, and waits until the server has read everything that was sent before: the next reader of the slot may
// end the stream without asking.
func (s *Stream) Part() {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.wire.closeGracefully()
	s.charset.close()
}
