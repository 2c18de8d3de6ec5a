package scalar

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes, written as a number or with a unit: B, kB, MB and
// GB, or KiB, MiB and GiB.
type Size int64

var sizeUnits = []struct {
	name  string
	bytes int64
}{
	{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1}, {"", 1},
}

// String returns the size in the largest binary unit that leaves it whole.
func (s Size) String() string {
	for _, unit := range sizeUnits[:3] {
		if s != 0 && int64(s)%unit.bytes == 0 {
			return strconv.FormatInt(int64(s)/unit.bytes, 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText returns what String does.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads 16MiB.
func (s *Size) UnmarshalText(text []byte) error {
	size, ok := parseSize(string(text))
	if !ok {
		return errors.New("is not a size such as 16MiB, 500kB or 1048576")
	}
	*s = size
	return nil
}

func parseSize(text string) (Size, bool) {
	digits := strings.TrimRight(text, "BiKkMG")
	for _, unit := range sizeUnits {
		if text[len(digits):] != unit.name {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/unit.bytes {
			return 0, false
		}
		return Size(n * unit.bytes), true
	}
	return 0, false
}
