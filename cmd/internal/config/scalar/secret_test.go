package scalar_test

import (
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

func TestAURLPrintsWithoutItsPassword(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://db/app":                              "postgres://db/app",
		"postgres://u@db/app":                            "postgres://u@db/app",
		"postgres://u:p@a:1,b:2/app":                     "postgres://u:***@a:1,b:2/app",
		"postgres://u:p@ss/w:o?rd@db/app":                "postgres://u:***@db/app",
		"postgres://u:p,x://q@db":                        "postgres://u:***@db",
		"postgres://db/app?password=a,b&sslmode=disable": "postgres://db/app?password=***&sslmode=disable",
		"postgres://db/app?sslmode=x&SSLPassword=p":      "postgres://db/app?sslmode=x&SSLPassword=***",
		"host=db password=p user=u":                      "host=db password=*** user=u",
		"host=db password = 'a b\\' c' user=u":           "host=db password = *** user=u",
		"password=a\\ b sslpassword=c":                   "password=*** sslpassword=***",
		"host=db password='open end":                     "host=db password=***",
		"u:p@db":                                         "***",
		"nats://token@n:4222":                            "nats://***@n:4222",
		"nats://u:p@a:1, nats://token@b:2,tls://c:3":     "nats://u:***@a:1, nats://***@b:2,tls://c:3",
		"nats://a:1,b:2":                                 "nats://a:1,b:2",
		"https://u:p@hooks.test/services/T0/hidden":      "https://u:***@hooks.test/***",
		"https://hooks.test?t=hidden":                    "https://hooks.test/***",
		"http://localhost:8080/":                         "http://localhost:8080/",
		"":                                               "",
		"no url":                                         "***",
		"://x":                                           "***",
	} {
		if got := scalar.NewURL(url).String(); got != want {
			t.Errorf("%s prints as %s, want %s", url, got, want)
		}
	}
}

func TestASizePrintsInTheLargestUnitThatLeavesItWhole(t *testing.T) {
	t.Parallel()
	for size, want := range map[scalar.Size]string{
		0: "0", 1: "1", 1000: "1000", 1024: "1KiB", 1536: "1536", 16 << 20: "16MiB", 3 << 30: "3GiB", 1 << 40: "1024GiB",
	} {
		if got := size.String(); got != want {
			t.Errorf("%d prints as %s, want %s", int64(size), got, want)
		}
	}
}
