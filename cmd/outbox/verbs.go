package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"reflect"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/connect"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
)

// view shows a verb of the table to a person. A verb without one prints JSON.
type view struct {
	aliases []string

	// formats are those that write knows, instead of the usual ones; it finds out by prepare which it is.
	formats []output.Format

	// command makes the command where it is more than the table says.
	command func(a *app, v verbs.Verb) *cobra.Command

	// complete completes the parameters by what only this process can read, before they are checked.
	complete func(a *app, params any) error

	// prepare refuses what can't be printed, and completes the parameters by what only this process can give.
	prepare func(a *app, params any, out output.Format) error

	// all, if not nil, runs the verb on all databases and prints what they answer, in place of all that follows.
	all func(ctx context.Context, a *app, params any, out output.Format) error

	// write prints the result.
	write func(a *app, params, result any) error

	// preview prints what a dry run found, and question asks whether to do it: not proceed if nothing is to be done.
	// Without a preview the question comes first, and found is nil.
	preview  func(a *app, params, found any) error
	question func(params, found any) (text string, proceed bool)

	// follow, if not nil, stays with what was begun, and returns what became of it.
	follow func(ctx context.Context, a *app, at seat, actor string, result any) (any, error)
}

// shows makes a view of a verb with parameters P and the result R.
func shows[P, R any](write func(a *app, p *P, r R) error, aliases ...string) view {
	return view{aliases: aliases, write: func(a *app, params, result any) error { return write(a, params.(*P), result.(R)) }}
}

// asks adds to a view what is shown and asked before something is changed.
func asks[P, R any](v view, preview func(a *app, p *P, found R) error, question func(p *P, found R) (string, bool)) view {
	if preview != nil {
		v.preview = func(a *app, params, found any) error { return preview(a, params.(*P), found.(R)) }
	}
	v.question = func(params, found any) (string, bool) {
		r, _ := found.(R)
		return question(params.(*P), r)
	}
	return v
}

// isVerb marks the commands that work through --server as well.
const isVerb = "verb"

// verb makes the command of a verb in the table.
func (a *app) verb(v verbs.Verb, show view) *cobra.Command {
	params := v.New()
	var out output.Format
	c := confirmation{}
	cmd := &cobra.Command{Use: lastWord(v.Name), Aliases: show.aliases, Short: v.Short, Long: v.Long, Example: v.Example,
		Annotations: map[string]string{isVerb: v.Name}}
	least, most := 0, 0
	for _, p := range v.Params {
		if p.Flag {
			a.addFlag(cmd, p, params)
		}
		switch {
		case p.Arg == "":
			if p.Required {
				cmd.Use += " --" + flagName(p.Name) + " " + placeholder(p)
			}
			continue
		case p.Repeats():
			most = 1 << 20
		default:
			most++
		}
		name := p.Arg
		if p.Repeats() {
			name += "..."
		}
		if p.Required && !p.Flag {
			least++
		} else if !p.Required {
			name = "[" + name + "]"
		}
		cmd.Use += " " + name
	}
	cmd.Args = cobra.RangeArgs(least, most)
	if most == 0 {
		cmd.Args = cobra.NoArgs
	}
	cmd.ValidArgsFunction = a.completesArguments(v)
	if v.Role == verbs.Operator {
		c.flags(cmd)
	}
	choices := []output.Format{output.AsTable, output.AsJSON, output.AsJSONL}
	if v.Result().Kind() != reflect.Slice {
		choices = choices[:2]
	}
	if show.write == nil {
		choices = choices[1:]
	}
	if show.formats != nil {
		choices = show.formats
	}
	output.FormatFlag(cmd, &out, choices...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := arguments(v, params, args)
		if err == nil && show.complete != nil {
			err = show.complete(a, params)
		}
		if err == nil {
			err = v.Check(params)
		}
		if err == nil {
			if show.all != nil {
				err = show.all(cmd.Context(), a, params, out)
			} else {
				err = a.run(cmd.Context(), v, show, params, c, out)
			}
		}
		return asUsage(v, err)
	}
	return cmd
}

// placeholder stands for a value in the usage.
func placeholder(p verbs.Param) string {
	if len(p.Enum) > 0 {
		return strings.Join(p.Enum, "|")
	}
	return strings.ToUpper(p.Name)
}

// asUsage names the flag that a fault is about.
func asUsage(v verbs.Verb, err error) error {
	var fault *verbs.Fault
	if !errors.As(err, &fault) {
		return err
	}
	if i := slices.IndexFunc(v.Params, func(p verbs.Param) bool { return p.Name == fault.Field }); i < 0 || !v.Params[i].Flag {
		return exit.Usagef("%w", err)
	}
	return exit.Usagef("--%s %s", flagName(fault.Field), fault.Text)
}

func lastWord(name string) string { return name[strings.LastIndexByte(name, ' ')+1:] }

func flagName(name string) string { return strings.ReplaceAll(name, "_", "-") }

// arguments gives the parameters that stand behind the command their values.
func arguments(v verbs.Verb, params any, args []string) error {
	for _, p := range v.Params {
		for p.Arg != "" && len(args) > 0 {
			if before := p.Texts(params); p.Flag && len(before) > 0 && before[0] != args[0] {
				return exit.Usagef("two destinations are named, %s and %s: give one", before[0], args[0])
			}
			if err := p.Set(params, args[0]); err != nil {
				return err
			}
			if args = args[1:]; !p.Repeats() {
				break
			}
		}
	}
	return nil
}

