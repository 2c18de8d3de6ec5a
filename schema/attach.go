package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/pgoutbox/outbox/internal/shell"
)

// ErrNoTable means that there is no table of the name, or the role doesn't see it.
var ErrNoTable = errors.New("there is no such table")

// Attachment is a trigger that writes a message for each change of a row, in the transaction of the change: for tables
// whose application can't be changed. TRUNCATE is no change of rows, and writes nothing. An UPDATE that moves a row to
// another partition is a DELETE and an INSERT for triggers, and writes two messages. Sessions whose
// session_replication_role is replica write none.
type Attachment struct {
	// Table is the table, with its schema unless that is in the search path. Required.
	Table string

	// Topic is that of all messages. Default: the table's name. TopicColumn takes it from a column instead.
	Topic, TopicColumn string

	// Key are the columns of the ordering key. Default: the primary key. Messages of a key are in order as long as
	// transactions that change rows of one key wait for each other, as those of one primary key do.
	Key []string

	// Columns are what the payload has of the row, as a JSON object: the new row, or the old one after a DELETE.
	// Default: all.
	Columns []string

	// On are the changes: "insert", "update", "delete". Default: all three.
	On []string
}

const attachedTrigger = "outbox_attach"

// row is the trigger's variable. PostgreSQL names it in the error of a change after a column was renamed or dropped
// that the trigger takes the key, the topic or the payload from. To catch that error would cost a subtransaction each
// time.
const row = `"row; if its columns changed, run outbox attach again"`

// Plan checks the attachment against the database, and returns the SQL that makes it; remove is the SQL that takes it
// away again. Both may be run again. The role has to own the table, and to be a writer of the outbox: the trigger
// writes with its rights, so that the application's role needs none.
func (a Attachment) Plan(ctx context.Context, q Querier) (attach, remove string, err error) {
	var table, function, name, owner, user string
	var owns, writes, foreign bool
	var columns, primary []string
	err = q.QueryRow(ctx, `
		SELECT format('%I.%I', n.nspname, c.relname), format('%I.%I', n.nspname, left(c.relname, 55) || '_outbox'), c.relname::text,
		       c.relowner::regrole::text, current_user::text, pg_has_role(c.relowner, 'USAGE'),
		       coalesce(has_function_privilege(to_regprocedure('outbox.publish(text, jsonb, text, jsonb, text, text, text, text, timestamptz, uuid)'), 'EXECUTE'), false)
		       AND has_schema_privilege('outbox', 'USAGE'),
		       ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
		       ARRAY(SELECT t.attname::text FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k (n, place) JOIN pg_attribute t ON t.attnum = k.n
		             WHERE i.indrelid = c.oid AND i.indisprimary AND t.attrelid = c.oid ORDER BY k.place),
		       EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = n.oid AND p.proname = left(c.relname, 55) || '_outbox' AND p.pronargs = 0
		               AND NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgfoid = p.oid AND g.tgrelid = c.oid AND g.tgname = 'outbox_attach'))
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p') AND n.nspname <> 'outbox'`, a.Table).
		Scan(&table, &function, &name, &owner, &user, &owns, &writes, &columns, &primary, &foreign)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", "", fmt.Errorf("attach %s: %w, or it is one of the outbox", a.Table, ErrNoTable)
	}
	if err != nil {
		return "", "", fmt.Errorf("attach %s: look at the table: %w", a.Table, err)
	}
	key := a.Key
	if len(key) == 0 {
		key = primary
	}
	on := a.On
	if len(on) == 0 {
		on = []string{"insert", "update", "delete"}
	}
	var faults []error
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(!owns, "%w: %q may not make a trigger on it: run this as %s", ErrForbidden, user, owner)
	fault(!writes, "%w: %q may not write messages: as the owner of schema outbox, run: outbox migrate grants --apply --writer %s",
		ErrForbidden, user, shell.Word(user))
	fault(foreign, "there is a function %s already, which something else made: rename that one", function)
	fault(len(key) == 0, "it has no primary key: name the columns of the key")
	fault(a.Topic != "" && a.TopicColumn != "", "a topic and a column of topics are given: not both")
	for _, column := range slices.Concat(key, a.Columns, []string{a.TopicColumn}) {
		fault(column != "" && !slices.Contains(columns, column), "there is no column %q", column)
	}
	for _, change := range on {
		fault(!slices.Contains([]string{"insert", "update", "delete"}, change), "a change is insert, update or delete, and not %q", change)
	}
	if len(faults) > 0 {
		return "", "", fmt.Errorf("attach %s: %w", a.Table, errors.Join(faults...))
	}

	topic := QuoteLiteral(name)
	switch {
	case a.TopicColumn != "":
		topic = row + "." + QuoteIdentifier(a.TopicColumn) + "::text"
	case a.Topic != "":
		topic = QuoteLiteral(a.Topic)
	}
	payload := "to_jsonb(" + row + ")"
	if len(a.Columns) > 0 {
		var pairs []string
		for _, column := range a.Columns {
			pairs = append(pairs, QuoteLiteral(column)+", "+row+"."+QuoteIdentifier(column))
		}
		payload = "jsonb_build_object(" + strings.Join(pairs, ", ") + ")"
	}
	keys := row + "." + QuoteIdentifier(key[0]) + "::text"
	if len(key) > 1 {
		var parts []string
		for _, column := range key {
			parts = append(parts, row+"."+QuoteIdentifier(column))
		}
		keys = "jsonb_build_array(" + strings.Join(parts, ", ") + ")::text" // (a, bc) and (ab, c) are two keys
	}
	// The trigger comes after the row was changed, so its lock is held when the message draws its id. Its texts don't
	// depend on the settings of the session that changes the row.
	attach = fmt.Sprintf(`CREATE OR REPLACE FUNCTION %[1]s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog SET timezone = UTC SET datestyle = ISO SET intervalstyle = postgres SET bytea_output = hex SET extra_float_digits = 1 AS $outbox$
DECLARE
    %[9]s %[2]s%%ROWTYPE;
BEGIN
    %[9]s := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
    PERFORM outbox.publish(%[3]s, %[4]s, key => %[5]s, event_type => %[6]s || lower(TG_OP));
    RETURN NULL;
END $outbox$;
REVOKE ALL ON FUNCTION %[1]s() FROM PUBLIC;
CREATE OR REPLACE TRIGGER %[7]s AFTER %[8]s ON %[2]s FOR EACH ROW EXECUTE FUNCTION %[1]s();
`, function, table, topic, payload, keys, QuoteLiteral(name+"."), attachedTrigger, strings.ToUpper(strings.Join(on, " OR ")), row)
	remove = fmt.Sprintf("DROP TRIGGER IF EXISTS %s ON %s;\nDROP FUNCTION IF EXISTS %s();\n", attachedTrigger, table, function)
	return attach, remove, nil
}
