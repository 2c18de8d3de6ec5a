// Package registry puts payloads into the wire format of schema registries: a zero byte and the id of the payload's
// schema come before it, so that consumers with a registry's deserializers can read it. Payloads are already Avro,
// Protobuf or JSON, as the service has written them; nothing is converted.
package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/format"
	"github.com/pgoutbox/outbox/route"
	"github.com/twmb/franz-go/pkg/sr"
)

// Framer puts payloads into the wire format. Safe for concurrent use.
//
// The id of a message's schema is, in this order: the one in its header; that of the schema configured for its subject;
// that of the latest version in its subject. Only the first is certain to be the schema that the payload was written
// with. With the last, payloads are labelled wrongly if a service is deployed before its schema is registered, or after
// the next one is.
type Framer struct {
	cfg     Config
	client  *sr.Client
	subject route.Template
	schemas map[string]sr.Schema
	now     func() time.Time

	asking chan struct{} // capacity 1: held while the registry is queried

	mu      sync.RWMutex
	answers map[string]answer // by subject
}

// answer is the registry's answer about a subject.
type answer struct {
	id       uint32
	protobuf bool
	err      error
	until    time.Time // zero: forever
}

// missingFor is the pause before a missing subject is looked up again.
const missingFor = time.Second

// New returns a Framer. It checks cfg, reports all its faults together, and doesn't connect.
func New(cfg Config) (*Framer, error) {
	cfg, subject, schemas, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	options := []sr.ClientOpt{sr.URLs(cfg.URLs...), sr.UserAgent("pgoutbox"), sr.HTTPClient(&http.Client{Timeout: cfg.Timeout})}
	if cfg.TLS != nil {
		options = append(options, sr.DialTLSConfig(cfg.TLS))
	}
	if cfg.Username != "" {
		options = append(options, sr.BasicAuth(cfg.Username, cfg.Password))
	}
	if cfg.Token != "" {
		options = append(options, sr.BearerToken(cfg.Token))
	}
	client, err := sr.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	return &Framer{cfg: cfg, client: client, subject: subject, schemas: schemas, now: time.Now,
		asking: make(chan struct{}, 1), answers: make(map[string]answer)}, nil
}

// Frame replaces m's payload by its framed form and removes the headers about the schema. A nil payload stays nil: a
// tombstone has no schema. Frame is a step for around.Steps: m is a copy of the caller's own.
//
// Permanent: a header that is not an id. Unavailable: no answer came, or the credentials were refused. Any other error
// concerns a subject, and can be cured by registering its schema.
func (f *Framer) Frame(ctx context.Context, m *outbox.Message) error {
	if m.Payload == nil {
		return nil
	}
	schema, err := f.schemaOf(ctx, m)
	if err != nil {
		return err
	}
	index, err := f.index(m, schema.protobuf)
	if err != nil {
		return err
	}
	framed := make([]byte, 0, len(m.Payload)+5+10*len(index))
	framed = format.AppendFrame(framed, schema.id, index)
	m.Payload = append(framed, m.Payload...)
	m.Headers = slices.DeleteFunc(m.Headers, func(h outbox.Header) bool {
		return h.Name == f.cfg.IDHeader || h.Name == f.cfg.IndexHeader
	})
	return nil
}

func (f *Framer) schemaOf(ctx context.Context, m *outbox.Message) (answer, error) {
	if text, found := m.Header(f.cfg.IDHeader); found {
		id, err := strconv.ParseUint(text, 10, 31)
		if err != nil || id == 0 {
			return answer{}, outbox.Permanent(fmt.Errorf("registry: header %s is %.40q, and no id of a schema", f.cfg.IDHeader, text))
		}
		_, hasIndex := m.Header(f.cfg.IndexHeader)
		return answer{id: uint32(id), protobuf: hasIndex || f.cfg.Protobuf}, nil
	}
	subject := f.subject.Expand(m)
	if a, ok := f.remembered(subject); ok {
		return a, a.err
	}
	select {
	case f.asking <- struct{}{}:
		defer func() { <-f.asking }()
	case <-ctx.Done():
		return answer{}, outbox.Unavailable(fmt.Errorf("registry: not asked: %w", ctx.Err()))
	}
	if a, ok := f.remembered(subject); ok { // another call has looked it up in the meantime
		return a, a.err
	}
	a := f.ask(ctx, subject)
	if !outbox.IsUnavailable(a.err) {
		f.mu.Lock()
		f.answers[subject] = a
		f.mu.Unlock()
	}
	return a, a.err
}

func (f *Framer) remembered(subject string) (answer, bool) {
	f.mu.RLock()
	a, found := f.answers[subject]
	f.mu.RUnlock()
	return a, found && (a.until.IsZero() || f.now().Before(a.until))
}

// ask looks up a subject in the registry.
func (f *Framer) ask(ctx context.Context, subject string) answer {
	schema, configured := f.schemas[subject]
	var found sr.SubjectSchema
	var err error
	switch {
	case configured && f.cfg.Register:
		found.Type = schema.Type
		found.ID, err = f.client.RegisterSchema(ctx, subject, schema, -1, -1)
	case configured:
		found, err = f.client.LookupSchema(ctx, subject, schema)
	default:
		found, err = f.client.SchemaByVersion(ctx, subject, -1)
	}
	if err != nil {
		return answer{err: f.explain(subject, configured, err), until: f.now().Add(missingFor)}
	}
	a := answer{id: uint32(found.ID), protobuf: found.Type == sr.TypeProtobuf}
	if !configured {
		a.until = f.now().Add(f.cfg.Refresh)
	}
	return a
}

func (f *Framer) explain(subject string, configured bool, err error) error {
	var response *sr.ResponseError
	switch {
	case !errors.As(err, &response):
		return outbox.Unavailable(fmt.Errorf("registry: no server answers: %w", err))
	case response.StatusCode == http.StatusNotFound && configured:
		return fmt.Errorf("registry: subject %q does not have the configured schema; register it, or have the relay do so (%w)",
			subject, err)
	case response.StatusCode == http.StatusNotFound:
		return fmt.Errorf("registry: subject %q has no schema; register one, or name its id in the header %s (%w)",
			subject, f.cfg.IDHeader, err)
	case response.StatusCode == http.StatusConflict, response.StatusCode == http.StatusUnprocessableEntity:
		return fmt.Errorf("registry: subject %q does not take the configured schema: %w", subject, err)
	}
	return outbox.Unavailable(fmt.Errorf("registry: status %d: %w; are the address and the credentials right?", response.StatusCode, err))
}

// index is the position of the message's type in its Protobuf schema; nil for other schemas.
func (f *Framer) index(m *outbox.Message, protobuf bool) ([]int, error) {
	text, found := m.Header(f.cfg.IndexHeader)
	switch {
	case !protobuf:
		return nil, nil
	case !found:
		return []int{0}, nil
	}
	var index []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(part), 10, 31)
		if err != nil {
			return nil, outbox.Permanent(fmt.Errorf("registry: header %s is %.40q; it has to be the indexes of a "+
				"Protobuf message, such as 0 or 1,0", f.cfg.IndexHeader, text))
		}
		index = append(index, int(n))
	}
	return index, nil
}
