package reading

import (
	"encoding/binary"
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/mapped/internal/existing"
)

// Scan is what a poll has seen.
type Scan struct {
	first    int64   // the first number that was read; the largest number there is if none
	last     int64   // the last number that was read, if any
	Complete bool    // there are no more rows to read
	taken    int     // rows that were locked
	Hidden   int64   // the lowest number of a waiting row that could not be taken; the largest number there is if none
	crowd    []int64 // the lanes that fill a page that is kept back
}

// Read reads the last columns of a claim: the position of a row, its token, and the columns of s.
func (s *Scan) Read(_ *relay.Delivery, r *existing.Row, v [][]byte) error {
	if len(v) < 5 {
		return existing.ErrRow
	}
	v = v[len(v)-5:]
	if r != nil {
		if len(v[0]) != 8 {
			return existing.ErrRow
		}
		r.Place = int64(binary.BigEndian.Uint64(v[0]))
		if len(v[1]) == 8 {
			r.Token = strconv.FormatInt(int64(binary.BigEndian.Uint64(v[1])), 10)
		}
	}
	if len(v[2]) != 8 {
		return existing.ErrRow
	}
	s.taken = int(binary.BigEndian.Uint64(v[2]))
	if len(v[3]) == 8 {
		s.Hidden = int64(binary.BigEndian.Uint64(v[3]))
	}
	if r != nil || v[4] == nil {
		return nil
	}
	return pgtype.NewMap().Scan(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, v[4], &s.crowd)
}
