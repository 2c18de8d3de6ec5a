// Package amazontest has what the tests of SQS and SNS share: access to their server, and a reader of their wire
// format.
package amazontest

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/internal/sdkread"
)

// Anyone is the configuration of an arbitrary user: the server checks no identity.
func Anyone() *aws.Config {
	return &aws.Config{Region: "eu-central-1", Credentials: credentials.NewStaticCredentialsProvider("x", "x", "")}
}

// Client is a configuration for a test's own client of the server at url.
func Client(t testing.TB, url string) aws.Config {
	t.Helper()
	cfg := Anyone()
	cfg.BaseEndpoint = &url
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	cfg.HTTPClient = &http.Client{Transport: transport}
	return *cfg
}

// Message decodes the wire format, as a consumer would that follows its documentation. topic is the topic of messages
// that don't carry one.
func Message(topic string, got *types.Message) (m outbox.Message, err error) {
	m.Topic = topic
	m.Payload = []byte(aws.ToString(got.Body))
	all := map[string]string{}
	for name, value := range got.MessageAttributes {
		if name != "outbox-headers" {
			all[name] = aws.ToString(value.StringValue)
		} else if err := json.Unmarshal([]byte(aws.ToString(value.StringValue)), &all); err != nil {
			return m, err
		}
	}
	for name, value := range all {
		switch {
		case name == "outbox-key":
			m.Key = value
		case name != "outbox-payload":
			err = brokertest.Attribute(&m, name, value)
		case value == "base64":
			m.Payload, err = base64.StdEncoding.DecodeString(string(m.Payload))
		case value == "empty":
			m.Payload = []byte{}
		case value == "null":
			m.Payload = nil
		}
		if err != nil {
			return m, err
		}
	}
	brokertest.SortHeaders(&m)
	return m, nil
}

// Tens calls send for ten messages of batch at a time, in as many goroutines, and returns when all is sent.
func Tens(goroutines int, batch []*outbox.Message, send func(ten []*outbox.Message)) {
	next := make(chan []*outbox.Message)
	var workers sync.WaitGroup
	for range goroutines {
		workers.Go(func() {
			for ten := range next {
				send(ten)
			}
		})
	}
	for ten := range slices.Chunk(batch, 10) {
		next <- ten
	}
	close(next)
	workers.Wait()
}

// Records returns received messages in the form of CloudEvents' readers.
func Records(t *testing.T, got []outbox.Message) (all []sdkread.Record) {
	t.Helper()
	for _, m := range got {
		headers := map[string]string{}
		for _, h := range m.Headers {
			text, err := url.PathUnescape(h.Value)
			if err != nil {
				t.Fatal(err)
			}
			headers[h.Name] = text
		}
		all = append(all, sdkread.Record{ContentType: m.ContentType, Headers: headers, Value: m.Payload})
	}
	return all
}
