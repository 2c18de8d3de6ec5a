package sns_test

import (
	"context"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/amazon/amazontest"
)

// fake imitates SNS as its documentation describes it: limits, FIFO topics, partial failures. The suites
// need thousands of messages, with which moto takes minutes.
type fake struct {
	*httptest.Server
	t testing.TB

	// refuse, if set before use, may refuse an entry by a code; and all of a request by the code "request".
	refuse func(e *entry) (code string, senderFault bool)

	mu     sync.Mutex
	topics map[string]*topic // by ARN
	calls  int               // of PublishBatch
}

type topic struct {
	limit    int
	accepted []outbox.Message
	seen     map[string]bool // deduplication ids
}

type entry struct {
	id, message, group, dedup string
	attributes                map[string]types.MessageAttributeValue
	size                      int
}

func newFake(t testing.TB) *fake {
	t.Helper()
	f := &fake{t: t, topics: map[string]*topic{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

// topic creates a FIFO topic of the test's own and returns its name without .fifo.
func (f *fake) topic(limit int) string {
	name := "t-" + outbox.NewID().String()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topics[prefix+name+".fifo"] = &topic{limit: limit, seen: map[string]bool{}}
	return name
}

func (f *fake) read(names ...string) (all []outbox.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		all = append(all, f.topics[prefix+name+".fifo"].accepted...)
	}
	return all
}

func (f *fake) requests() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	action, form := r.Form.Get("Action"), r.Form
	found := f.topics[form.Get("TopicArn")]
	switch {
	case action == "ListTopics":
		fmt.Fprint(w, "<ListTopicsResponse><ListTopicsResult><Topics/></ListTopicsResult></ListTopicsResponse>")
	case action == "CreateTopic":
		arn := prefix + form.Get("Name")
		f.topics[arn] = &topic{limit: 256 << 10, seen: map[string]bool{}}
		fmt.Fprintf(w, "<CreateTopicResponse><CreateTopicResult><TopicArn>%s</TopicArn></CreateTopicResult></CreateTopicResponse>", arn)
	case found == nil:
		fault(w, "NotFound", "Topic does not exist", http.StatusNotFound)
	case action == "GetTopicAttributes":
		fmt.Fprintf(w,
			"<GetTopicAttributesResponse><GetTopicAttributesResult><Attributes><entry><key>MaximumMessageSize</key>"+
				"<value>%d</value></entry></Attributes></GetTopicAttributesResult></GetTopicAttributesResponse>", found.limit)
	case action == "PublishBatch":
		f.publish(w, found, form)
	default:
		fault(w, "InvalidAction", action, http.StatusBadRequest)
	}
}

func (f *fake) publish(w http.ResponseWriter, to *topic, form url.Values) {
	f.calls++
	entries := parse(form)
	size := 0
	for i := range entries {
		size += entries[i].size
	}
	switch {
	case len(entries) == 0 || len(entries) > 10:
		fault(w, "TooManyEntriesInBatchRequest", "The batch request contains more entries than permissible.", http.StatusBadRequest)
		return
	case size > to.limit:
		fault(w, "BatchRequestTooLong", "The length of all the batch messages put together is more than the limit.", http.StatusBadRequest)
		return
	}
	var answer strings.Builder
	for i := range entries {
		e := &entries[i]
		code, senderFault := e.wrong(), true
		if code == "" && f.refuse != nil {
			code, senderFault = f.refuse(e)
		}
		if code == "request" {
			fault(w, "InvalidParameter", "refused as a whole", http.StatusBadRequest)
			return
		}
		if code != "" {
			fmt.Fprintf(&answer, "<member><Id>%s</Id><Code>%s</Code><Message>refused</Message><SenderFault>%t</SenderFault></member>",
				e.id, code, senderFault)
		}
		e.size = len(code) // refused if not 0
	}
	failed := answer.String()
	answer.Reset()
	for i := range entries {
		e := &entries[i]
		if e.size > 0 {
			continue
		}
		if !to.seen[e.dedup] {
			to.seen[e.dedup] = true
			m, err := amazontest.Message("", &types.Message{Body: &e.message, MessageAttributes: e.attributes})
			if err != nil {
				f.t.Error(err)
			}
			to.accepted = append(to.accepted, m)
		}
		fmt.Fprintf(&answer, "<member><Id>%s</Id><MessageId>m</MessageId></member>", e.id)
	}
	fmt.Fprintf(w,
		"<PublishBatchResponse><PublishBatchResult><Failed>%s</Failed><Successful>%s</Successful>"+
			"</PublishBatchResult></PublishBatchResponse>", failed, answer.String())
}

func parse(form url.Values) (entries []entry) {
	for i := 1; ; i++ {
		at := fmt.Sprintf("PublishBatchRequestEntries.member.%d.", i)
		e := entry{
			id: form.Get(at + "Id"), message: form.Get(at + "Message"), group: form.Get(at + "MessageGroupId"),
			dedup: form.Get(at + "MessageDeduplicationId"), attributes: map[string]types.MessageAttributeValue{},
		}
		if e.id == "" {
			return entries
		}
		e.size = len(e.message)
		for n := 1; ; n++ {
			name := form.Get(fmt.Sprintf("%sMessageAttributes.entry.%d.Name", at, n))
			if name == "" {
				break
			}
			kind := form.Get(fmt.Sprintf("%sMessageAttributes.entry.%d.Value.DataType", at, n))
			value := form.Get(fmt.Sprintf("%sMessageAttributes.entry.%d.Value.StringValue", at, n))
			e.size += len(name) + len(kind) + len(value)
			e.attributes[name] = types.MessageAttributeValue{DataType: aws.String(kind), StringValue: aws.String(value)}
		}
		entries = append(entries, e)
	}
}

// wrong returns the code by which SNS refuses e, "" if it doesn't.
func (e *entry) wrong() string {
	if e.message == "" || !legal(e.message) || e.group == "" || len(e.group) > 128 || e.dedup == "" || len(e.attributes) > 10 {
		return "InvalidParameter"
	}
	if strings.ContainsFunc(e.group, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return "InvalidParameter"
	}
	for name, value := range e.attributes {
		bad := strings.ContainsFunc(name, func(c rune) bool {
			return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-_.", c)
		})
		if bad || len(name) > 256 || *value.StringValue == "" || !legal(*value.StringValue) {
			return "InvalidParameterValue"
		}
	}
	return ""
}

// legal reports whether s has no character that the documentation excludes.
func legal(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool {
		return c < ' ' && !slices.Contains([]rune{'\t', '\n', '\r'}, c) || c == 0xfffe || c == 0xffff
	})
}

func fault(w http.ResponseWriter, code, text string, status int) {
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	type fault struct {
		Type, Code, Message string
	}
	_ = xml.NewEncoder(w).Encode(struct {
		XMLName xml.Name `xml:"ErrorResponse"`
		Error   fault
	}{Error: fault{"Sender", code, text}})
}

func (f *fake) readAll(topics [2]string) func(context.Context) ([]outbox.Message, error) {
	return func(context.Context) ([]outbox.Message, error) { return f.read(topics[:]...), nil }
}
