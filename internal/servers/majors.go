package servers

import (
	"os"
	"strings"
	"testing"
)

// OnMajors runs a test on the oldest and on the newest supported PostgreSQL, side by side: between them the answers
// don't change. OUTBOX_TEST_MAJORS names others, such as 15,16,17.
func OnMajors(t *testing.T, test func(t *testing.T, config PostgresConfig)) {
	t.Helper()
	majors := os.Getenv(envMajors)
	if majors == "" {
		majors = "14,18"
	}
	for major := range strings.SplitSeq(majors, ",") {
		t.Run("PostgreSQL "+major, func(t *testing.T) {
			t.Parallel()
			test(t, PostgresConfig{Major: major})
		})
	}
}
