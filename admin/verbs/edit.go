package verbs

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/internal/shell"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/find"
	"github.com/pgoutbox/outbox/admin/jobs"
)

// DeadEdit are the parameters of "dead edit".
type DeadEdit struct {
	Message      string   `json:"message" arg:"ID" required:"true" help:"the message id, or the position"`
	Set          []string `json:"set,omitempty" arg:"FIELD=VALUE" help:"topic=, event_type=, content_type= or header.NAME= with the new value; header.NAME removes one"`
	Destination  string   `json:"destination,omitempty" help:"of this destination"`
	Merge        string   `json:"merge,omitempty" help:"a merge patch for a payload of JSON: null removes a member"`
	Payload      string   `json:"payload,omitempty" help:"the whole payload as text; @FILE on a command line, @- for its standard input"`
	PayloadBytes string   `json:"payload_bytes,omitempty" help:"the whole payload in base64"`
	EmptyPayload bool     `json:"empty_payload,omitempty" help:"a payload without a byte"`
	Restore      bool     `json:"restore,omitempty" help:"make it what it was before it was edited first"`
	Intent
}

func (p *DeadEdit) check() error {
	if _, err := (Filter{}).selection([]string{p.Message}); err != nil {
		return fault("message", "is %q: want a message id such as 0190a4f8-3c5e-7cc3-98c4-dc0c0c07398f, or a position "+
			"such as 1234", p.Message)
	}
	e, err := p.edit()
	if err == nil {
		if wrong := e.Validate(); wrong != nil {
			err = fault("", "%v", wrong)
		}
	}
	return err
}

func (p *DeadEdit) edit() (e jobs.Edit, err error) {
	e.Restore = p.Restore
	for _, pair := range p.Set {
		name, text, given := strings.Cut(pair, "=")
		value := &text
		header, isHeader := strings.CutPrefix(name, "header.")
		switch {
		case isHeader && (header != "" || !given): // a header without a name can only be removed
			if !given {
				value = nil
			}
			if e.Headers == nil {
				e.Headers = map[string]*string{}
			}
			e.Headers[header] = value
		case given && name == "topic":
			e.Topic = value
		case given && name == "event_type":
			e.EventType = value
		case given && name == "content_type":
			e.ContentType = value
		default:
			return e, fault("set", "has %q: want topic=, event_type=, content_type=, header.NAME=, or header.NAME to remove one", pair)
		}
	}
	switch {
	case p.Payload != "" && p.PayloadBytes != "":
		return e, fault("payload_bytes", "and payload exclude each other")
	case p.EmptyPayload && p.Payload+p.PayloadBytes != "":
		return e, fault("empty_payload", "excludes another payload")
	case p.EmptyPayload:
		e.Payload = []byte{}
	case strings.HasPrefix(p.Payload, "@"):
		return e, fault("payload", "begins with @, which a command line takes for a file: give such a payload as payload_bytes")
	case p.Payload != "":
		e.Payload = []byte(p.Payload)
	case p.PayloadBytes != "":
		if e.Payload, err = base64.StdEncoding.DecodeString(p.PayloadBytes); err != nil {
			return e, fault("payload_bytes", "is not base64")
		}
	}
	if p.Merge != "" {
		e.Merge = []byte(p.Merge)
	}
	return e, nil
}

func deadEdit() Verb {
	return changes(Verb{
		Name:  "dead edit",
		Lists: true,
		Short: "Change a dead letter, and keep its original",
		Long: `It stays a dead letter: outbox dead requeue sends it. What it was before its first edit is kept until it is
delivered; outbox dead show has the difference, and --restore takes all edits back. The message id, the key and the
aggregate stay: consumers know the message by the first, and the order hangs on the others.

A value that contains *** is refused, because that stands for what is masked. --merge changes a part of a payload that
is masked, without showing it.`,
		Example: `  outbox dead edit 1234 topic=orders header.retry=1 --reason "the topic was renamed"
  outbox dead edit 1234 --merge '{"customer": {"country": "DE"}}' --dry-run
  outbox dead edit 1234 --payload @order.json
  outbox dead edit 1234 --restore`,
	}, func(ctx context.Context, db admin.DB, action admin.Action, p DeadEdit) ([]find.DeadLetter, error) {
		s, _ := (Filter{Destination: p.Destination}).selection([]string{p.Message}) // checked
		e, _ := p.edit()
		letter, err := jobs.EditDead(ctx, db, s, e, action)
		if err != nil {
			return nil, err
		}
		return []find.DeadLetter{letter}, nil
	}, texts[DeadEdit, []find.DeadLetter]{
		done: func(letters []find.DeadLetter) string {
			return lines(letters, func(l find.DeadLetter) string {
				return fmt.Sprintf("edited %s; send it by: outbox dead requeue %s --destination %s", l.MessageID,
					l.MessageID, shell.Word(l.Destination))
			})
		},
		preview: func(letters []find.DeadLetter) (parts sheet.Parts) {
			for _, l := range letters {
				parts = append(append(parts, sheet.Facts(sheet.Of("Message", l.MessageID, "Destination", l.Destination))), edits(l)...)
			}
			return parts
		},
	})
}
