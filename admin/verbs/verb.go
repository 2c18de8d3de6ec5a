package verbs

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/internal/printed"
)

// Role is what a person may do. An operator may all that a viewer may.
type Role string

const (
	Viewer   Role = "viewer"
	Operator Role = "operator"
)

// Verb is an entry of the table. Its parameters travel as a pointer to a struct, which New makes.
type Verb struct {
	// Name is the command's: words with one space between them.
	Name string
	// Role is who may run it. A viewer's verb changes nothing. An operator's is recorded in the audit, unless it is a
	// dry run.
	Role Role
	// Short is a line, Long the whole help, Example lines of the command line.
	Short, Long, Example string
	// Wide says that the verb acts on other destinations, too, than the one that is named.
	Wide bool
	// Timeout bounds each statement in the database; the verb as a whole gets a quarter more. Default 30 seconds.
	Timeout time.Duration
	// Cost is what an operator has to know before it is run, as a sentence.
	Cost string
	// Lists says that its dry run finds what it acts on, which a person sees before saying yes.
	Lists bool
	// Params are the fields of what New returns.
	Params []Param

	params, result reflect.Type
	run            func(ctx context.Context, db admin.DB, action admin.Action, params any) (any, error)
	show, preview  func(params, result any) sheet.Parts
	asks           func(params any) bool
}

// Intent is a part of the parameters of every verb that changes something.
type Intent struct {
	DryRun bool   `json:"dry_run,omitempty" help:"show what would be done, and do nothing"`
	Reason string `json:"reason,omitempty" help:"why, for the audit"`
}

func (i *Intent) intent() *Intent { return i }

// IntentOf returns the intent among the parameters of an operator's verb, to be read and changed.
func IntentOf(params any) *Intent { return params.(interface{ intent() *Intent }).intent() }

// reads completes a verb that changes nothing. P is the struct of its parameters, R the result, which show describes.
func reads[P, R any](v Verb, run func(ctx context.Context, db admin.DB, p P) (R, error), show func(p P, r R) sheet.Parts) Verb {
	v.Role = Viewer
	v.show = func(params, result any) sheet.Parts { return show(*params.(*P), result.(R)) }
	return complete(v, func(ctx context.Context, db admin.DB, _ admin.Action, p P) (R, error) { return run(ctx, db, p) })
}

// changes completes a verb that changes something. P has to contain an Intent.
func changes[P, R any](v Verb, run func(ctx context.Context, db admin.DB, action admin.Action, p P) (R, error), texts texts[P, R]) Verb {
	v.Role = Operator
	v.show = func(_, result any) (parts sheet.Parts) {
		for line := range strings.SplitSeq(texts.done(result.(R)), "\n") {
			parts = append(parts, sheet.Line(line))
		}
		return parts
	}
	if texts.preview != nil {
		v.preview = func(_, found any) sheet.Parts { return texts.preview(found.(R)) }
	}
	v.asks = func(params any) bool { return texts.asks == nil || texts.asks(*params.(*P)) }
	return complete(v, run)
}

// texts describe what a verb does that changes something.
type texts[P, R any] struct {
	// done is what was done, in lines.
	done func(r R) string
	// preview describes what a dry run found. nil: done says it as well.
	preview func(found R) sheet.Parts
	// asks reports whether a person has to say yes. nil: always.
	asks func(p P) bool
}

func complete[P, R any](v Verb, run func(ctx context.Context, db admin.DB, action admin.Action, p P) (R, error)) Verb {
	v.params, v.result = reflect.TypeFor[P](), reflect.TypeFor[R]()
	v.Params = paramsOf(v.params)
	if v.Timeout == 0 {
		v.Timeout = 30 * time.Second
	}
	v.run = func(ctx context.Context, db admin.DB, action admin.Action, params any) (any, error) {
		r, err := run(ctx, db, action, *params.(*P))
		if err != nil {
			return nil, err
		}
		if list := reflect.ValueOf(&r).Elem(); list.Kind() == reflect.Slice && list.IsNil() {
			list.Set(reflect.MakeSlice(list.Type(), 0, 0)) // [] for none, not null
		}
		return r, nil
	}
	return v
}

// Method is that of the request: GET with a query for a viewer's verb, POST with a body of JSON for an operator's.
func (v Verb) Method() string {
	if v.Role == Viewer {
		return http.MethodGet
	}
	return http.MethodPost
}

// Path is that of the request.
func (v Verb) Path() string { return "/api/v1/" + strings.ReplaceAll(v.Name, " ", "/") }

// New returns a pointer to parameters with their defaults.
func (v Verb) New() any {
	params := reflect.New(v.params)
	for _, p := range v.Params {
		if p.Default != "" {
			if err := p.set(params.Elem(), p.Default); err != nil {
				panic(fmt.Sprintf("verbs: %s: the default: %v", v.Name, err)) // every test of the table makes them all
			}
		}
	}
	return params.Interface()
}

