package mapped

import (
	"encoding/binary"
	"strconv"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgoutbox/outbox/relay"
)

// sight is what a poll has seen.
type sight struct {
	first    int64   // the first number that was read; the largest number there is if none
	last     int64   // the last number that was read, if any
	complete bool    // there are no more rows to read
	taken    int     // rows that were locked
	hidden   int64   // the lowest number of a waiting row that could not be taken; the largest number there is if none
	crowd    []int64 // the lanes that fill a page that is kept back
}

// read reads the last columns of a claim: the position of a row, its token, and the columns of s.
func (s *sight) read(_ *relay.Delivery, r *row, v [][]byte) error {
	if len(v) < 5 {
		return errRow
	}
	v = v[len(v)-5:]
	if r != nil {
		if len(v[0]) != 8 {
			return errRow
		}
		r.place = int64(binary.BigEndian.Uint64(v[0]))
		if len(v[1]) == 8 {
			r.token = strconv.FormatInt(int64(binary.BigEndian.Uint64(v[1])), 10)
		}
	}
	if len(v[2]) != 8 {
		return errRow
	}
	s.taken = int(binary.BigEndian.Uint64(v[2]))
	if len(v[3]) == 8 {
		s.hidden = int64(binary.BigEndian.Uint64(v[3]))
	}
	if r != nil || v[4] == nil {
		return nil
	}
	return pgtype.NewMap().Scan(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, v[4], &s.crowd)
}
