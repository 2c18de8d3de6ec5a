package printed

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Bytes returns a size with a unit of 1,024: 64 KiB, 1.5 MiB. The configuration takes the same units.
func Bytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	value, i := float64(n), 0
	for value >= 1023.95 && i < len(units)-1 {
		value, i = value/1024, i+1
	}
	if i == 0 || value >= 99.95 {
		return fmt.Sprintf("%.0f %s", value, units[i])
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + units[i]
}

// Span returns a duration in one or two units: 350ms, 2.3s, 5m14s, 14h20m, 3d4h.
func Span(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < time.Millisecond:
		return "<1ms"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return whole(d.Round(time.Second))
	case d < 48*time.Hour:
		return whole(d.Round(time.Minute))
	}
	hours := int64(d.Round(time.Hour) / time.Hour)
	text := fmt.Sprintf("%dd", hours/24)
	if hours < 10*24 && hours%24 > 0 {
		text += fmt.Sprintf("%dh", hours%24)
	}
	return text
}

// Ago is where a moment is as seen from now: 5m ago, in 5s, now; "" for the zero time.
func Ago(now, t time.Time) string {
	switch {
	case t.IsZero():
		return ""
	case t.After(now.Add(time.Second)):
		return "in " + Span(t.Sub(now))
	case now.Sub(t) < time.Second:
		return "now"
	}
	return Span(now.Sub(t)) + " ago"
}

// whole returns a duration without the zero units at its end: 5m, not 5m0s.
func whole(d time.Duration) string {
	text := d.String()
	if rest, zero := strings.CutSuffix(text, "m0s"); zero {
		text = rest + "m"
	}
	if rest, zero := strings.CutSuffix(text, "h0m"); zero {
		text = rest + "h"
	}
	return text
}

// Number groups the digits by thousands: 9,000.
func Number[N int | int64 | uint64](n N) string {
	digits, sign := strconv.FormatInt(int64(n), 10), ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Many returns a number with its noun.
func Many[N int | int64 | uint64](n N, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return Number(n) + " " + several
}
