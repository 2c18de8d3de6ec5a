package migrate

import (
	"context"
	"fmt"
	"regexp"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/session"
	"github.com/pgoutbox/outbox/schema"
)

// newLine ends a comment of SQL, and a quoted name may have one.
var newLine = regexp.MustCompile(`[\r\n]`)

// Attach is "outbox attach".
func Attach(s *session.Session) *cobra.Command {
	var plan schema.Attachment
	var remove, dry bool
	cmd := &cobra.Command{
		Use:   "attach TABLE",
		Short: "Write a message for each change of a table whose application can't be changed",
		Long: `Makes a trigger on the table that writes a message for each row that is inserted, updated or deleted, in the same
transaction. A change that is rolled back writes none. The key is the primary key, so the changes of a row arrive in
order; the payload is the row as JSON, after a DELETE the old one; the event type is TABLE.insert, TABLE.update or
TABLE.delete. TRUNCATE writes nothing.

A change that worked before works with the trigger: if no valid message can be made of it, as when the topic's column is
NULL, its message becomes a dead letter with the reason. --invalid refuse makes such a change fail. One thing changes for
the application: after a change of a row, SELECT lastval() (PDO's lastInsertId() without a name) fails or gives a number of
the outbox. Name the sequence (currval), or use INSERT ... RETURNING.

Run it as the table's owner, or as a role with its rights. The owner has to be a writer of the outbox: the trigger
writes with the owner's rights, and the application's role needs none. It may be run again, and replaces what it has made. --remove takes it away.`,
		Example: `  outbox attach orders --topic orders --dry-run
  outbox attach shop.orders --columns id,status,total --on insert,update
  outbox attach orders --remove`,
		Args: cobra.ExactArgs(1),
		RunE: s.On(s.Connect, func(ctx context.Context, conn *pgx.Conn, args []string) error {
			plan.Table = args[0]
			var trigger schema.Trigger
			var err error
			if remove {
				trigger.Make, err = plan.Removal(ctx, conn)
			} else {
				trigger, err = plan.Plan(ctx, conn)
			}
			if err != nil {
				return err
			}
			sql := trigger.Make
			if dry {
				for _, note := range trigger.Notes {
					sql = "-- " + newLine.ReplaceAllString(note, "$0-- ") + "\n" + sql
				}
				_, err := fmt.Fprint(s.Stdout, sql)
				return err
			}
			if err := execute(ctx, s, lockTimeout+sql); err != nil {
				return err
			}
			for _, note := range trigger.Notes {
				_, _ = fmt.Fprintln(s.Stdout, note)
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&plan.Topic, "topic", "", "topic of the messages (default: the table's name)")
	cmd.Flags().StringVar(&plan.TopicColumn, "topic-column", "", "column with the topic, in place of --topic")
	cmd.Flags().StringSliceVar(&plan.Key, "key", nil, "columns of the key (default: the primary key)")
	cmd.Flags().StringSliceVar(&plan.Columns, "columns", nil, "columns of the payload (default: all)")
	cmd.Flags().StringSliceVar(&plan.On, "on", nil, "changes: insert, update, delete (default: all)")
	cmd.Flags().StringVar(&plan.Invalid, "invalid", "bury",
		"a change of which no valid message can be made: bury its message, as a dead letter with the reason, or refuse the change")
	cmd.Flags().BoolVar(&remove, "remove", false, "take the trigger away")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "print the SQL, and change nothing")
	return cmd
}
