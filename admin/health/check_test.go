package health

import (
	"testing"
	"time"

	"github.com/pgoutbox/outbox/admin"
)

func TestACheckIsTheVerdictAndTheLimits(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_800_000_000, 0)
	calm := Destination{Name: "it's", Groups: []Group{{Live: true}}, Pending: admin.Count{N: 7}, Oldest: at.Add(-90 * time.Second)}
	dead := Destination{Name: "b|c=d", Groups: []Group{{Live: true}}, Dead: Dead{New: admin.Count{N: 3}, LastError: "no | never\nagain"}}
	gone := Destination{Name: "gone", Groups: []Group{{}}}
	for _, c := range []struct {
		name         string
		destinations []Destination
		only         string
		limits       Limits
		want         Result
		line         string
	}{
		{"calm", []Destination{calm}, "", Limits{}, ResultOK,
			"OUTBOX OK - flowing: it's: 7 pending | 'it''s_oldest'=90s;;;0 'it''s_pending'=7;;;0 'it''s_dead'=0;;;0"},
		{"attention", []Destination{dead}, "", Limits{}, ResultWarning,
			"OUTBOX WARNING - dead: b/c=d: 3 new dead letters; last error: no / never again. Next: " +
				"cure the cause and have them delivered, or say that you know of them (outbox dead ack --destination 'b/c=d'): " +
				"outbox dead requeue --destination 'b/c=d' | 'b/c_d_oldest'=0s;;;0 'b/c_d_pending'=0;;;0 'b/c_d_dead'=3;;;0"},
		{"alarm", []Destination{calm, gone}, "", Limits{}, ResultCritical, ""},
		{"another's alarm", []Destination{calm, gone}, "it's", Limits{}, ResultOK, ""},
		{"below the limits", []Destination{calm}, "", Limits{Limit{91, 92}, Limit{8, 9}, Limit{1, 1}}, ResultOK, ""},
		{"old", []Destination{calm}, "", Limits{Oldest: Limit{60, 600}}, ResultWarning,
			"OUTBOX WARNING - it's: oldest 90s, warning from 60s; flowing: it's: 7 pending | " +
				"'it''s_oldest'=90s;60;600;0 'it''s_pending'=7;;;0 'it''s_dead'=0;;;0"},
		{"many", []Destination{calm}, "", Limits{Pending: Limit{1, 7}}, ResultCritical, ""},
		{"many dead", []Destination{dead}, "", Limits{Dead: Limit{1, 3}}, ResultCritical, ""},
		{"a limit makes nothing better", []Destination{gone}, "", Limits{Pending: Limit{1, 2}}, ResultCritical, ""},
	} {
		r := &Report{At: at, Destinations: c.destinations}
		r.judge(allRules)
		got := r.Check(c.only, c.limits)
		if got.Result != c.want || c.line != "" && got.Plugin() != c.line {
			t.Errorf("%s: %s", c.name, got.Plugin())
		}
	}
}

func TestEveryStateHasAResult(t *testing.T) {
	t.Parallel()
	worst := ResultOK
	for _, s := range States() {
		r := s.Result()
		if s.OK() != (r == ResultOK) || s.Delivers() == (r == ResultCritical) {
			t.Errorf("%s is %s", s, r)
		}
		if s != StateUnknown && r < worst {
			t.Errorf("%s is %s, and a better state %s", s, r, worst)
		} else if s != StateUnknown {
			worst = r
		}
		var back Result
		if text, err := r.MarshalText(); err != nil || back.UnmarshalText(text) != nil || back != r {
			t.Errorf("%s is read as %s", r, back)
		}
	}
}
