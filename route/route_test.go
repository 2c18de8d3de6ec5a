package route_test

import (
	"errors"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/route"
)

func order() *outbox.Message {
	return &outbox.Message{Topic: "orders.eu", Key: "k", EventType: "OrderCreated", AggregateType: "Order", AggregateID: "7",
		ContentType: "application/json", Headers: []outbox.Header{{Name: "region", Value: "eu-west"}, {Name: "internal-user", Value: "x"}}}
}

func TestGlobs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, text string
		want          bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"", "", true}, {"", "a", false},
		{"*", "", true}, {"*", "a.b", true}, {"a*", "a", true}, {"a*", "ba", false},
		{"*a", "ba", true}, {"*a", "ab", false}, {"a*c", "abc", true}, {"a*a", "a", false},
		{"a*b*c", "a-b-b-c", true}, {"a*b*c", "ac", false}, {"**", "x", true}, {"*b*", "abc", true},
		{"ab*ba", "aba", false}, {"*.*.*", "a.b", false},
	} {
		if got := route.Glob(test.pattern, test.text); got != test.want {
			t.Errorf("Glob(%q, %q) = %v", test.pattern, test.text, got)
		}
	}
}

// For texts without slashes and patterns without its other operators, path.Match means the same.
func FuzzGlob(f *testing.F) {
	f.Add("a*b*", "axbx")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if strings.ContainsAny(pattern, `?[]\/`) || strings.Contains(text, "/") {
			return
		}
		want, err := path.Match(pattern, text)
		if err != nil {
			return
		}
		if got := route.Glob(pattern, text); got != want {
			t.Errorf("Glob(%q, %q) = %v, want %v", pattern, text, got, want)
		}
	})
}

func TestFilters(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		filter route.Filter
		want   bool
	}{
		{"nothing is asked for", route.Filter{}, true},
		{"a topic", route.Filter{Topics: []string{"x", "orders.*"}}, true},
		{"another topic", route.Filter{Topics: []string{"x"}}, false},
		{"an excluded topic", route.Filter{Topics: []string{"orders.*", "!*.eu"}}, false},
		{"another is excluded", route.Filter{Topics: []string{"!x"}}, true},
		{"one of two conditions", route.Filter{Any: []route.Match{{EventType: "X"}, {AggregateType: "Order"}}}, true},
		{"none of them", route.Filter{Any: []route.Match{{EventType: "X"}, {AggregateType: "order"}}}, false},
		{"topic and condition", route.Filter{Topics: []string{"x"}, Any: []route.Match{{EventType: "Order*"}}}, false},
		{"all parts of a condition",
			route.Filter{Any: []route.Match{{Topic: "orders.eu",
				EventType: "Order*", AggregateType: "*r", ContentType: "*/json", Header: "region", HeaderValue: "eu-*"}}}, true},
		{"all parts but one",
			route.Filter{Any: []route.Match{{Topic: "orders.eu",
				EventType: "Order*", AggregateType: "*r", ContentType: "*/xml", Header: "region", HeaderValue: "eu-*"}}}, false},
		{"a header that is there", route.Filter{Any: []route.Match{{Header: "region"}}}, true},
		{"a header that isn't", route.Filter{Any: []route.Match{{Header: "Region", HeaderValue: "*"}}}, false},
		{"a header with another value", route.Filter{Any: []route.Match{{Header: "region", HeaderValue: "us*"}}}, false},
	} {
		if got := test.filter.Wants(order()); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
		if err := test.filter.Check(); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	err := (&route.Filter{Any: []route.Match{{}, {HeaderValue: "x"}}}).Check()
	if err == nil || !strings.Contains(err.Error(), "condition 1") || !strings.Contains(err.Error(), "condition 2") {
		t.Errorf("faults are %v", err)
	}
}

func TestTheFirstRuleThatMatchesChoosesTheTopic(t *testing.T) {
	t.Parallel()
	table := route.Table{
		Rules: []route.Rule{
			{Match: route.Match{EventType: "Debug*"}, Drop: true},
			{Match: route.Match{AggregateType: "Order", Header: "region", HeaderValue: "eu*"}, To: "shop.{header.region}.{event_type}"},
			{Match: route.Match{AggregateType: "Order"}, To: "shop"},
		},
		Default: "all.{aggregate_type}.{aggregate_id}.{key}.{topic}.{content_type}",
	}
	rules := parse(t, table)
	for _, test := range []struct {
		name   string
		change func(*outbox.Message)
		want   string // "": dropped
	}{
		{"the second", func(*outbox.Message) {}, "shop.eu-west.OrderCreated"},
		{"the third", func(m *outbox.Message) { m.Headers = nil }, "shop"},
		{"the first, though the second would do", func(m *outbox.Message) { m.EventType = "DebugOrder" }, ""},
		{"none", func(m *outbox.Message) { m.AggregateType = "Cart" }, "all.Cart.7.k.orders.eu.application/json"},
	} {
		m := order()
		test.change(m)
		dropped := rules.Drops(m)
		err := rules.Apply(m)
		if dropped != (test.want == "") || dropped != errors.Is(err, route.ErrDropped) {
			t.Errorf("%s: dropped %v, %v", test.name, dropped, err)
		}
		if !dropped && m.Topic != test.want {
			t.Errorf("%s: the topic is %q, want %q", test.name, m.Topic, test.want)
		}
	}
	if rules.Empty() || !parse(t, route.Table{}).Empty() || !parse(t, route.Table{Default: "{topic}"}).Empty() {
		t.Error("which rules do nothing is not known")
	}
}

