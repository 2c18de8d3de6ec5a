package kafka

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestTheClockWritesTimesAsTheLayoutHasThem(t *testing.T) {
	t.Parallel()
	var c clock
	times := []time.Time{
		time.Unix(0, 0), time.Unix(-1, 999_999_000), time.Date(1, 1, 1, 0, 0, 1, 0, time.UTC),
		time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC),
	}
	zone := time.FixedZone("elsewhere", -5*3600)
	for range 1000 {
		at := time.UnixMicro(rand.Int64N(4e15))
		times = append(times, at, at, at.Add(time.Millisecond).In(zone))
	}
	for _, at := range times {
		if got, want := string(c.append(nil, at)), at.UTC().Format(createdAtLayout); got != want {
			t.Errorf("%v is written as %s, want %s", at, got, want)
		}
	}
}
