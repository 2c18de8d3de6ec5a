package nats

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/pgoutbox/outbox"
)

// Error codes of JetStream that are classified one by one; see classify.
const (
	codeAccountResources  = 10002 // the account's share of storage is used up
	codeMessageTooLarge   = 10054 // stream's max_msg_size
	codeStoreFailed       = 10077 // with the reason as text
	codeStreamNotFound    = 10059
	codeWrongStream       = 10060 // another stream than the expected one takes the subject
	codeHeaderTooLarge    = 10097 // 64 KiB
	codeSealed            = 10109
	codeDuplicateInFlight = 10158 // an earlier copy is being replicated
)

// errNoResponders is the server's answer that nothing listens on the subject, until explain has found the reason.
var errNoResponders = errors.New("nats: no responders")

type pubAck struct {
	Error *struct {
		Code        int    `json:"code"`
		ErrCode     int    `json:"err_code"`
		Description string `json:"description"`
	} `json:"error"`
	Stream string `json:"stream"`
	Seq    uint64 `json:"seq"`
}

// parseAck returns the stream that accepted a message, or why none did. The stream is valid as long as msg.
func parseAck(msg *nats.Msg) ([]byte, error) {
	if stream, ok := plainAck(msg.Data); ok {
		return stream, nil
	}
	if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
		return nil, errNoResponders
	}
	var ack pubAck
	if err := json.Unmarshal(msg.Data, &ack); err != nil || ack.Error == nil && (ack.Stream == "" || ack.Seq == 0) {
		return nil, errors.New("nats: something that is not a stream answered; see who else subscribes to the subject and replies")
	}
	if ack.Error != nil {
		return nil, classify(ack.Error.Code, ack.Error.ErrCode, ack.Error.Description, ack.Stream)
	}
	return []byte(ack.Stream), nil
}

// plainAck reads an acknowledgement as servers write it: {"stream":"ORDERS", "seq":17}, possibly followed by
// "duplicate". It returns false for anything else, including errors.
func plainAck(data []byte) (stream []byte, ok bool) {
	rest, ok := bytes.CutPrefix(data, []byte(`{"stream":"`))
	if !ok {
		return nil, false
	}
	end := bytes.IndexByte(rest, '"')
	if end <= 0 || bytes.IndexByte(rest[:end], '\\') >= 0 {
		return nil, false
	}
	stream = rest[:end]
	rest, ok = bytes.CutPrefix(rest[end:], []byte(`",`))
	if !ok {
		return nil, false
	}
	rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " "), []byte(`"seq":`))
	if !ok || len(rest) == 0 || rest[0] < '1' || rest[0] > '9' {
		return nil, false
	}
	switch string(bytes.TrimLeft(rest, "0123456789")) {
	case `}`, `,"duplicate": true}`:
		return stream, true
	}
	return nil, false
}

// classify turns a stream's refusal into an error of the right kind. docs/brokers/nats.md has the table with reasons.
func classify(code, errCode int, description, stream string) error {
	err := fmt.Errorf("nats: stream %q: %s (error %d)", stream, description, errCode)
	switch {
	case errCode == codeMessageTooLarge, errCode == codeHeaderTooLarge,
		errCode == codeStoreFailed && description == "message too large":
		return outbox.Permanent(err)
	case errCode == codeStoreFailed && description == "maximum messages per subject exceeded":
		// One subject is full, not the stream: other messages continue.
		return err
	case errCode == codeWrongStream, errCode == codeSealed, errCode == codeStreamNotFound:
		return outbox.TopicUnavailable(err)
	case code >= 500, code == 429, errCode == codeAccountResources, errCode == codeDuplicateInFlight:
		return outbox.Unavailable(err)
	}
	return err
}