func TestAMessageWithoutATopicToGoToIsRefused(t *testing.T) {
	t.Parallel()
	m := order()
	m.AggregateType = ""
	if err := parse(t, route.Table{Default: "{aggregate_type}"}).Apply(m); !outbox.IsPermanent(err) {
		t.Errorf("an empty topic: %v", err)
	}
	if m.Topic != "orders.eu" || len(m.Headers) != 2 {
		t.Errorf("the message has changed: %+v", m)
	}
}

func TestHeadersAreRenamedDroppedAndSet(t *testing.T) {
	t.Parallel()
	rules := parse(t, route.Table{
		Rules: []route.Rule{{Match: route.Match{Header: "region"}, To: "{header.region}"}},
		Headers: []route.HeaderRule{
			{Name: "region", Rename: "x-region"},
			{Name: "absent", Rename: "x-absent"},
			{Name: "internal-*", Drop: true},
			{Name: "source", Value: "shop"},
			{Name: "where", Value: "{header.x-region}/{topic}"},
			{Name: "empty", Value: "{header.absent}"},
			{Name: "x-region", Rename: "x-region"},
		}})
	m := order()
	if err := rules.Apply(m); err != nil {
		t.Fatal(err)
	}
	want := []outbox.Header{{Name: "x-region", Value: "eu-west"},
		{Name: "source", Value: "shop"}, {Name: "where", Value: "eu-west/orders.eu"}}
	if !slices.Equal(m.Headers, want) || m.Topic != "eu-west" {
		t.Errorf("topic %q, headers %q, want %q", m.Topic, m.Headers, want)
	}
	replacing := parse(t, route.Table{Headers: []route.HeaderRule{{Name: "region", Rename: "internal-user"}}})
	m = order()
	if err := replacing.Apply(m); err != nil || !slices.Equal(m.Headers, []outbox.Header{{Name: "internal-user", Value: "eu-west"}}) {
		t.Errorf("headers %q, %v", m.Headers, err)
	}
}

func TestFaultsOfATableAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := route.Table{
		Rules: []route.Rule{
			{Match: route.Match{Topic: "a"}},
			{Match: route.Match{Topic: "a"}, To: "x", Drop: true},
			{Match: route.Match{HeaderValue: "a"}, To: "{x}"},
			{To: "all"},
			{Match: route.Match{Topic: "b"}, To: "}"},
		},
		Default: "{header.}",
		Headers: []route.HeaderRule{{}, {Name: "a"}, {Name: "a", Drop: true, Value: "b"},
			{Name: "a*", Rename: "b"}, {Name: "a", Value: "{"}, {Name: "a", Value: "b\n"}},
	}.Parse()
	if err == nil {
		t.Fatal("nothing is wrong")
	}
	for _, part := range []string{"rule 1:", "rule 2:", "rule 3: a header's value",
		`rule 3: template "{x}"`, "rule 4: it matches everything", "rule 5:", "default:",
		"header rule 1:", "header rule 2:", "header rule 3:", "header rule 4:", "header rule 5:", "header rule 6:"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("nothing about %s in:\n%v", part, err)
		}
	}
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	m := order()
	m.ID = outbox.ID{0: 1}
	for text, want := range map[string]string{
		"":                       "",
		"x":                      "x",
		"{topic}":                "orders.eu",
		"a{key}b{header.region}": "akbeu-west",
		"{header.absent}{id}":    "01000000-0000-0000-0000-000000000000",
	} {
		template, err := route.ParseTemplate(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := template.Expand(m); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	var zero route.Template
	if zero.Expand(m) != "" {
		t.Error("the zero template is not empty")
	}
	for _, wrong := range []string{"{", "}", "{topic", "a}b", "{topic}}", "{{topic}}", "{price}", "{header.}", "{}"} {
		if _, err := route.ParseTemplate(wrong); err == nil {
			t.Errorf("%q is a template", wrong)
		}
	}
}

func parse(t *testing.T, table route.Table) *route.Rules {
	t.Helper()
	rules, err := table.Parse()
	if err != nil {
		t.Fatal(err)
	}
	return rules
}
