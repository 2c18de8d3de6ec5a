package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgoutbox/outbox/cmd/internal/config/load"
	"github.com/pgoutbox/outbox/cmd/internal/exit"
	"github.com/pgoutbox/outbox/cmd/internal/session"
	"github.com/pgoutbox/outbox/internal/printed"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/schema"
)

func from(s *session.Session) *cobra.Command {
	var table string
	var step, undo int
	cmd := &cobra.Command{
		Use:   "from --table TABLE",
		Short: "Lead from an outbox table of your own to the default one, step by step",
		Long: `Prints the steps from a table that exists to outbox.messages, with what each would run, and changes nothing. --step
runs one of those that are run in the database, --undo takes it back. A relay goes on delivering from the table
until nothing waits in it; every row is delivered on one of the two ways, and a key's order is kept across them.

How the table is read stands in the configuration, as the source of a destination; otherwise it is what the doctor
proposes. Run it as the table's owner, or as a role with its rights. The owner has to be a writer of the outbox.`,
		Example: `  outbox migrate from --table outbox_events
  outbox migrate from --table outbox_events --step 1
  outbox migrate from --table outbox_events --undo 1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if table == "" || step != 0 && undo != 0 {
				return exit.Usagef("give --table, and one of --step and --undo or neither")
			}
			if !slices.Contains([]int{0, 1, 2, 5}, step) || !slices.Contains([]int{0, 1, 5}, undo) {
				return exit.Usagef("steps 1, 2 and 5 are run in the database, and 1 and 5 can be taken back there; the others are yours")
			}
			if undo == 5 {
				name, err := mapping.ParseTableName(table)
				if err != nil {
					return exit.Usagef("%w", err)
				}
				return execute(cmd.Context(), s, lockTimeout+rename(moved(name), name))
			}
			return s.On(s.Operate, func(ctx context.Context, conn *pgx.Conn, _ []string) error {
				if step == 5 { // the configuration has no source by then
					return moveEnd(ctx, s, conn, table)
				}
				m, err := readMove(ctx, s, conn, table)
				switch {
				case err != nil:
					return err
				case step == 1:
					return m.copy(ctx)
				case step == 2:
					return m.finish(ctx)
				case undo == 1:
					return execute(ctx, s, lockTimeout+m.back)
				}
				return m.print(ctx)
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&table, "table", "", "the table, with its schema unless that is in the search path")
	cmd.Flags().IntVar(&step, "step", 0, "run this step")
	cmd.Flags().IntVar(&undo, "undo", 0, "take this step back")
	return cmd
}

// move is the way from a table to the default one.
type move struct {
	*session.Session
	conn        *pgx.Conn
	table       *mapping.Table
	m           mapping.Mapping
	by          string // who has described the table
	begin, back string
	note        string // what begin changes for the application
}

// readMove reads how the table is read now, and what leads from it.
func readMove(ctx context.Context, s *session.Session, conn *pgx.Conn, table string) (*move, error) {
	report, err := mapping.Doctor(ctx, conn, table)
	if err != nil {
		return nil, err
	}
	v := &move{Session: s, conn: conn, m: report.Mapping, by: "as the doctor proposes"}
	strategy := report.Strategy
	if v.table, err = readTable(ctx, conn, table); err != nil {
		return nil, err
	}
	if path := s.ConfigPath(); path != "" {
		loaded, err := s.Load(load.Input{Unopened: true}, nil)
		if err != nil {
			return nil, err
		}
		for _, d := range loaded.Config.Destinations {
			if d.Source == nil {
				continue
			}
			how, m := d.Source.Resolve()
			if t, err := readTable(ctx, conn, m.Table); err == nil && t.OID == v.table.OID {
				strategy, v.m, v.by = how, m, "as destination "+d.Name+" does"
			}
		}
	}
	if v.begin, v.back, err = v.m.Move(v.table, strategy); err != nil {
		return nil, err
	}
	v.note, err = schema.LastValueNote(ctx, conn, v.table.OID)
	return v, err
}

func readTable(ctx context.Context, conn *pgx.Conn, table string) (*mapping.Table, error) {
	name, err := mapping.ParseTableName(table)
	if err != nil {
		return nil, err
	}
	return mapping.ReadTable(ctx, conn, name)
}

// moved is the table's name at the end. Writers that still insert into the old one fail then, instead of being
// forgotten.
func moved(name mapping.TableName) mapping.TableName {
	return mapping.TableName{Schema: name.Schema, Name: name.Name + "_moved"}
}

// copy does step 1.
func (v *move) copy(ctx context.Context) error {
	if err := execute(ctx, v.Session, lockTimeout+v.begin); err != nil {
		return err
	}
	_, err := fmt.Fprintln(v.Stdout, v.note)
	return err
}

func rename(from, to mapping.TableName) string {
	return fmt.Sprintf("ALTER TABLE %s RENAME TO %s;\n", from, mapping.TableName{Name: to.Name})
}

func (v *move) print(ctx context.Context) error {
	n, err := v.waiting(ctx)
	if err != nil {
		return err
	}
	name := v.table.TableName()
	run := "outbox migrate from --table " + v.m.Table
	indent := func(sql string) string { return "     " + strings.ReplaceAll(strings.TrimSpace(sql), "\n", "\n     ") }
	_, err = fmt.Fprintf(v.Stdout, `From %[1]s, read %[2]s, to outbox.messages. Each step can be taken back.

1. Copy. From here on each new row that waits becomes a message of the outbox as well, in its own transaction, and is
   marked as delivered. What waits already, what is inserted as blocked or claimed by a status, and what begins to wait
   by an UPDATE stays with the relay that reads the table. This waits for transactions that have inserted.
   run: %[3]s --step 1
   %[7]s
%[4]s

2. Finish. Waits until the relay that reads the table has delivered what is left: %[5]d rows wait now.
   run: %[3]s --step 2

3. Switch the relay: take "source" out of the destination's configuration, and restart it. It begins with the first
   copy.

   Back from here: do step 2, stop the relay of the table, and take step 1 back; let the destination without "source"
   deliver what is pending; put "source" back, and restart. So a key's order is kept on this way, too.
   run: %[3]s --undo 1

4. Switch the writers to outbox.Writer or outbox.publish, one after the other. Back: release the old ones.

5. End. Makes sure that nothing waits, and renames the table, so that a writer that was forgotten fails.
   run: %[3]s --step 5     back: %[3]s --undo 5
%[6]s

Then compare: outbox verify --consumer NAME. When you are content, drop the table and the function of step 1.
`, name, v.by, run, indent(v.begin), n, indent(moveEndSQL(name, &v.m)), v.note)
	return err
}

// moveEnd renames the table. Rows may have begun to wait since step 2: by an UPDATE, or because step 1 doesn't copy a
// row that is inserted as blocked or claimed.
func moveEnd(ctx context.Context, s *session.Session, conn *pgx.Conn, table string) error {
	t, err := readTable(ctx, conn, table)
	if err != nil {
		return err
	}
	copies, finished, err := copying(ctx, conn, t)
	switch {
	case err != nil:
		return err
	case !copies || finished == nil:
		return errors.New("rows may wait in the table: do steps 1 and 2 first")
	}
	return execute(ctx, s, lockTimeout+moveEndSQL(t.TableName(), finished))
}

// moveEndSQL renames the table if no row waits in it. No row can begin to wait in between.
func moveEndSQL(name mapping.TableName, m *mapping.Mapping) string {
	check := fmt.Sprintf(`DECLARE n bigint; BEGIN
    SELECT count(*) INTO n FROM %s m WHERE %s;
    IF n > 0 THEN
        RAISE EXCEPTION 'rows wait in the table: %%. %%', n,
            'The relay that reads it has to deliver them: give its destination "source" again, and do step 2';
    END IF;
END`, name, m.Unsettled())
	return fmt.Sprintf("LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE;\nDO %s;\n", name, schema.QuoteLiteral(check)) + rename(name, moved(name))
}

// copying reports whether step 1 is done, and what step 2 has noted: by which marks it saw that nothing waits.
func copying(ctx context.Context, conn *pgx.Conn, t *mapping.Table) (copies bool, finished *mapping.Mapping, err error) {
	var comment string
	err = conn.QueryRow(ctx, `SELECT count(*) > 0, coalesce(max(obj_description(oid, 'pg_trigger')), '') FROM pg_trigger
		WHERE tgrelid = $1 AND tgname = $2 AND tgenabled <> 'D'`, t.OID, mapping.MoveTrigger).Scan(&copies, &comment)
	if err != nil {
		return false, nil, fmt.Errorf("look for the trigger of step 1: %w", err)
	}
	var noted marks
	if marked, found := strings.CutPrefix(comment, nothingWaits); found && json.Unmarshal([]byte(marked), &noted) == nil {
		finished = &mapping.Mapping{Done: noted.Done, Claim: noted.Claim}
	}
	return copies, finished, nil
}

// nothingWaits begins the comment that step 2 leaves on the trigger. The marks follow, because at step 5 the
// configuration has none.
const nothingWaits = "nothing waits in the table, whose rows are marked by "

// marks are the fields of a mapping that tell whether a row waits.
type marks struct {
	Done  mapping.Done
	Claim mapping.Claim
}

// finish waits until the table's relay has delivered what step 1 has left to it.
func (v *move) finish(ctx context.Context) error {
	if copies, _, err := copying(ctx, v.conn, v.table); err != nil {
		return err
	} else if !copies {
		return errors.New("new rows still wait for the table's relay: run step 1 first")
	}
	for said := int64(-1); ; {
		n, err := v.waiting(ctx)
		if err != nil {
			return err
		}
		if n == 0 {
			by, err := json.Marshal(marks{v.m.Done, v.m.Claim})
			if err == nil {
				_, err = v.conn.Exec(ctx, fmt.Sprintf("COMMENT ON TRIGGER %s ON %s IS %s",
					mapping.MoveTrigger, v.table.TableName(), schema.QuoteLiteral(nothingWaits+string(by))))
			}
			if err != nil {
				return fmt.Errorf("note that nothing waits: %w", err)
			}
			fmt.Fprintln(v.Stderr, "nothing waits in the table; stop its relay, and go on with step 3")
			return nil
		}
		if n != said {
			fmt.Fprintf(v.Stderr, "%s for the relay that reads the table\n", printed.Many(n, "row waits", "rows wait"))
			said = n
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

func (v *move) waiting(ctx context.Context) (n int64, err error) {
	err = v.conn.QueryRow(ctx, fmt.Sprintf("SELECT count(*) FROM %s m WHERE %s", v.table.TableName(), v.m.Unsettled())).Scan(&n)
	if err != nil {
		err = fmt.Errorf("count what waits in %s: %w", v.table.TableName(), err)
	}
	return n, err
}
