package verbs

import (
	"errors"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"
)

func TestEveryEntryIsComplete(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, v := range All() {
		if names[v.Path()] || !regexp.MustCompile(`^[a-z]+( [a-z]+)?$`).MatchString(v.Name) {
			t.Errorf("%q isn't a name of its own of one or two words", v.Name)
		}
		names[v.Path()] = true
		if v.Short == "" || v.Timeout <= 0 {
			t.Errorf("%s has no help or no timeout", v.Name)
		}
		params := v.New()
		if v.Role == Operator {
			IntentOf(params).Reason = "it panics without one"
		}
		for i, p := range v.Params {
			if p.Help == "" || !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(p.Name) {
				t.Errorf("%s: %q has no help, or isn't a name", v.Name, p.Name)
			}
			if p.Repeats() != (p.Type == reflect.TypeFor[[]string]()) || p.Arg == "" && p.Repeats() {
				t.Errorf("%s: %s is a %v: only texts behind the command may be many", v.Name, p.Name, p.Type)
			}
			if slices.ContainsFunc(v.Params[:i], func(q Param) bool { return q.Name == p.Name }) {
				t.Errorf("%s has two parameters %s", v.Name, p.Name)
			}
		}
	}
}

func TestADurationThatFitsThePatternIsOne(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"1h30m", "1.5h", "90s", "250ms", "1m0.5s", "86400000ms", "1s500ms", "100µs", "0s",
		time.Duration(1<<62 - 1).String(), "999999h9999999m999999999s999999999ms"} {
		var d Duration
		want, _ := time.ParseDuration(text)
		if err := d.UnmarshalText([]byte(text)); err == nil && time.Duration(d) != want || err != nil && want < 500_000*time.Hour {
			t.Errorf("%s: %v, %v", text, d, err)
		}
	}
}

func TestParametersAreReadCheckedAndWrittenByTheirTags(t *testing.T) {
	t.Parallel()
	type all struct {
		Text  string    `json:"text,omitempty" enum:"a,b,c"`
		Yes   bool      `json:"yes,omitempty"`
		N     int64     `json:"n,omitempty" min:"1" max:"9" default:"5"`
		Most  int       `json:"most,omitempty" min:"1" default:"1"`
		For   Duration  `json:"for,omitempty" min:"1s"`
		Until time.Time `json:"until,omitzero"`
		Names []string  `json:"names,omitempty" arg:"NAME"`
		Must  string    `json:"must" required:"true"`
		Own   func()    `json:"-"`
		Intent
	}
	v := changes[all, struct{}](Verb{Name: "v"}, nil, texts[all, struct{}]{})
	set := func(pairs ...string) (*all, error) {
		p := v.New()
		for i := 0; i < len(pairs); i += 2 {
			at := slices.IndexFunc(v.Params, func(p Param) bool { return p.Name == pairs[i] })
			if err := v.Params[at].Set(p, pairs[i+1]); err != nil {
				return nil, err
			}
		}
		return p.(*all), v.Check(p)
	}
	given := []string{"text", "b", "yes", "true", "n", "9", "most", "1", "for", "1h30m0s", "until",
		"2026-05-01T12:00:00Z", "names", "x", "names", "y", "must", "m", "dry_run", "true", "reason", "r"}
	p, err := set(given...)
	if err != nil {
		t.Fatal(err)
	}
	if p.Text != "b" || !p.Yes || p.N != 9 || p.For != Duration(90*time.Minute) || p.Until.Hour() != 12 ||
		len(p.Names) != 2 || !p.DryRun || p.Reason != "r" {
		t.Errorf("%+v", p)
	}
	var texts []string
	for _, param := range v.Params {
		for _, text := range param.Texts(p) {
			texts = append(texts, param.Name, text)
		}
	}
	if !slices.Equal(texts, given) {
		t.Errorf("written %q, want %q", texts, given)
	}
	if p, err := set("must", "m"); err != nil || p.N != 5 {
		t.Errorf("%+v, %v: the default isn't there", p, err)
	}
	for field, wrong := range map[string][]string{
		"text": {"d", "\x00"}, "yes": {"perhaps"}, "n": {"0", "10", "many", "9223372036854775808"}, "most": {"0"},
		"for":   {"long", "-1s", "1ms", "0", "", "1", "9999999h", "1s1s"},
		"until": {"yesterday"}, "names": {"a\x00", "\xff"}, "must": {"", "\xff"},
	} {
		for _, text := range wrong {
			var f *Fault
			if _, err := set("must", "m", field, text); !errors.As(err, &f) || f.Field != field {
				t.Errorf("%s %q: %v", field, text, err)
			}
		}
	}
}
