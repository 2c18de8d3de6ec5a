package http

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/webhook"
)

func TestThePageHasTheKindOfEveryStatus(t *testing.T) {
	t.Parallel()
	answers := brokertest.Answers{}
	for status := 200; status < 600; status++ {
		b, err := New("http://example.com/", Config{})
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint(status)
		switch {
		case status/100 == 2:
			name = "2xx"
		case status/100 == 3:
			name = "3xx"
		case http.StatusText(status) == "" && (status < 520 || status > 530):
			name = fmt.Sprintf("any other %dxx", status/100)
		}
		kind := b.judge(answer{host: "h", status: status}, "m")
		if before, listed := answers[name]; listed && brokertest.Kind(before) != brokertest.Kind(kind) {
			t.Errorf("%d is %s, and not as the others of %s", status, brokertest.Kind(kind), name)
		}
		answers[name] = kind
	}
	answers["400 or 403 that says that a signature or its time is wrong"] = (&Broker{cfg: Config{Keys: make([]webhook.Key, 1)}}).judge(
		answer{status: http.StatusBadRequest, body: []byte("timestamp too old")}, "m")
	answers.Page(t, "../../docs/brokers", "http.md", "statuses")
}
