package session

import "testing"

func TestPasswordsAreRemovedFromWhatIsPrinted(t *testing.T) {
	t.Parallel()
	s := &Session{}
	s.secrets.add("postgres://given:as@it/is")
	for text, want := range map[string]string{
		"no password at host:5432":                    "no password at host:5432",
		"parse postgres://u:s3cret@h/d failed":        "parse postgres://u:xxxxx@h/d failed",
		"nats://u:s3cret@a:4222,nats://v:s3cret@b":    "nats://u:xxxxx@a:4222,nats://v:xxxxx@b",
		"host=h password=s3cret user=u":               "host=h password=xxxxx user=u",
		"host=h password='s3 cret' user=u":            "host=h password=xxxxx user=u",
		`{"error":"PASSWORD = s3cret"}`:               `{"error":"PASSWORD = xxxxx"}`,
		"from postgres://given:as@it/is":              "from xxxxx",
		`{"time":"10:00:00","error":"a@b","c":"d@e"}`: `{"time":"10:00:00","error":"a@b","c":"d@e"}`,
	} {
		if got := s.Redact(text); got != want {
			t.Errorf("Redact(%q) = %q, want %q", text, got, want)
		}
	}
}