// Result is the type of what Run returns.
func (v Verb) Result() reflect.Type { return v.result }

// Show describes what Run has returned.
func (v Verb) Show(params, result any) sheet.Parts { return v.describe(v.show, params, result) }

// Preview describes what a dry run has returned.
func (v Verb) Preview(params, found any) sheet.Parts {
	if v.preview == nil {
		return v.Show(params, found)
	}
	parts := v.describe(v.preview, params, found)
	if n, counted := Count(found); v.Cost != "" && (n > 0 || !counted) {
		parts = append(parts, sheet.Hint(v.Cost))
	}
	return parts
}

func (v Verb) describe(show func(params, result any) sheet.Parts, params, result any) sheet.Parts {
	selects := slices.ContainsFunc(v.Given(params), func(p Param) bool { return !p.Required && p.Name != "limit" })
	parts := show(params, result)
	for i, part := range parts {
		// The reason why there is none of all is none for a selection.
		if t, ok := part.(sheet.Table); ok && selects {
			t.Empty = ""
			parts[i] = t
		}
	}
	return parts
}

// Label is the verb as a button has it.
func (v Verb) Label() string {
	word := v.Name[strings.LastIndexByte(v.Name, ' ')+1:]
	if word == "ack" {
		word = "acknowledge"
	}
	return strings.ToUpper(word[:1]) + word[1:]
}

// Question is what a person is asked before the verb is run, if [Verb.Asks] says so. found is the result of a dry run,
// or nil.
func (v Verb) Question(params, found any) string {
	text := v.Label()
	if n, counted := Count(found); counted {
		text += " " + printed.Many(n, "message", "messages")
	} else if p, ok := v.find(func(p Param) bool { return p.Name == "destination" || p.Arg != "" }); ok {
		text += " " + strings.Join(p.Texts(params), " ")
	}
	return text + "?"
}

// Asks reports whether a person has to say yes before the verb is run.
func (v Verb) Asks(params any) bool { return v.asks(params) }

// Count is the number of messages that a dry run has found, if it counts them.
func Count(found any) (n int64, counted bool) {
	switch f := found.(type) {
	case jobs.Job:
		return f.Total, true
	case jobs.RowOutcome:
		return f.Rows, true
	}
	return 0, false
}

func (v Verb) find(is func(Param) bool) (Param, bool) {
	for _, p := range v.Params {
		if is(p) {
			return p, true
		}
	}
	return Param{}, false
}

// Check reports what is wrong with the parameters, as a [Fault]. It asks no database.
func (v Verb) Check(params any) error {
	value := reflect.ValueOf(params).Elem()
	for _, p := range v.Params {
		if err := p.check(value.FieldByIndex(p.index)); err != nil {
			return err
		}
	}
	if c, ok := params.(interface{ check() error }); ok {
		return c.check()
	}
	return nil
}

// Run checks the parameters and runs the verb as one transaction, or a few. actor is who acts, for the audit. Its
// errors are those of Check and of package admin.
func (v Verb) Run(ctx context.Context, db admin.DB, actor string, params any) (any, error) {
	if err := v.Check(params); err != nil {
		return nil, err
	}
	// A server that doesn't answer at all doesn't end a statement either.
	ctx, cancel := context.WithTimeout(ctx, v.Timeout+v.Timeout/4)
	defer cancel()
	action := admin.Action{Actor: actor}
	if v.Role == Operator {
		intent := IntentOf(params)
		action.DryRun, action.Reason = intent.DryRun, intent.Reason
	}
	return v.run(ctx, bounded{db, v.Timeout}, action, params)
}

// Bounded is a database whose transactions bound their statements, as those of verbs are.
func Bounded(db admin.DB, timeout time.Duration) admin.DB { return bounded{db, timeout} }

// bounded is a database whose transactions bound their statements.
type bounded struct {
	admin.DB
	timeout time.Duration
}

func (b bounded) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	tx, err := b.DB.BeginTx(ctx, options)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", b.timeout.Milliseconds())); err != nil {
		_ = tx.Rollback(context.WithoutCancel(ctx)) // the error before it counts
		return nil, err
	}
	return tx, nil
}

// route is the title of a column that has the way of messages.
const route = "Topic → destination"

// listPage describes a page of things, row by row. If it is full, the parameter leads to the next page by the last
// thing.
func listPage[T any](title, empty string, all []T, row func(T) sheet.Row, limit int, param string, last func(T) string) sheet.Parts {
	parts := sheet.Parts{sheet.List(title, empty, all, row)}
	if len(all) > 0 && len(all) == limit {
		parts = append(parts, sheet.More{Param: param, Value: last(all[len(all)-1])})
	}
	return parts
}

// lines are one for each of some things.
func lines[T any](all []T, line func(T) string) string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = line(one)
	}
	return strings.Join(texts, "\n")
}
