package printed

import (
	"testing"
	"time"
)

func TestSizesSpansAndNumbersAreShort(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 65536: "64 KiB", 1536: "1.5 KiB", 102400: "100 KiB",
		1<<20 - 1: "1 MiB", 16 << 20: "16 MiB", 1<<60 + 1: "1024 PiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d bytes are %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-time.Second: "0s", 0: "0s", time.Microsecond: "<1ms", 350 * time.Millisecond: "350ms",
		999900 * time.Microsecond: "1s", 2340 * time.Millisecond: "2.3s", 9960 * time.Millisecond: "10s", 10 * time.Second: "10s",
		70 * time.Second: "1m10s", 10 * time.Minute: "10m", 314 * time.Second: "5m14s", time.Hour - time.Millisecond: "1h",
		20 * time.Hour: "20h", 26*time.Hour + 10*time.Minute: "26h10m", 48 * time.Hour: "2d", 76 * time.Hour: "3d4h",
		300*24*time.Hour + time.Hour: "300d"} {
		if got := Span(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1234567: "-1,234,567"} {
		if got := Number(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
	if one, two := Many(1, "key", "keys"), Many(1200, "key", "keys"); one != "1 key" || two != "1,200 keys" {
		t.Errorf("%s, %s", one, two)
	}
}
