package main

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/sheet"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/session"
)

// special is what the command of a verb does beside what the table says.
type special struct {
	aliases []string

	// formats are those that run knows, instead of the usual ones.
	formats []output.Format

	// prepare completes the parameters by what only this process can read, before they are checked, and refuses those
	// whose result can't be printed.
	prepare func(params any, out output.Format) error

	// run, if not nil, runs the verb on all databases and prints the results, in place of all that follows.
	run func(ctx context.Context, params any, out output.Format) error

	// judge, if not nil, says what is wrong with a result that was printed.
	judge func(result any) error

	// follow, if not nil, stays with what was begun, and returns what became of it.
	follow func(ctx context.Context, runner session.Runner, actor string, result any) (any, error)
}

// isVerb marks the commands that work through --server as well.
const isVerb = "verb"

// verb makes the command of a verb in the table.
func (a *app) verb(v verbs.Verb, own special) *cobra.Command {
	params := v.New()
	var out output.Format
	c := session.Confirmation{}
	cmd := &cobra.Command{Use: lastWord(v.Name), Aliases: own.aliases, Short: v.Short, Long: v.Long, Example: v.Example,
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
		c.Flags(cmd)
	}
	choices := []output.Format{output.AsTable, output.AsJSON, output.AsJSONL}
	if v.Result().Kind() != reflect.Slice {
		choices = choices[:2]
	}
	if own.formats != nil {
		choices = own.formats
	}
	output.FormatFlag(cmd, &out, choices...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := arguments(v, params, args)
		if err == nil && own.prepare != nil {
			err = own.prepare(params, out)
		}
		if err == nil {
			err = v.Check(params)
		}
		switch {
		case err != nil:
		case own.run != nil:
			err = own.run(cmd.Context(), params, out)
		default:
			err = a.run(cmd.Context(), v, own, params, c, out)
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

// run runs a verb, and prints its result. What an operator changes is shown and confirmed before.
func (a *app) run(ctx context.Context, v verbs.Verb, own special, params any, c session.Confirmation, out output.Format) error {
	if c.Actor != "" && a.Server() != "" {
		return exit.Usagef("--actor is given, and the audit of a server has your login")
	}
	runner, err := a.Runner(ctx)
	if err != nil {
		return err
	}
	defer runner.Close()
	actor := a.Actor(c)
	run := func() (any, error) { return runner.Run(ctx, v, actor, params) }
	if v.Role == verbs.Operator {
		if proceed, err := a.confirm(v, params, c, out, run); !proceed || err != nil {
			return err
		}
	}
	result, err := run()
	if err == nil && own.follow != nil {
		result, err = own.follow(ctx, runner, actor, result)
	}
	if err != nil {
		return err
	}
	err = a.print(out, result, func() sheet.Parts { return v.Show(params, result) })
	if err == nil && own.judge != nil && out == output.AsTable {
		err = own.judge(result)
	}
	return err
}

// confirm shows what would be changed, and asks. It reports whether to go on.
func (a *app) confirm(v verbs.Verb, params any, c session.Confirmation, out output.Format,
	run func() (any, error)) (proceed bool, err error) {
	intent := verbs.IntentOf(params)
	question := v.Question(params, nil)
	if dry := intent.DryRun; dry || v.Lists {
		intent.DryRun = true
		found, err := run()
		if err != nil {
			return false, err
		}
		intent.DryRun = false
		n, counted := verbs.Count(found)
		ends := dry || counted && n == 0
		if ends || out == output.AsTable {
			err = a.print(out, found, func() sheet.Parts { return v.Preview(params, found) })
		}
		if ends || err != nil {
			return false, err
		}
		question = v.Question(params, found)
		if listed, ok := params.(interface{ Start(job jobs.Job) }); ok {
			listed.Start(found.(jobs.Job))
		}
	} else if v.Cost != "" {
		question = v.Cost + ". " + question
	}
	if !v.Asks(params) {
		return true, nil
	}
	return true, a.Confirm(c, output.Clean(question))
}

// print prints the result of a verb.
func (a *app) print(out output.Format, result any, show func() sheet.Parts) error {
	switch out {
	case output.AsJSON:
		return output.JSON(a.Stdout, result)
	case output.AsJSONL:
		list := reflect.ValueOf(result)
		for i := range list.Len() {
			if err := output.JSONL(a.Stdout, []any{list.Index(i).Interface()}); err != nil {
				return err
			}
		}
		return nil
	}
	return a.Draw(show(), a.Colours(a.Stdout))
}
