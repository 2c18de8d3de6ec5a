package schema

import (
	"regexp"
	"strings"
	"testing"
)

func TestSlotNamesAreValidAndDiffer(t *testing.T) {
	t.Parallel()
	slots := regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
	long := strings.Repeat("long", 30)
	seen := map[string]string{}
	for _, at := range [][2]string{
		{"app", "kafka"}, {"app", "orders-eu"}, {"app", "orders_eu"}, {"app", "Orders_eu"}, {"app", "orders.eu"},
		{"app", "ordérs"}, {"app", "ordèrs"},
		{"a_b", "c"}, {"a", "b_c"}, {"App", "kafka"}, {"other", "kafka"},
		{"app", long}, {"app", long + "x"}, {long, "app"}, {"", ""}, {"", "_"},
		{"数据", "库"}, {"数", "据库"},
	} {
		name := SlotName(at[0], at[1])
		if !slots.MatchString(name) {
			t.Errorf("%q: %q is no name of a slot", at, name)
		}
		if other, twice := seen[name]; twice {
			t.Errorf("%q is the name for %q and %q", name, at, other)
		}
		seen[name] = at[0] + "/" + at[1]
	}
	if name := SlotName("app", "kafka"); name != "outbox_app_kafka" {
		t.Errorf("a plain one is %q", name)
	}
}
