package verbs

import (
	"reflect"
	"strconv"
	"testing"
	"time"
)

func TestACommandLineOfAVerbIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		verb string
		set  [][2]string
		want string
	}{
		{"status", nil, "outbox status"},
		{"pause", [][2]string{{"destination", "billing"}, {"for", "30m"}, {"reason", "it's `late`"}}, `outbox pause --for 30m0s --reason 'it'\''s ` + "`late`' billing"},
		{"pause", [][2]string{{"destination", "-x y"}}, "outbox pause -- '-x y'"},
		{"dead requeue", [][2]string{{"ids", "1"}, {"ids", "2"}, {"blocked", "true"}, {"max", "7"}},
			"outbox dead requeue --blocked --max 7 1 2"},
		{"throttle", [][2]string{{"destination", "a"}, {"rate", "50"}}, "outbox throttle --rate 50 a"},
	} {
		v, err := ByName(c.verb)
		if err != nil {
			t.Fatal(err)
		}
		params := v.New()
		for _, s := range c.set {
			p, ok := v.find(func(p Param) bool { return p.Name == s[0] })
			if !ok {
				t.Fatalf("%s has no %s", c.verb, s[0])
			}
			if err := p.Set(params, s[1]); err != nil {
				t.Fatal(err)
			}
		}
		line := v.Command(params)
		if line != c.want {
			t.Errorf("%s: %s, want %s", c.verb, line, c.want)
		}
		back, again, ok := Parse(line)
		if !ok || back.Name != c.verb || !reflect.DeepEqual(again, params) {
			t.Errorf("%s is read as %v %+v %v, want %+v", line, back.Name, again, ok, params)
		}
	}
	for _, line := range []string{"", "outbox", "outbox relay", "kafka-topics.sh --create", "outbox pause 'a",
		"outbox pause --nope a", "outbox throttle a --rate"} {
		if v, _, ok := Parse(line); ok {
			t.Errorf("%q is taken for %s", line, v.Name)
		}
	}
}

// Moments are read alike from a command line, a query and a body of JSON.
func TestAMomentIsATimeOrHowLongAgo(t *testing.T) {
	t.Parallel()
	v, err := ByName("audit")
	if err != nil {
		t.Fatal(err)
	}
	p, _ := v.find(func(p Param) bool { return p.Name == "since" })
	read := func(text string) (byText, byJSON any, errs [2]error) {
		one, two := v.New(), v.New()
		errs[0] = p.Set(one, text)
		errs[1] = p.Decode(two, []byte(strconv.Quote(text)))
		return p.Value(one), p.Value(two), errs
	}
	for text, want := range map[string]time.Time{"1h30m": time.Now().Add(-90 * time.Minute), "0s": time.Now(),
		"2026-05-01T12:00:00Z":      time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
		"2026-05-01T14:00:00+02:00": time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)} {
		byText, byJSON, errs := read(text)
		for i, got := range []any{byText, byJSON} {
			if apart := got.(time.Time).Sub(want).Abs(); errs[i] != nil || apart > time.Minute {
				t.Errorf("%s is read as %v, %v", text, got, errs[i])
			}
		}
	}
	for _, text := range []string{"", "yesterday", "-1h", "1d", "2026-05-01", "12:00", "1"} {
		if _, _, errs := read(text); errs[0] == nil || errs[1] == nil {
			t.Errorf("%q is read: %v", text, errs)
		}
	}
}
