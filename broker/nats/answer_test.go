package nats

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
)

func TestEveryRefusalHasItsKind(t *testing.T) {
	t.Parallel()
	const retried, refused, unavailable, topic = "retried", "refused", "unavailable", "topic unavailable"
	answers := brokertest.Answers{}
	for _, c := range []struct {
		answer string
		want   string
	}{
		{`{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"},"stream":"S","seq":0}`, refused},
		{`{"error":{"code":400,"err_code":10097,"description":"header size exceeds maximum allowed of 64k"},"stream":"S","seq":0}`, refused},
		{`{"error":{"code":503,"err_code":10077,"description":"message too large"},"stream":"S","seq":0}`, refused},
		{`{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}`, unavailable},
		{`{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"S","seq":0}`, unavailable},
		{`{"error":{"code":503,"err_code":10077,"description":"store is closed"},"stream":"S","seq":0}`, unavailable},
		{`{"error":{"code":503,"err_code":10077,"description":"maximum messages per subject exceeded"},"stream":"S","seq":0}`, retried},
		{`{"error":{"code":503,"err_code":10023,"description":"insufficient resources"},"stream":"S","seq":0}`, unavailable},
		{`{"error":{"code":400,"err_code":10002,"description":"resource limits exceeded for account"},"stream":"S","seq":0}`, unavailable},
		{`{"error":{"code":500,"err_code":10009,"description":"JetStream cluster can not handle request"},"stream":"S","seq":0}`, unavailable},
		{`{"error":{"code":429,"err_code":10167,"description":"too many requests"},"stream":"S","seq":0}`, unavailable},
		{`{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"},"stream":"S","seq":0}`, unavailable},
		{`{"error":{"code":400,"err_code":10060,"description":"expected stream does not match"},"stream":"S","seq":0}`, topic},
		{`{"error":{"code":400,"err_code":10109,"description":"invalid operation on sealed stream"},"stream":"S","seq":0}`, topic},
		{`{"error":{"code":404,"err_code":10059,"description":"stream not found"},"stream":"S","seq":0}`, topic},
		{`{"error":{"code":503,"err_code":10028,"description":"resources exceeded for account"},"stream":"S","seq":0}`, unavailable},
		{`{"error":{"code":503,"err_code":10047,"description":"insufficient storage resources available"},"stream":"S","seq":0}`, unavailable},
		{`{"error":{"code":503,"err_code":10076,"description":"jetstream not enabled"},"stream":"S","seq":0}`, unavailable},
		{`{"error":{"code":503,"err_code":10118,"description":"stream is offline"},"stream":"S","seq":0}`, unavailable},
		{`{"error":{"code":400,"err_code":19999,"description":"any other with a 4xx status"},"stream":"S","seq":0}`, retried},
		{`{"error":{"code":503,"err_code":19998,"description":"any other with a 5xx status"},"stream":"S","seq":0}`, unavailable},
		{`{"stream":"S","seq":0}`, retried},
		{`{"stream":"","seq":7}`, retried},
		{`{"seq":7}`, retried},
		{`{}`, retried},
		{`hello`, retried},
		{``, retried},
		{`{"stream":"S","seq":7`, retried},
	} {
		_, err := parseAck(&nats.Msg{Data: []byte(c.answer)})
		if got := brokertest.Kind(err); got != c.want {
			t.Errorf("%s is %s, want %s: %v", c.answer, got, c.want, err)
		}
		var ack pubAck
		if json.Unmarshal([]byte(c.answer), &ack) != nil || ack.Error == nil {
			continue
		}
		name := ack.Error.Description
		if ack.Error.ErrCode < 19_000 {
			name += fmt.Sprintf(" (%d)", ack.Error.ErrCode)
		}
		answers[name] = err
	}
	answers.Page(t, "../../docs/brokers", "nats.md", "codes")
}

func TestAcknowledgementsOfAllShapesAreRead(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		`{"stream":"ORDERS", "seq":17}`,
		`{"stream":"ORDERS","seq":17}`,
		`{"stream":"ORDERS", "seq":17,"duplicate": true}`,
		`{"stream":"ORDERS", "domain":"hub", "seq":17}`,
		`{"domain":"hub", "stream":"ORDERS", "seq":17}`,
		`{"type":"io.nats.ack","seq":17,"stream":"\u004fRDERS"}`,
	} {
		stream, err := parseAck(&nats.Msg{Data: []byte(answer)})
		if err != nil || string(stream) != "ORDERS" {
			t.Errorf("%s: stream %q, %v", answer, stream, err)
		}
	}
	if _, err := parseAck(&nats.Msg{Header: nats.Header{"Status": {"503"}}}); !errors.Is(err, errNoResponders) {
		t.Errorf("no responders: %v", err)
	}
}

// What the short way accepts, JSON must say too.
func FuzzPlainAck(f *testing.F) {
	f.Add([]byte(`{"stream":"ORDERS", "seq":17}`))
	f.Add([]byte(`{"stream":"ORDERS", "seq":17,"duplicate": true}`))
	f.Add([]byte(`{"error":{"code":400,"err_code":10060,"description":"x"},"stream":"S","seq":0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		stream, ok := plainAck(data)
		var ack pubAck
		if !ok || json.Unmarshal(data, &ack) != nil {
			return
		}
		if ack.Error != nil || ack.Stream != string(stream) && utf8.Valid(stream) {
			t.Errorf("%q: stream %q, JSON says %+v", data, stream, ack)
		}
	})
}

func TestReplySubjectsLeadBack(t *testing.T) {
	t.Parallel()
	l := &link{inbox: "_INBOX.x."}
	for _, want := range []struct {
		call  uint64
		index int32
	}{{1, 0}, {1<<64 - 1, 1<<31 - 1}} {
		call, index, ok := parseReply(l.reply(want.call, want.index)[len(l.inbox):])
		if !ok || call != want.call || index != want.index {
			t.Errorf("%d %d became %d %d", want.call, want.index, call, index)
		}
	}
	for _, tokens := range []string{"", ".", "1", "1.", ".1", "1.-1", "1.zzzzzzz", "1.2.3"} {
		if _, _, ok := parseReply(tokens); ok {
			t.Errorf("%q was understood", tokens)
		}
	}
}

func TestEscapedTextIsReadBackAsInAURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "plain text é": "plain text é", " a ": "%20a%20", "100%": "100%25", "a\r\nb\x00\x7f": "a%0D%0Ab%00%7F", " ": "%20",
	} {
		if got := escape(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
