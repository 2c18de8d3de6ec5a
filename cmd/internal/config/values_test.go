package config_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/goccy/go-yaml"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/cmd/internal/config"
)

func TestASecretNeverPrints(t *testing.T) {
	t.Parallel()
	var value config.Config
	filled := map[reflect.Type]bool{}
	fill(t, reflect.ValueOf(&value).Elem(), filled)
	for _, want := range []any{config.Kafka{}, config.OAuth{}, config.Redis{}, config.RabbitMQ{}, config.NotifyWebhook{},
		config.SchemaRegistry{}} {
		if !filled[reflect.TypeOf(want)] {
			t.Fatalf("the walk doesn't come to %T", want)
		}
	}
	var values []any
	collect(reflect.ValueOf(&value), &values)
	values = append(values, map[string]config.Secret{"a": config.NewSecret("hidden")})
	var out bytes.Buffer
	for verb := ' '; verb <= 'z'; verb++ {
		for _, flags := range []string{"", "+", "#"} {
			if verb > ' ' && !unicode.IsLetter(verb) && flags != "" {
				continue
			}
			for _, v := range values {
				fmt.Fprintf(&out, "%"+flags+string(verb)+"\n", v)
			}
		}
	}
	fmt.Fprintln(&out, values...)
	for _, h := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		for _, v := range values {
			slog.New(h).Info("m", "value", v)
		}
	}
	encoded, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(encoded)
	document, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(document)
	for line := range strings.Lines(out.String()) {
		for _, form := range []string{"hidden", "hid", "68696464656e", "68696464656E", "68 69 64"} {
			if strings.Contains(line, form) {
				t.Fatalf("a secret is printed: %.2000s", line)
			}
		}
	}
	if !strings.Contains(out.String(), `"url":"nats://u:***@n"`) || !strings.Contains(string(document), "nats://u:***@n") {
		t.Errorf("the mask is missing:\n%s", document)
	}
	if config.NewSecret("").String() != "" || (config.Secret{}).String() != "" {
		t.Error("an empty secret looks as if it were set")
	}
}

// fill gives every pointer a value, every list an element, and every secret a text.
func fill(t *testing.T, v reflect.Value, filled map[reflect.Type]bool) {
	filled[v.Type()] = true
	switch p := v.Addr().Interface().(type) {
	case *config.Secret:
		*p = config.NewSecret("hidden")
		return
	case *config.URL:
		*p = config.NewURL("nats://u:hidden@n")
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), filled)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, v.Index(0), filled)
	case reflect.Struct:
		for _, f := range v.Fields() {
			fill(t, f, filled)
		}
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64:
	default:
		t.Fatalf("the walk knows no %s", v.Type())
	}
}

// collect lists v and what is below it, by value and by pointer.
func collect(v reflect.Value, values *[]any) {
	*values = append(*values, v.Interface())
	switch v.Kind() {
	case reflect.Pointer:
		collect(v.Elem(), values)
	case reflect.Slice:
		collect(v.Index(0).Addr(), values)
	case reflect.Struct:
		if _, secret := v.Interface().(fmt.Formatter); secret {
			return
		}
		for _, f := range v.Fields() {
			if f.Kind() == reflect.Struct {
				f = f.Addr()
			}
			collect(f, values)
		}
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
		if got := config.NewURL(url).String(); got != want {
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
		"2048": 2048, "2048B": 2048, "\"2048 B\"": 2048, "2KiB": 2048, "2kB": 2000, "2KB": 2000, "3MB": 3e6,
		"3MiB": 3 << 20, "1GB": 1e9, "1GiB": 1 << 30,
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
