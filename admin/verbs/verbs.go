// Package verbs is the table of what an operator may ask and do: one entry per verb, with its name, its parameters, its
// result and its run. The command line, the REST API and its description are made from the table, so they can't
// disagree.
//
// To add a verb, write its parameters as a struct, its result as a struct of plain JSON, an entry, and a line in [All].
package verbs

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/admin"
)

// All returns the table.
func All() []Verb {
	return []Verb{
		Status(), check(), doctor(), canary(),
		deadList(), deadGroup(), deadShow(), deadEdit(), deadAck(), deadRequeue(), deadDiscard(), deadRestore(),
		tablesDead(), tablesRequeue(), tablesAck(),
		jobsList(), jobsShow(), jobsRun(), jobsStop(), jobsUndo(),
		messagesFind(), messagesShow(), replay(),
		destinationsList(), destinationsMove(), destinationsDrop(),
		inboxStatus(), inboxWindow(),
		holds(), relays(), retention(), audit(),
		pause(), resume(), throttle(), controls(), retry(),
		rebase(), handover(),
	}
}

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
	// Params are the fields of what New returns.
	Params []Param

	params, result reflect.Type
	run            func(ctx context.Context, db admin.DB, action admin.Action, params any) (any, error)
}

// Intent is a part of the parameters of every verb that changes something.
type Intent struct {
	DryRun bool   `json:"dry_run,omitempty" help:"show what would be done, and do nothing"`
	Reason string `json:"reason,omitempty" help:"why, for the audit"`
}

func (i *Intent) intent() *Intent { return i }

// IntentOf returns the intent among the parameters of an operator's verb, to be read and changed.
func IntentOf(params any) *Intent { return params.(interface{ intent() *Intent }).intent() }

// reads completes a verb that changes nothing. P is the struct of its parameters, R the result.
func reads[P, R any](v Verb, run func(ctx context.Context, db admin.DB, p P) (R, error)) Verb {
	v.Role = Viewer
	return complete(v, func(ctx context.Context, db admin.DB, _ admin.Action, p P) (R, error) { return run(ctx, db, p) })
}

// changes completes a verb that changes something. P has to contain an Intent.
func changes[P, R any](v Verb, run func(ctx context.Context, db admin.DB, action admin.Action, p P) (R, error)) Verb {
	v.Role = Operator
	return complete(v, run)
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
