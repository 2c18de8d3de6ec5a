package sqs

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/lanes"
)

// decode is the inverse of the encoding of broker/internal/amazon. queue is the queue's name without .fifo. With an
// error it returns what could be read: even an unreadable message has its position in its key.
func decode(queue string, got *types.Message) (m outbox.Message, err error) {
	m = outbox.Message{Topic: queue, Payload: []byte(aws.ToString(got.Body))}
	all := map[string]string{}
	for name, value := range got.MessageAttributes {
		if name != "outbox-headers" {
			all[name] = aws.ToString(value.StringValue)
		} else if err := json.Unmarshal([]byte(aws.ToString(value.StringValue)), &all); err != nil {
			return m, fmt.Errorf("attribute %s: %w", name, err)
		}
	}
	foreign := true
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var fault error
		value := all[name]
		switch name {
		case "outbox-payload":
			fault = payload(&m, value)
		case "outbox-key":
			m.Key = value
		default:
			foreign = foreign && name != "outbox-id"
			fault = lanes.ReadField(&m, name, value)
		}
		if fault != nil && err == nil {
			err = fmt.Errorf("attribute %s: %w", name, fault)
		}
	}
	if foreign {
		m.Key = groupOf(got)
		err = cmp.Or(err, lanes.ErrForeign)
	}
	return m, err
}

// groupOf is the key of a message that has no key attribute, or "" if its group is unique to it.
func groupOf(got *types.Message) string {
	group := got.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)]
	if group == got.Attributes[string(types.MessageSystemAttributeNameMessageDeduplicationId)] {
		return ""
	}
	return group
}

func payload(m *outbox.Message, form string) (err error) {
	switch form {
	case "base64":
		m.Payload, err = base64.StdEncoding.DecodeString(string(m.Payload))
	case "empty":
		m.Payload = []byte{}
	case "null":
		m.Payload = nil
	}
	return err
}
