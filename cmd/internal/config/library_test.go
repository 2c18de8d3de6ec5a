package config_test

import (
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
)

func TestTopicsSelectByPatternsAndExclusions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		patterns string
		wanted   string
		unwanted string
	}{
		{"", "a a.b", ""},
		{"a", "a", "b aa a.b"},
		{"*", "a a.b", ""},
		{"orders.*", "orders. orders.a orders.a.b", "orders order.a xorders.a"},
		{"orders.* !orders.internal", "orders.a orders.internal.x", "orders.internal users.a"},
		{"!orders.internal orders.*", "orders.a", "orders.internal"},
		{"!internal.*", "orders.a", "internal.a"},
		{"*.created", "a.created a.b.created .created", "created a.created.x"},
		{"a*b*c", "abc axbxc abbcc abcbc", "ab ac acb xabc abcx"},
		{"a*a", "aa aaa", "a"},
		{"**", "a ab", ""},
		{"a b.*", "a b.c", "b c"},
	} {
		selection := config.Destination{Topics: strings.Fields(test.patterns)}.Selection()
		for _, topic := range strings.Fields(test.wanted) {
			if !selection.Wants(&outbox.Message{Topic: topic}) {
				t.Errorf("%q does not select %s", test.patterns, topic)
			}
		}
		for _, topic := range strings.Fields(test.unwanted) {
			if selection.Wants(&outbox.Message{Topic: topic}) {
				t.Errorf("%q selects %s", test.patterns, topic)
			}
		}
	}
}
