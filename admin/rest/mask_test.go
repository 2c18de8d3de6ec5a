package rest

import "testing"

func TestWhatIsMaskedIsHiddenWhereverThePathLeads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ path, payload, want string }{
		{"$.card.number", `{"card":{"number":"4111","name":"a"},"n":12345678901234567890}`, `{"card":{"name":"a","number":"***"},"n":12345678901234567890}`},
		{"$.card", `{"card":{"number":"4111"}}`, `{"card":"***"}`},
		{"$.items[*].price", `{"items":[{"price":1},{"price":2,"id":3}]}`, `{"items":[{"price":"***"},{"id":3,"price":"***"}]}`},
		{"$.items.price", `{"items":[{"price":1}]}`, `{"items":[{"price":"***"}]}`},
		{"$.card", `[{"card":1}]`, `[{"card":"***"}]`},
		{"$.*", `{"a":1,"b":{"c":2}}`, `{"a":"***","b":"***"}`},
		{"$[*]", `[1,2]`, `["***","***"]`},
		{"$.other", `{"a":1}`, `{"a":1}`},
		{"$.a", `{"a":1,"a":2}`, `{"a":"***"}`},
		{"$.a", "\x00\x01avro", "***"},
		{"$.a", `{"a":1} {"a":2}`, "***"},
		{"$.a", ``, "***"},
	} {
		mask, err := Mask([]string{c.path})
		if err != nil {
			t.Fatal(err)
		}
		if got := string(mask([]byte(c.payload))); got != c.want {
			t.Errorf("%s of %s: %s, want %s", c.path, c.payload, got, c.want)
		}
	}
	for _, path := range []string{"", "$", "card", "$.", "$.a[0]", "$..a", "$.a[*", "$a"} {
		if _, err := Mask([]string{path}); err == nil {
			t.Errorf("%q is taken for a path", path)
		}
	}
}
