package replication

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/pgoutbox/outbox/internal/cursors"
	"github.com/pgoutbox/outbox/relay/internal/messages"
	"github.com/pgoutbox/outbox/relay/internal/wal"
	"github.com/pgoutbox/outbox/relay/polling"
)

// session owns a destination. At first it reads the table, unless it can resume, and then the log.
//
// Next runs in one goroutine and Settle in another. A third (keep) stores and confirms progress that needs no
// settlement. Locks: the table's (taken by table.Write), then mu.
type session struct {
	source *Source
	table  *polling.Table

	formerSlot     string
	statusInterval time.Duration
	drawing        cursors.SequenceWatch // used under the table's link

	mu        sync.Mutex
	mode      mode   // what the operator wants
	standbys  bool   // commits wait for synchronous standbys
	streaming bool   // the log is read, not the table
	version   string // of the publication, that the log is read through
	wal       *wal.Stream
	progress  *wal.Progress
	stored    wal.Mark // what the database knows, and what the server is told
	end       wal.LSN  // of the log, when it was last asked for

	// unseen are transactions whose messages were delivered and that no snapshot has seen yet.
	unseen []uint64

	fallback fallback

	settled chan struct{}  // a settlement came
	ready   chan boundary  // of the slot, or of the way back, in preparation
	helpers sync.WaitGroup // the goroutine that prepares it
	ctx     context.Context
	cancel  context.CancelFunc

	// Only Next uses the rest.
	reader
}

func newSession(source *Source, table *polling.Table) *session {
	s := &session{source: source, table: table, settled: make(chan struct{}, 1), ready: make(chan boundary, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.reader.init()
	return s
}

// reader is the part of a session that only Next uses.
type reader struct {
	row       *row
	order     []int              // of the fields of emitted messages
	layouts   map[uint32]*layout // of outbox.messages, by relation; nil for another table's
	limit     int                // of the batch being read
	described bool               // the server has described outbox.messages since the publication was looked at

	// The rows of transactions that seen sees were delivered from the table. No such transaction commits after
	// seenUntil.
	seen      *cursors.Snapshot
	seenUntil wal.LSN
	inTx      wal.LSN // where the current transaction commits

	leave    *leaving // the log is being left for the table
	catching bool     // the same, to catch up

	preparing  bool      // prepare runs
	slotReady  *boundary // the slot exists, and the table isn't read up to it yet
	retryAt    time.Time
	page       *messages.Collector
	complained bool // about a message outside any transaction
}

func (r *reader) init() {
	r.row = newRow()
	r.order = r.row.columns.emittedOrder()
	r.layouts = make(map[uint32]*layout)
}

// leaving is the state of a switch from the log to the table.
type leaving struct {
	since    time.Time
	snapshot *cursors.Snapshot // N
	until    wal.LSN           // what N sees commits before this
	passed   bool              // the log was read up to until
	unsent   []uint64          // U
	emitted  int               // messages without a row that are not delivered
}

func (s *session) log() *slog.Logger {
	return s.source.cfg.Table.Logger.With("destination", s.source.destination)
}

func (s *session) ttl() time.Duration { return s.source.cfg.Table.Lease }

func (s *session) isStreaming() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streaming
}
