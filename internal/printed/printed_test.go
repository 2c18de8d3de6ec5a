package printed

import (
	"strings"
	"testing"
)

func TestKeysOfAnyBytesAreShownSafelyAndShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 150)
	for key, want := range map[string]string{
		"":                            "",
		"order-7 ü":                   "order-7 ü",
		"\x00\x00\x00\x01\x80k":       `\x00\x00\x00\x01\x80k`,
		"a\nb\u200b":                  `a\nb\u200b`,
		long:                          strings.Repeat("ü", 100) + "…",
		"a" + long:                    "a" + strings.Repeat("ü", 99) + "…",
		strings.Repeat("\x80", 1<<20): strings.Repeat(`\x80`, maxKey-3) + "…",
	} {
		if got := Key(key); got != want && !(len(key) == 1<<20 && len(got) < 5*maxKey) {
			t.Errorf("%.300q is shown as %q, want %q", key, got, want)
		}
	}
}
