package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/admin/verbs"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/output"
	"github.com/pgoutbox/outbox/cmd/internal/session"
)

// replayCommand is the verb, also for messages of archives on this machine.
func (a *app) replayCommand(v verbs.Verb) *cobra.Command {
	var dirs []string
	var from *jobs.Archived
	cmd := a.verb(v, special{
		prepare: func(params any, _ output.Format) (err error) {
			switch {
			case len(dirs) == 0:
				return nil
			case a.Server() != "":
				return exit.Usagef("--archive is read on this machine: leave out --server")
			}
			from, err = fromArchive(dirs)
			params.(*verbs.Replay).Archived = from
			return err
		},
		follow: func(ctx context.Context, runner session.Runner, actor string, result any) (any, error) {
			job := result.(jobs.Job)
			if from == nil || job.ID == 0 {
				return a.follow(ctx, runner, actor, result)
			}
			job, err := jobs.FeedReplay(ctx, runner.(session.Direct).Conn, job.ID, *from,
				func(job jobs.Job) { fmt.Fprintln(a.Stderr, verbs.Progress(job)) })
			if err != nil {
				id := result.(jobs.Job).ID
				err = fmt.Errorf("%w: the rest of job %d is not sent: give this command once more with --job %d, or: outbox jobs stop %d",
					err, id, id, id)
			}
			return job, err
		},
	})
	cmd.Flags().StringArrayVar(&dirs, "archive", nil,
		"choose from the archive in this directory of this machine, not from the segments; may be repeated")
	_ = cmd.MarkFlagDirname("archive")
	return cmd
}
