package main

import (
	"strings"
	"testing"
)

func TestFailedTestsAreRunAgainAsTheyWere(t *testing.T) {
	t.Parallel()
	events := `not JSON
{"Action":"fail","Package":"a/b","Test":"TestTwo/case"}
{"Action":"fail","Package":"a/b","Test":"TestTwo"}
{"Action":"pass","Package":"a/b","Test":"TestGood"}
{"Action":"fail","Package":"a/b","Test":"TestOne"}
{"Action":"fail","Package":"a/b"}
{"Action":"pass","Package":"a/good"}
{"Action":"fail","Package":"a/broken"}
`
	var out strings.Builder
	if err := tell(&out, strings.NewReader(events), []string{"HOME=/", "OUTBOX_TEST_SERVERS=all"}, []string{"-race"}); err != nil {
		t.Fatal(err)
	}
	want := `
Again, with its output:
  OUTBOX_TEST_SERVERS=all go test -v -count 1 -race -run '^(TestOne|TestTwo)$' a/b
  OUTBOX_TEST_SERVERS=all go test -v -count 1 -race a/broken
`
	if out.String() != want {
		t.Errorf("%s, want %s", out.String(), want)
	}
	out.Reset()
	if err := tell(&out, strings.NewReader(`{"Action":"pass","Package":"a"}`+"\n"), nil, nil); err != nil || out.Len() > 0 {
		t.Errorf("after a green run: %q, %v", out.String(), err)
	}
}
