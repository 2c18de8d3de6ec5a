package wal

import (
	"fmt"
	"strconv"
	"strings"
)

// LSN is a place in the write-ahead log.
type LSN uint64

// String writes it as PostgreSQL does: two hexadecimal halves.
func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l)) }

// ParseLSN reads what String writes.
func ParseLSN(text string) (LSN, error) {
	high, low, ok := strings.Cut(text, "/")
	h, err1 := strconv.ParseUint(high, 16, 32)
	l, err2 := strconv.ParseUint(low, 16, 32)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%q is not a position in the write-ahead log", text)
	}
	return LSN(h<<32 | l), nil
}
