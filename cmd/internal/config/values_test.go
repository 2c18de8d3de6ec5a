package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
)

func TestASecretNeverPrints(t *testing.T) {
	t.Parallel()
	kafka, nats := config.DefaultKafka(), config.DefaultNATS()
	kafka.SASL.Password, nats.Password, nats.Token, nats.URL = "hidden", "hidden", "hidden", "nats://hidden@n"
	tokens := config.DefaultOAuth()
	tokens.ClientSecret, kafka.SASL.OAuth = "hidden", &tokens
	secret := config.Secret("hidden")
	value := config.Config{
		Database:     config.Database{URL: "postgres://u:hidden@db/app"},
		Destinations: []config.Destination{{Broker: config.Broker{Kafka: &kafka, NATS: &nats}}},
	}
	values := []any{
		value, &value, secret, &secret, value.Database, value.Database.URL, kafka, &kafka, kafka.SASL, tokens, &tokens, nats, []*config.NATS{&nats},
		[]config.Secret{secret}, map[string]config.Secret{"a": secret},
	}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10s", "%.3s", "%t", "%08.3f"} {
		for _, v := range values {
			fmt.Fprintf(&out, verb+"\n", v)
		}
	}
	fmt.Fprintln(&out, values...)
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		for _, v := range values {
			slog.New(h).Info("m", "value", v)
		}
	}
	if err := json.NewEncoder(&out).Encode(values); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		for _, form := range []string{"hidden", "hid", "68696464656e", "68696464656E"} {
			if strings.Contains(line, form) {
				t.Errorf("a secret is printed: %s", line)
			}
		}
	}
	if !strings.Contains(out.String(), `"url":"postgres://u:***@db/app"`) {
		t.Errorf("the mask is missing:\n%s", &out)
	}
	if config.Secret("").String() != "" {
		t.Error("an empty secret looks as if it were set")
	}
}

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
		if got := config.URL(url).String(); got != want {
			t.Errorf("%s prints as %s, want %s", url, got, want)
		}
	}
}

func TestASizePrintsInTheLargestUnitThatLeavesItWhole(t *testing.T) {
	t.Parallel()
	for size, want := range map[config.Size]string{
		0: "0", 1: "1", 1000: "1000", 1024: "1KiB", 1536: "1536", 16 << 20: "16MiB", 3 << 30: "3GiB", 1 << 40: "1024GiB",
	} {
		if got := size.String(); got != want {
			t.Errorf("%d prints as %s, want %s", int64(size), got, want)
		}
	}
}

func TestSizesAreReadWithAnyUnit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]config.Size{
		"2048": 2048, "2048B": 2048, "\"2048 B\"": 2048, "2KiB": 2048, "2kB": 2000, "2KB": 2000, "3MB": 3e6, "3MiB": 3 << 20, "1GB": 1e9, "1GiB": 1 << 30,
	} {
		l := mustLoad(t, destination("broker: {stdout: }\ndelivery: {max_in_flight_bytes: "+text+"}"), config.Input{})
		if got := l.Config.Destinations[0].Delivery.MaxInFlightBytes; got != want {
			t.Errorf("%s is read as %d, want %d", text, int64(got), int64(want))
		}
	}
}

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
