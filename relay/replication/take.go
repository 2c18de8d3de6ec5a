package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/pgoutbox/outbox/relay/internal/wal"
)

// Full reports whether the batch has no room for more, or whether no more of the log may be delivered.
func (s *session) Full() bool {
	return (s.leave != nil || s.catching) && !s.progress.Open || s.page.Len() >= s.limit || s.page.Bytes() >= s.source.cfg.Table.PageBytes
}

// Take adds a message to the page.
func (s *session) Take(c *wal.Change) (message bool, err error) {
	if s.Full() {
		return false, wal.ErrFull
	}
	s.progress.Note(c)
	n := s.page.Len()
	switch c.Kind {
	case wal.KindRelation:
		err = s.relation(c.Table)
	case wal.KindBegin:
		s.inTx = c.LSN
	case wal.KindInsert:
		err = s.insert(c)
	case wal.KindMessage:
		err = s.message(c)
	}
	return s.page.Len() > n, err
}

func (s *session) relation(r *wal.Relation) error {
	if r.Namespace != "outbox" || r.Name != "messages" {
		s.layouts[r.ID] = nil // another table, in a publication that isn't only ours
		return nil
	}
	s.described = true
	l, err := newLayout(r, &s.row.columns)
	s.layouts[r.ID] = l
	return err
}

// fill reads an insert into row. It returns false for an insert into another table.
func (s *session) fill(c *wal.Change) (bool, error) {
	l, known := s.layouts[c.Relation]
	if !known {
		return false, fmt.Errorf("an insert into relation %d came before its description", c.Relation)
	}
	if l == nil {
		return false, nil
	}
	if err := l.fill(s.row, c.Row); err != nil {
		return false, fmt.Errorf("read an insert into outbox.messages: %w", err)
	}
	return true, nil
}

func (s *session) insert(c *wal.Change) error {
	if ours, err := s.fill(c); !ours || err != nil {
		return err
	}
	wanted := s.progress.Next()
	if !wanted || s.fromTable(s.row.xid) {
		return nil
	}
	if n := len(s.unseen); n == 0 || s.unseen[n-1] != s.row.xid {
		s.unseen = append(s.unseen, s.row.xid)
	}
	invalid, err := s.row.utf8(s.ctx, s.wal)
	if err != nil {
		return err
	}
	return s.deliver(s.row.xid, invalid)
}

// fromTable reports whether the rows of the open transaction were delivered from the table.
func (s *session) fromTable(xid uint64) bool { return s.inTx < s.seenUntil && s.seen.Sees(xid) }

func (s *session) message(c *wal.Change) error {
	if string(c.Prefix) != prefix {
		return nil
	}
	if !c.Transactional {
		if !s.complained {
			s.complained = true
			s.log().Error("a logical message with the prefix "+prefix+" was written outside of its transaction and is not delivered: "+
				"the first argument of pg_logical_emit_message must be true", "position", c.LSN.String())
		}
		return nil
	}
	if !s.progress.Next() {
		return nil
	}
	invalid := s.row.fillEmitted(s.order, c.Content)
	if invalid != nil {
		s.row.fillBroken(c.LSN, c.Content)
	}
	return s.deliver(0, invalid)
}

// deliver adds the message in row to the page.
func (s *session) deliver(xid uint64, invalid error) error {
	d, err := s.page.Add(s.row.values)
	if err != nil {
		return err
	}
	d.Ref = xid
	d.Window = s.progress.Deliver()
	if invalid != nil {
		d.Invalid = invalid
	}
	return nil
}

// utf8 converts the texts of a row from the log to UTF-8. An invalid row has the texts that could be converted, and no
// key if that could not.
func (r *row) utf8(ctx context.Context, stream *wal.Stream) (invalid, err error) {
	r.texts = r.texts[:0]
	for _, column := range r.columns.texts {
		r.texts = append(r.texts, r.values[column])
	}
	texts := r.texts
	faults, err := stream.UTF8(ctx, texts)
	if err != nil {
		return nil, err
	}
	var found []error
	for i, column := range r.columns.texts {
		if fault := faults[i]; fault != nil {
			texts[i] = nil
			found = append(found, fmt.Errorf("%s can't be read as UTF-8: %w", r.columns.names[column], fault))
		}
		r.values[column] = texts[i]
	}
	if found != nil && r.values[r.columns.key] == nil {
		r.values[r.columns.aggregateID] = nil // the text may be the key or the aggregate id: the message gets a lane of its own
	}
	return errors.Join(found...), nil
}
