package rest

import (
	"encoding/json"
	"testing"
)

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

func TestHeadersThatLookLikeACredentialAreHidden(t *testing.T) {
	t.Parallel()
	hides := MaskHeaders(append(CredentialHeaders(), "X-Customer-*"))
	for stored, want := range map[string]string{
		``:                   ``,
		`null`:               `null`,
		`{"b":"1", "a":"2"}`: `{"b":"1", "a":"2"}`, // as stored
		`{"tenant":"acme","Authorization":"Bearer abc"}`: `{"Authorization":"***","tenant":"acme"}`,
		`{"X-API-Key":"1","x-customer-mail":"a@b","api_key":2,"author":"c","key":"d","traceparent":"00-1-2-01"}`: `{"X-API-Key":"***",` +
			`"api_key":"***","author":"c","key":"d","traceparent":"00-1-2-01","x-customer-mail":"***"}`,
		`{"meta":{"access_token":"abc","n":12345678901234567890}}`: `{"meta":{"access_token":"***","n":12345678901234567890}}`,
		`{"Set-Cookie":"s","Cookie":["a"],"webhook-signature":"v1,x","x-session-id":{"a":1},"secret":"q","db-password":"w"}`: `{"Cookie":"***",` +
			`"Set-Cookie":"***","db-password":"***","secret":"***","webhook-signature":"***","x-session-id":"***"}`,
		`{"x":[{"authorization":"b","n":1},[{"token":"t"}],"token"]}`: `{"x":[{"authorization":"***","n":1},[{"token":"***"}],"token"]}`,
		`"{\"authorization\":\"x\"}"`:                                 `"***"`, // what can't be told apart
		`["authorization","x"]`:                                       `"***"`,
	} {
		if got := string(hideHeaders(json.RawMessage(stored), hides)); got != want {
			t.Errorf("%s: %s, want %s", stored, got, want)
		}
	}
	if none := MaskHeaders(nil); none("authorization") {
		t.Error("no pattern hides something")
	}
}
