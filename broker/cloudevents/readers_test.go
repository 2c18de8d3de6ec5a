package cloudevents_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	webhooks "github.com/pgoutbox/outbox/broker/http"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/webhook"
)

// reading is what a library for another language is given, and what it should see.
type reading struct {
	name     string
	Protocol string            `json:"protocol"`
	Headers  map[string]string `json:"headers"`
	Body     []byte            `json:"body"`
	Key      string            `json:"key"`
	Secret   string            `json:"secret"`
	want     seen
}

// seen is what it sees.
type seen struct {
	ID, Source, Type, Subject, PartitionKey, DataContentType, Data, Fault string
}

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func TestTheOfficialLibrariesForNodeAndPythonReadWhatIsSent(t *testing.T) {
	t.Parallel()
	commands := servers.ReaderCommands(t, "testdata/read")
	var all []reading
	for _, p := range []struct{ name, contentType, payload, data string }{
		{"JSON", "application/json", `{"id":1,"text":"é\n"}`, `{"id":1,"text":"é\n"}`},
		{"an array", "application/json", `[1,"x",null]`, `[1,"x",null]`},
		{"text", "text/plain", "grüße €", "grüße €"},
	} {
		for _, structured := range []bool{false, true} {
			m := order()
			m.AggregateID, m.Headers = "7-x", nil // the libraries leave percent-encoding to their callers
			m.ContentType, m.Payload = p.contentType, []byte(p.payload)
			ce := format.CloudEvents{Structured: structured, Source: "/shop"}
			want := seen{ID: m.ID.String(), Source: "/shop",
				Type: m.EventType, Subject: m.AggregateID, PartitionKey: m.Key, DataContentType: m.ContentType, Data: p.data}
			name := map[bool]string{false: "binary ", true: "structured "}[structured] + p.name

			sent := overHTTP(t, m, webhooks.Config{Format: ce})
			sent.name, sent.Protocol, sent.want = "HTTP "+name, "http", want
			all = append(all, sent)

			encoder, err := ce.Bind(format.Kafka)
			if err != nil {
				t.Fatal(err)
			}
			var r format.Record
			if err := encoder.Encode(&r, m); err != nil {
				t.Fatal(err)
			}
			record := reading{name: "Kafka " + name, Protocol: "kafka",
				Headers: map[string]string{"content-type": r.ContentType}, Body: r.Value, Key: string(r.Key), want: want}
			for _, h := range r.Headers {
				record.Headers[h.Name] = string(h.Value)
			}
			all = append(all, record)
		}
	}
	keys, err := webhook.ParseKeys(secret)
	if err != nil {
		t.Fatal(err)
	}
	m := order()
	m.Payload = []byte(`{"id":1,"text":"é"}`)
	signed := overHTTP(t, m, webhooks.Config{Keys: keys})
	signed.name, signed.Protocol, signed.Secret, signed.want = "signature", "webhook", secret, seen{Data: string(m.Payload)}
	forged := signed
	forged.name, forged.Body, forged.want = "forged signature",
		[]byte(`{"id":2}`), seen{Fault: "WebhookVerificationError: No matching signature found"}
	all = append(all, signed, forged)

	for language, command := range commands {
		got := ask(t, command, all)
		for i, c := range all {
			if got[i] != c.want {
				t.Errorf("%s, %s: it sees\n%+v, want\n%+v", language, c.name, got[i], c.want)
			}
		}
	}
}

// overHTTP returns the request that the adapter makes of m.
func overHTTP(t *testing.T, m *outbox.Message, cfg webhooks.Config) (got reading) {
	t.Helper()
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got.Headers = map[string]string{}
		for name := range r.Header {
			got.Headers[strings.ToLower(name)] = r.Header.Get(name)
		}
		var err error
		if got.Body, err = io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
	}))
	defer receiver.Close()
	cfg.AllowNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	b, err := webhooks.New(receiver.URL, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if errs := b.Publish(t.Context(), []*outbox.Message{m}); errs != nil {
		t.Fatal(errs)
	}
	return got
}

// ask has a library read all.
func ask(t *testing.T, command *exec.Cmd, all []reading) (got []seen) {
	t.Helper()
	in, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	var complaints bytes.Buffer
	command.Stdin, command.Stderr = bytes.NewReader(in), &complaints
	out, err := command.Output()
	if err == nil {
		err = json.Unmarshal(out, &got)
	}
	if err != nil || len(got) != len(all) {
		t.Fatalf("%v: %d answers: %v\n%s", command.Args, len(got), err, &complaints)
	}
	return got
}
