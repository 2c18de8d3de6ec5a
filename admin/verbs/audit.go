package verbs

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/pgoutbox/outbox/admin/sheet"

	"github.com/pgoutbox/outbox/admin"
)

// Audit are the parameters of "audit".
type Audit struct {
	Destination string    `json:"destination,omitempty" help:"of this destination"`
	Actor       string    `json:"by,omitempty" help:"by this person"`
	Verb        string    `json:"verb,omitempty" help:"this verb, such as pause or requeue"`
	Since       time.Time `json:"since,omitzero" help:"done at this time or later"`
	Limit       int       `json:"limit,omitempty" default:"100" min:"1" max:"1000" help:"how many to list, 1 to 1000"`
	Before      int64     `json:"before,omitempty" min:"0" help:"go on before the entry with this id"`
}

func audit() Verb {
	return reads(Verb{
		Name:  "audit",
		Short: "List what operators did, when and why, newest first",
		Example: `  outbox audit --destination billing
  outbox audit --by anna@example --since 24h -o json`,
	}, func(ctx context.Context, db admin.DB, p Audit) ([]admin.AuditEntry, error) {
		f := admin.AuditFilter{Actor: p.Actor, Verb: p.Verb, Destination: p.Destination, Since: p.Since, Before: p.Before,
			Limit: p.Limit}
		return admin.Audit(ctx, db, f)
	}, func(p Audit, entries []admin.AuditEntry) sheet.Parts {
		return listPage("What people did", "nobody has changed anything", entries, func(e admin.AuditEntry) sheet.Row {
			return sheet.Of("ID", sheet.ID(e.ID), "When", sheet.Clock(e.At), "By", e.Actor, "Verb", e.Verb,
				"Destination", sheet.Destination(e.Destination), "Reason", sheet.Note(e.Reason), "Details", sheet.Code(compact(e.Detail)))
		}, p.Limit, "before", func(e admin.AuditEntry) string { return strconv.FormatInt(e.ID, 10) })
	})
}

// compact is an object of JSON without quotation marks and its outer braces.
func compact(text json.RawMessage) string {
	return strings.TrimSuffix(strings.TrimPrefix(strings.ReplaceAll(string(text), `"`, ""), "{"), "}")
}
