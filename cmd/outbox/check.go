package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/daemon"
)

const (
	asPlugin     format = "nagios"
	asPrometheus format = "prometheus"
)

// errSaid ends the program with an exit code and without another word.
var errSaid = errors.New("")

// checkCommand is the verb with the exit codes of a plugin, also where it fails: then the result is unknown.
func (a *app) checkCommand(v verbs.Verb) *cobra.Command {
	var as format
	var result admin.Result
	cmd := a.verb(v, view{
		formats: []format{asPlugin, asPrometheus, asJSON},
		prepare: func(_ *app, _ any, out format) error {
			as = out
			return nil
		},
		write: func(a *app, _, found any) error {
			c := found.(*admin.Checked)
			result = c.Result
			switch as {
			case asJSON:
				return printJSON(a.stdout, c)
			case asPrometheus:
				return daemon.WriteReport(a.stdout, orText(a.databaseName, config.DefaultDatabase), c.Report)
			}
			_, err := fmt.Fprintln(a.stdout, clean(c.Plugin()))
			return err
		},
	})
	unknown := func(err error) error {
		fmt.Fprintln(a.stdout, clean(admin.Checked{Result: admin.ResultUnknown, Text: a.redact(err.Error())}.Plugin()))
		return coded{errSaid, int(admin.ResultUnknown)}
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return unknown(err) })
	cmd.Args = nil
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := cobra.NoArgs(cmd, args)
		if err == nil {
			err = run(cmd, args)
		}
		switch {
		case err != nil:
			return unknown(err)
		case result != admin.ResultOK:
			return coded{errSaid, int(result)}
		}
		return nil
	}
	return cmd
}
