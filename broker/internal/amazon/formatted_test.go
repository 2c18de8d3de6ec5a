package amazon

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
)

func bound(t *testing.T, f format.Format) format.Encoder {
	t.Helper()
	encoder, err := f.Bind(format.SQS)
	if err != nil {
		t.Fatal(err)
	}
	return encoder
}

func TestAttributesOfAFormatAreTenAtMost(t *testing.T) {
	t.Parallel()
	target := &Target{Name: "q.fifo", FIFO: true}
	binary, structured := bound(t, format.CloudEvents{}), bound(t, format.CloudEvents{Structured: true})
	m := numbered(1, 1)[0] // specversion, id, source, type, partitionkey
	m.ContentType = "application/json"
	for i := range 4 {
		m.Headers = append(m.Headers, outbox.Header{Name: fmt.Sprint("h", i), Value: "v"})
	}
	e, err := PayloadAuto.encode(m, target, binary)
	if err != nil || len(e.Attributes) != 10 || *e.Group != "k-0" || *e.ID != m.ID.String() {
		t.Fatalf("%+v, %v", e, err)
	}
	size := len(e.Body)
	for _, a := range e.Attributes {
		size += len(a.Name) + len("String") + len(a.Value)
	}
	if e.Size != size {
		t.Errorf("size %d, want %d", e.Size, size)
	}
	m.Headers = append(m.Headers, outbox.Header{Name: "h4", Value: "v"})
	_, err = PayloadAuto.encode(m, target, binary)
	if !outbox.IsPermanent(err) || !strings.Contains(err.Error(), "11 attributes") || !strings.Contains(err.Error(), "structured") {
		t.Errorf("eleven attributes: %v", err)
	}
	if e, err = PayloadAuto.encode(m, target, structured); err != nil || len(e.Attributes) != 6 {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestHeadersThatCanBeNoAttributeAreRefusedWithAFormat(t *testing.T) {
	t.Parallel()
	binary := bound(t, format.CloudEvents{})
	for _, h := range []outbox.Header{{Name: "a b", Value: "v"},
		{Name: "empty"}, {Name: "control", Value: "\x01"}, {Name: "Outbox-Id", Value: "v"}} {
		m := numbered(1, 1)[0]
		m.Headers = []outbox.Header{h}
		if _, err := PayloadAuto.encode(m, &Target{Name: "q"}, binary); !outbox.IsPermanent(err) || !strings.Contains(err.Error(), h.Name) {
			t.Errorf("header %q: %v", h.Name, err)
		}
	}
}

func TestWhatAFormatMakesOfAPayloadIsTextToo(t *testing.T) {
	t.Parallel()
	binary := bound(t, format.CloudEvents{})
	for _, test := range []struct {
		payload    []byte
		body, form string
	}{{[]byte("text"), "text", ""}, {[]byte{0}, "AA==", "base64"}, {[]byte{}, " ", "empty"}, {nil, "null", "null"}} {
		m := numbered(1, 1)[0]
		m.Payload = test.payload
		e, err := PayloadAuto.encode(m, &Target{Name: "q"}, binary)
		form := ""
		for _, a := range e.Attributes {
			if a.Name == attributePayload {
				form = a.Value
			}
		}
		if err != nil || e.Body != test.body || form != test.form {
			t.Errorf("payload %q: body %q, form %q, %v", test.payload, e.Body, form, err)
		}
	}
	m := numbered(1, 1)[0]
	m.Payload = []byte{0}
	if _, err := PayloadText.encode(m, &Target{Name: "q"}, binary); !outbox.IsPermanent(err) {
		t.Errorf("bytes as text: %v", err)
	}
}
