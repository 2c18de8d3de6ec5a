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

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

func TestASecretNeverPrints(t *testing.T) {
	t.Parallel()
	var value config.Config
	filled := map[reflect.Type]bool{}
	fill(t, reflect.ValueOf(&value).Elem(), filled)
	for _, want := range []any{brokers.Kafka{}, brokers.OAuth{}, brokers.Redis{}, brokers.RabbitMQ{}, config.NotifyWebhook{},
		brokers.SchemaRegistry{}} {
		if !filled[reflect.TypeOf(want)] {
			t.Fatalf("the walk doesn't come to %T", want)
		}
	}
	var values []any
	collect(reflect.ValueOf(&value), &values)
	values = append(values, map[string]scalar.Secret{"a": scalar.NewSecret("hidden")})
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
	if scalar.NewSecret("").String() != "" || (scalar.Secret{}).String() != "" {
		t.Error("an empty secret looks as if it were set")
	}
}

// fill gives every pointer a value, every list an element, and every secret a text.
func fill(t *testing.T, v reflect.Value, filled map[reflect.Type]bool) {
	filled[v.Type()] = true
	switch p := v.Addr().Interface().(type) {
	case *scalar.Secret:
		*p = scalar.NewSecret("hidden")
		return
	case *scalar.URL:
		*p = scalar.NewURL("nats://u:hidden@n")
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
