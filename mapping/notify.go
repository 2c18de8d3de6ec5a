package mapping

import (
	"context"
	"fmt"
	"strings"

	"github.com/pgoutbox/outbox/schema"
)

// MaxChannel is how many bytes the name of a channel for notifications may have.
const MaxChannel = 63

// NotifySQL returns the statements by which every transaction that inserts into a table notifies a channel when it
// commits, once, however many rows it inserts. The table's owner runs them. A relay whose source has that channel reads
// the rows at once. The first statement fails if there is a function of the name: it can be the application's.
//
// PostgreSQL lets one transaction at a time commit that has notified, in all databases of a server, and such a
// transaction can't be prepared for a commit in two phases.
func NotifySQL(table TableName, channel string) string {
	name := TableName{Schema: table.Schema, Name: strings.ToValidUTF8(table.Name[:min(len(table.Name), 50)], "") + "_notify"}
	body := fmt.Sprintf("BEGIN PERFORM pg_catalog.pg_notify(%s, ''); RETURN NULL; END", schema.QuoteLiteral(channel))
	return fmt.Sprintf("CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql AS %s;\n"+
		"CREATE TRIGGER outbox_notify AFTER INSERT ON %s FOR EACH STATEMENT EXECUTE FUNCTION %s();",
		name, schema.QuoteLiteral(body), table, name)
}

// notifiesSQL finds a trigger that notifies. What a function does is only in its text.
const notifiesSQL = `SELECT coalesce((SELECT t.tgname::text FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
	WHERE t.tgrelid = $1 AND NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND p.prosrc ~* 'notify' ORDER BY 1 LIMIT 1), ''),
	current_setting('max_prepared_transactions') <> '0'`

// byNotification reports how a relay of the table is woken by each commit, and what that costs.
func byNotification(ctx context.Context, q schema.Querier, t *Table) (Finding, error) {
	var trigger string
	var prepared bool
	if err := q.QueryRow(ctx, notifiesSQL, t.OID).Scan(&trigger, &prepared); err != nil {
		return Finding{}, err
	}
	f := Finding{About: "notify"}
	if trigger != "" {
		f.Text = fmt.Sprintf("its trigger %q notifies: name its channel in notify, beside table, and rows are read at once", trigger)
		return f, nil
	}
	channel := strings.ToValidUTF8(("outbox_" + t.Name)[:min(len(t.Name)+7, MaxChannel)], "")
	f.Text = fmt.Sprintf("a row waits for the next poll, at most poll.idle (100 ms by default). With this trigger and notify: %q "+
		"beside table it is read at once. One transaction at a time commits that has notified, in all databases of the server, so leave "+
		"it out where some hundreds a second insert", channel)
	if prepared {
		f.Text += "; and a transaction that has notified can't be prepared for a commit in two phases, which this server allows"
	}
	if t.Partitioned {
		f.Text += ". Inserts straight into a partition don't notify"
	}
	f.SQL = NotifySQL(t.TableName(), channel)
	return f, nil
}