// addFlag makes a flag of a parameter.
func (a *app) addFlag(cmd *cobra.Command, p verbs.Param, params any) {
	value := &paramFlag{p, params}
	f := cmd.Flags().VarPF(value, flagName(p.Name), "", p.Help)
	if p.Type.Kind() == reflect.Bool {
		f.NoOptDefVal = "true"
	}
	_ = cmd.RegisterFlagCompletionFunc(f.Name, a.completes(p))
}

// paramFlag is a parameter as a flag.
type paramFlag struct {
	param  verbs.Param
	params any
}

func (f *paramFlag) String() string { return strings.Join(f.param.Texts(f.params), ",") }
func (f *paramFlag) Set(text string) error {
	err := f.param.Set(f.params, text)
	var fault *verbs.Fault
	if errors.As(err, &fault) {
		err = errors.New(fault.Text) // the library names the flag
	}
	return err
}

func (f *paramFlag) Type() string { return strings.ToLower(f.param.Type.Name()) }

// run runs a verb, and prints what comes of it. What an operator changes is shown and confirmed before.
func (a *app) run(ctx context.Context, v verbs.Verb, show view, params any, c confirmation, out output.Format) error {
	if show.prepare != nil {
		if err := show.prepare(a, params, out); err != nil {
			return err
		}
	}
	if c.actor != "" && a.server() != "" {
		return exit.Usagef("--actor is given, and the audit of a server has your login")
	}
	at, err := a.seat(ctx)
	if err != nil {
		return err
	}
	defer at.close()
	run := func() (any, error) { return at.run(ctx, v, a.actor(c), params) }
	if v.Role == verbs.Operator {
		if proceed, err := a.before(v, show, params, c, out, run); !proceed || err != nil {
			return err
		}
	}
	result, err := run()
	if err == nil && show.follow != nil {
		result, err = show.follow(ctx, a, at, a.actor(c), result)
	}
	if err != nil {
		return err
	}
	return a.print(show, out, params, result)
}

// seat is where verbs are run.
type seat interface {
	run(ctx context.Context, v verbs.Verb, actor string, params any) (any, error)
	close()
}

// seat connects to the place that the flags and the environment name.
func (a *app) seat(ctx context.Context) (seat, error) {
	if server := a.server(); server != "" {
		return a.remote(server)
	}
	conn, err := a.operate(ctx)
	if err != nil {
		return nil, err
	}
	return direct{conn}, nil
}

// direct is a seat at the database itself.
type direct struct{ conn *pgx.Conn }

func (d direct) run(ctx context.Context, v verbs.Verb, actor string, params any) (any, error) {
	return v.Run(ctx, d.conn, actor, params)
}

func (d direct) close() { connect.Close(d.conn) }

// before shows what would be changed, and asks. It tells whether to go on.
func (a *app) before(v verbs.Verb, show view, params any, c confirmation, out output.Format, run func() (any, error)) (proceed bool, err error) {
	intent := verbs.IntentOf(params)
	var found any
	if dry := intent.DryRun; dry || show.preview != nil {
		intent.DryRun = true
		if found, err = run(); err != nil {
			return false, err
		}
		intent.DryRun = false
		if show.preview != nil && out == output.AsTable {
			if err := show.preview(a, params, found); err != nil {
				return false, err
			}
		} else if dry {
			return false, a.print(show, out, params, found)
		}
		if dry {
			return false, nil
		}
	}
	question, proceed := title(v.Name)+"?", true
	if show.question != nil {
		question, proceed = show.question(params, found)
	}
	switch {
	case !proceed && out != output.AsTable:
		return false, a.print(show, out, params, found)
	case !proceed || question == "":
		return proceed, nil
	}
	return true, a.confirm(c, question)
}

// print prints what a verb found or did.
func (a *app) print(show view, out output.Format, params, result any) error {
	switch {
	case show.formats != nil:
		return show.write(a, params, result)
	case out == output.AsJSON:
		return output.JSON(a.stdout, result)
	case out == output.AsJSONL:
		list := reflect.ValueOf(result)
		for i := range list.Len() {
			if err := output.JSONL(a.stdout, []any{list.Index(i).Interface()}); err != nil {
				return err
			}
		}
		return nil
	}
	return show.write(a, params, result)
}

func title(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// confirmation are the flags of commands that change what can't be brought back, beside the verb's parameters.
type confirmation struct {
	yes   bool
	actor string
}

func (c *confirmation) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.yes, "yes", "y", false, "don't ask")
	cmd.Flags().StringVar(&c.actor, "actor", "", "who, for the audit (default: you, at this host)")
}

func (a *app) actor(c confirmation) string {
	if c.actor != "" {
		return c.actor
	}
	name := a.getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, _ := os.Hostname()
	if actor := strings.Trim(name+"@"+host, "@"); actor != "" {
		return actor
	}
	return "unknown"
}

// confirm asks, unless told not to.
func (a *app) confirm(c confirmation, question string) error {
	if c.yes {
		return nil
	}
	if !output.IsTerminal(a.stdin) {
		return exit.Usagef("this is not a terminal, so you can't be asked: add --yes")
	}
	fmt.Fprintf(a.stderr, "%s [y/N] ", question)
	answer, _ := bufio.NewReader(a.stdin).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("not confirmed: nothing was changed")
}
