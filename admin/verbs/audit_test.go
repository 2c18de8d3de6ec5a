package verbs

import "testing"

func TestTheDetailsOfTheAuditKeepTheirInnerBraces(t *testing.T) {
	t.Parallel()
	if got := compact([]byte(`{"target": {"destination": "kafka"}}`)); got != "target: {destination: kafka}" {
		t.Errorf("%q", got)
	}
}
