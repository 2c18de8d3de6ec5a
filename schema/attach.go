package schema

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

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

	// Invalid is what happens to a change of which no valid message can be made, such as one of a row whose topic is
	// NULL, whose key has a line break, or that JSON can't have. Default: "bury": the change succeeds, and its message
	// becomes a dead letter with the reason. "refuse": the change fails, and so does one whose payload has more than
	// 1,000,000 bytes.
	Invalid string
}

// attachedTrigger is the trigger's name. Triggers of a row fire in the order of their names' bytes, and one that
// changes the row again has to come after, so that the message of its change does. formerTrigger is the name that it
// had.
const (
	attachedTrigger = "!outbox_attach"
	formerTrigger   = "outbox_attach"
)

// Trigger is the SQL of an Attachment. It may be run again.
type Trigger struct {
	Make  string   // SQL
	Notes []string // sentences on what it does, for the person who makes it
}

// attached is what the database knows about a table that is to get a trigger.
type attached struct {
	oid               uint32
	kind, persistence string
	schema            string // quoted
	table, name       string // the first one quoted, with its schema
	function          string // quoted, with its schema
	holder            string // who owns the function, if the role has no rights of that one
	owner, user       string
	owns, writes      bool   // the user has the owner's rights; the owner may write messages
	creates           bool   // the owner may own a function in the schema
	trigger           string // its name, if there is one; it is foreign if something else made its function
	foreign           bool
	inherited         bool // the trigger is the partitioned table's
	columns, virtual  []string
	primary, children []string
	before, after     []string   // triggers of changed rows whose names sort before and after
	strange           [][]string // columns of types whose owners haven't the rights of the table's: column, type, owner
}

// WritesSQL is the condition that the owner of the table c, a row of pg_class, may write messages. It reads only the
// catalogue, which everybody may read.
const WritesSQL = `EXISTS (SELECT FROM pg_catalog.pg_namespace o JOIN pg_catalog.pg_class m ON m.relnamespace = o.oid AND m.relname = 'messages'
	JOIN pg_catalog.pg_class s ON s.relnamespace = o.oid AND s.relname = 'messages_id_seq'
	JOIN pg_catalog.pg_proc p ON p.pronamespace = o.oid AND p.proname = 'publish' AND p.proargtypes[1] = 'bytea'::regtype
	WHERE o.nspname = 'outbox' AND has_schema_privilege(c.relowner, o.oid, 'USAGE') AND has_column_privilege(c.relowner, m.oid, 'topic', 'INSERT')
	AND has_sequence_privilege(c.relowner, s.oid, 'USAGE') AND has_function_privilege(c.relowner, p.oid, 'EXECUTE'))`

// TypePartsSQL lists the oids of the types that a type t, a row of pg_type, is made of: as a subquery.
const TypePartsSQL = `(
	SELECT t.typelem AS oid WHERE t.typcategory = 'A' UNION ALL SELECT t.typbasetype WHERE t.typtype = 'd'
	UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
	UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
		WHERE a.attrelid = t.typrelid AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped)`

// neighboursSQL lists the triggers that run after a row was changed, of the table c and its partitions, whose names
// sort before or after ours. Those of constraints belong to the server, and change only other rows.
func neighboursSQL(operator string) string {
	return `ARRAY(SELECT DISTINCT quote_ident(n.tgname) FROM pg_trigger n
		WHERE n.tgrelid IN (SELECT c.oid UNION SELECT relid FROM pg_partition_tree(c.oid))
		AND NOT n.tgisinternal AND n.tgtype & 67 = 1 AND NOT n.tginitdeferred
		AND n.tgname NOT IN ('` + attachedTrigger + `', '` + formerTrigger + `')
		AND n.tgname ` + operator + ` '` + attachedTrigger + `' ORDER BY 1)`
}

const earlierTriggersSQL = `
SELECT c.oid::regclass::text, quote_ident(n.tgname), quote_ident(g.tgname)
FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid AND p.prosrc LIKE '%outbox attach: %' JOIN pg_class c ON c.oid = g.tgrelid
JOIN pg_trigger n ON n.tgrelid = c.oid AND n.tgname < g.tgname AND NOT n.tgisinternal AND n.tgtype & 67 = 1 AND NOT n.tginitdeferred
WHERE g.tgname IN ('` + attachedTrigger + `', '` + formerTrigger + `') ORDER BY 1, 2`

// EarlierTriggers lists attached tables with a trigger that runs before ours, because its name sorts before: the table,
// that trigger, and ours. Names are quoted.
func EarlierTriggers(ctx context.Context, q Querier) ([][3]string, error) {
	rows, err := q.Query(ctx, earlierTriggersSQL)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o [3]string, err error) {
		err = row.Scan(&o[0], &o[1], &o[2])
		return o, err
	})
}

var attachedSQL = `
SELECT c.oid, c.relkind::text, c.relpersistence::text, quote_ident(n.nspname), format('%I.%I', n.nspname, c.relname), c.relname::text,
	coalesce((SELECT format('%I.%I', s.nspname, p.proname) FROM pg_proc p JOIN pg_namespace s ON s.oid = p.pronamespace WHERE p.oid = g.tgfoid), f.name),
	coalesce((SELECT pg_get_userbyid(p.proowner)::text FROM pg_proc p
		WHERE p.oid = coalesce(g.tgfoid, to_regprocedure(f.name || '()')::oid) AND NOT pg_has_role(p.proowner, 'USAGE')), ''),
	pg_get_userbyid(c.relowner)::text, current_user::text, pg_has_role(c.relowner, 'USAGE'), ` + WritesSQL + `,
	has_schema_privilege(c.relowner, n.oid, 'CREATE') OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
	coalesce(g.tgname::text, ''), EXISTS (SELECT FROM pg_proc p WHERE p.oid = coalesce(g.tgfoid, to_regprocedure(f.name || '()')::oid)
		AND (p.prosrc NOT LIKE '%outbox attach: %' OR EXISTS (
			SELECT FROM pg_trigger o WHERE o.tgfoid = p.oid AND o.tgrelid <> c.oid AND o.tgparentid = 0))),
	coalesce(g.tgparentid <> 0, false),
	ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
	ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = 'v' ORDER BY attnum),
	ARRAY(SELECT t.attname::text FROM pg_index i, unnest(i.indkey) WITH ORDINALITY k (n, place) JOIN pg_attribute t ON t.attnum = k.n
	      WHERE i.indrelid = c.oid AND i.indisprimary AND t.attrelid = c.oid ORDER BY k.place),
	ARRAY(SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = c.oid AND c.relkind = 'r' ORDER BY 1),
	` + neighboursSQL("<") + `, ` + neighboursSQL(">") + `,
	ARRAY(WITH RECURSIVE parts AS (
		SELECT attname, atttypid AS oid FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
		UNION
		SELECT p.attname, x.oid FROM parts p JOIN pg_type t ON t.oid = p.oid CROSS JOIN LATERAL ` + TypePartsSQL + ` x
	) SELECT ARRAY[p.attname::text, format_type(t.oid, NULL), pg_get_userbyid(t.typowner)::text]
	FROM parts p JOIN pg_type t ON t.oid = p.oid
	WHERE t.typtype <> 'd' AND NOT pg_has_role(t.typowner, c.relowner, 'MEMBER') ORDER BY 1)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN LATERAL (
	SELECT * FROM pg_trigger WHERE tgrelid = c.oid AND tgname IN ('` + attachedTrigger + `', '` + formerTrigger + `')
	ORDER BY tgname LIMIT 1) g ON true,
LATERAL (SELECT format('%I.%I', n.nspname, c.relname || '_outbox') AS plain) o,
LATERAL (SELECT CASE WHEN octet_length(c.relname || '_outbox') < 64 AND NOT EXISTS (
		SELECT FROM pg_trigger u WHERE u.tgfoid = to_regprocedure(o.plain || '()') AND u.tgrelid <> c.oid) THEN o.plain
	ELSE format('%I.%I', n.nspname, ('outbox_' || c.oid || '_' || c.relname)::name) END AS name) f
WHERE c.oid = to_regclass($1) AND n.nspname <> 'outbox'`

// look reads what the database knows about the table.
func (a Attachment) look(ctx context.Context, q Querier) (*attached, error) {
	t := new(attached)
	err := q.QueryRow(ctx, attachedSQL, a.Table).Scan(&t.oid, &t.kind, &t.persistence, &t.schema, &t.table, &t.name,
		&t.function, &t.holder, &t.owner, &t.user, &t.owns, &t.writes, &t.creates, &t.trigger, &t.foreign, &t.inherited, &t.columns,
		&t.virtual, &t.primary, &t.children, &t.before, &t.after, &t.strange)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("attach %s: %w, or it is one of the outbox", a.Table, ErrNoTable)
	}
	if err != nil {
		return nil, fmt.Errorf("attach %s: look at the table: %w", a.Table, err)
	}
	return t, nil
}

// Plan checks the attachment against the database, and returns the SQL that makes it. The role has to have the rights
// of the table's owner, and that one has to be a writer of the outbox: the trigger writes with the owner's rights, so
// that the application's role needs none. It never has the rights of the role that attaches: the owner chooses the
// types of the columns, and so the casts that run in the trigger.
func (a Attachment) Plan(ctx context.Context, q Querier) (Trigger, error) {
	t, err := a.look(ctx, q)
	if err != nil {
		return Trigger{}, err
	}
	if len(a.Key) == 0 {
		a.Key = t.primary
	}
	if len(a.On) == 0 {
		a.On = []string{"insert", "update", "delete"}
	}
	if a.Topic == "" && a.TopicColumn == "" {
		a.Topic = t.name
	}
	if err := a.check(t); err != nil {
		return Trigger{}, fmt.Errorf("attach %s: %w", a.Table, err)
	}
	last, err := LastValueNote(ctx, q, t.oid)
	if err != nil {
		return Trigger{}, fmt.Errorf("attach %s: %w", a.Table, err)
	}
	return Trigger{Make: a.makeSQL(t), Notes: append(a.notes(t), last)}, nil
}

// drawnSQL lists the columns of the table $1 whose values are drawn from a sequence, by the identity or the default,
// with that sequence. Names are quoted.
const drawnSQL = `
SELECT quote_ident(a.attname), format('%I.%I', n.nspname, s.relname)
FROM pg_attribute a LEFT JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum JOIN pg_depend d ON
	d.deptype = 'i' AND d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid
		AND d.refobjsubid = a.attnum
	OR d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass
JOIN pg_class s ON s.oid = CASE d.deptype WHEN 'i' THEN d.objid ELSE d.refobjid END AND s.relkind = 'S'
	JOIN pg_namespace n ON n.oid = s.relnamespace
WHERE a.attrelid = $1 AND NOT a.attisdropped ORDER BY a.attnum, 2`

// LastValueNote returns a sentence for the person who makes a trigger that writes messages: afterwards lastval() has
// another number, and what to use instead for the table with the oid.
func LastValueNote(ctx context.Context, q Querier, oid uint32) (string, error) {
	rows, err := q.Query(ctx, drawnSQL, oid)
	if err != nil {
		return "", fmt.Errorf("look for sequences: %w", err)
	}
	var columns, calls []string
	var column, sequence string
	_, err = pgx.ForEachRow(rows, []any{&column, &sequence}, func() error {
		columns, calls = append(columns, column), append(calls, "currval("+QuoteLiteral(sequence)+")")
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("look for sequences: %w", err)
	}
	const note = "The trigger draws from the sequence outbox.messages_id_seq. So after a change of a row, SELECT lastval() is refused " +
		"(permission denied for sequence messages_id_seq) to a role without rights on the outbox, and gives another role a wrong number. " +
		"PDO's lastInsertId() without a name runs it. "
	if columns == nil {
		return note + "Name the sequence (currval), or use INSERT ... RETURNING.", nil
	}
	return note + "Use INSERT ... RETURNING " + strings.Join(columns, ", ") + ", or " +
		strings.Join(calls, ", ") + ": lastInsertId() with that name.", nil
}

// Removal returns the SQL that takes the trigger of the table away. It may be run again. The role has to own the table,
// and need not be a writer any more; nor need the table be one that could be attached.
func (a Attachment) Removal(ctx context.Context, q Querier) (string, error) {
	t, err := a.look(ctx, q)
	if err != nil {
		return "", err
	}
	if err := errors.Join(t.change()...); err != nil {
		return "", fmt.Errorf("attach %s: %w", a.Table, err)
	}
	return fmt.Sprintf("DROP TRIGGER IF EXISTS %s ON %s;\nDROP FUNCTION IF EXISTS %s();\n",
		QuoteIdentifier(cmp.Or(t.trigger, attachedTrigger)), t.table, t.function), nil
}

// change returns the reasons why the role can't make or remove the trigger.
func (t *attached) change() (faults []error) {
	if !t.owns {
		faults = append(faults, fmt.Errorf("%w: %q may not make or remove a trigger on it: run this as %s", ErrForbidden, t.user, t.owner))
	}
	switch {
	case t.holder != "":
		faults = append(faults, fmt.Errorf("%w: the trigger's function %s belongs to %q, as a table has another owner since it was "+
			"attached: as a superuser, run: ALTER FUNCTION %[2]s() OWNER TO %[4]s", ErrForbidden, t.function, t.holder,
			QuoteIdentifier(t.owner)))
	case t.foreign && t.trigger != "":
		faults = append(faults, fmt.Errorf("there is a trigger %s already, whose function %s something else made: rename that trigger",
			t.trigger, t.function))
	case t.foreign:
		faults = append(faults, fmt.Errorf("there is a function %s already, which something else made: rename that one", t.function))
	}
	if t.inherited {
		faults = append(faults, errors.New("it is a partition, and the partitioned table is attached, which writes its messages too"))
	}
	return faults
}

// unattachable are the kinds of tables, by pg_class, whose row triggers don't see all changes.
var unattachable = map[string]string{
	"v": "a view: attach the tables that it reads",
	"m": "a materialized view: attach the tables that it reads",
	"f": "a foreign table, whose rows change in another database: attach the table there",
	"S": "a sequence", "i": "an index", "I": "an index", "c": "a type", "t": "a table of TOAST",
}

func (a Attachment) check(t *attached) error {
	if kind, found := unattachable[t.kind]; found {
		return fmt.Errorf("it is %s", kind)
	}
	faults := t.change()
	fault := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(t.persistence == "t", "it is a temporary table, which other sessions don't see")
	fault(!t.writes, "%w: %q owns it, and may not write messages, and the trigger has its rights: as the owner of schema "+
		"outbox, run: outbox migrate grants --apply --writer %s", ErrForbidden, t.owner, shell.Word(t.owner))
	fault(!t.creates, "%w: %q owns it, and may not own the trigger's function in its schema: run: GRANT CREATE ON SCHEMA %s TO %s",
		ErrForbidden, t.owner, t.schema, QuoteIdentifier(t.owner))
	for _, s := range t.strange {
		used := slices.Concat(a.Key, a.Columns, []string{a.TopicColumn})
		fault(len(a.Columns) == 0 || slices.Contains(used, s[0]), "%w: column %q has the type %s of %q, whose casts would run in the "+
			"trigger with the rights of %q: run: ALTER TYPE %s OWNER TO %s; or leave the column out (--columns)",
			ErrForbidden, s[0], s[1], s[2], t.owner, s[1], QuoteIdentifier(t.owner))
	}
	fault(len(t.before) > 0, "its triggers %s run before the one of the outbox, as their names sort before %q: if they change a row "+
		"again, the message of that comes first: rename them", strings.Join(t.before, ", "), attachedTrigger)
	fault(len(a.Key) == 0, "it has no primary key: name the columns of the key")
	fault(len(a.Key) > maxAttachedKey, "the key has %d columns, the limit is %d", len(a.Key), maxAttachedKey)
	fault(a.Topic != "" && a.TopicColumn != "", "a topic and a column of topics are given: not both")
	fault(len(a.Topic) > 249 || strings.ContainsFunc(a.Topic, unicode.IsSpace) || strings.ContainsFunc(a.Topic, unicode.IsControl),
		"the topic %q is longer than 249 bytes, or has white space or a control character: name another one", a.Topic)
	fault(strings.ContainsAny(t.name, "\r\n"), "its name has CR or LF, and so has the event type: rename it")
	for _, column := range slices.Concat(a.Key, a.Columns, []string{a.TopicColumn}) {
		fault(column != "" && !slices.Contains(t.columns, column), "there is no column %q", column)
		fault(slices.Contains(t.virtual, column), "column %q is generated when it is read (VIRTUAL), and a trigger doesn't see it: "+
			"leave it out, or make it STORED", column)
	}
	fault(len(a.Columns) == 0 && len(t.virtual) > 0, "its columns %q are generated when they are read (VIRTUAL), and a trigger "+
		"doesn't see them: name the columns of the payload without them, or make them STORED", t.virtual)
	for _, change := range a.On {
		fault(!slices.Contains([]string{"insert", "update", "delete"}, change), "a change is insert, update or delete, and not %q", change)
	}
	fault(!slices.Contains([]string{"", "bury", "refuse"}, a.Invalid), "what is invalid is to bury or to refuse, and not to %q", a.Invalid)
	return errors.Join(faults...)
}

// maxAttachedKey is as many columns as a primary key can have.
const maxAttachedKey = 32

func (a Attachment) notes(t *attached) (notes []string) {
	if a.Invalid == "refuse" {
		notes = append(notes, "A change of which no valid message can be made fails, and so does one with a payload of more than "+
			"1,000,000 bytes.")
	} else {
		notes = append(notes, "A change of which no valid message can be made succeeds, and its message becomes a dead letter with "+
			"the reason (--invalid refuse: such a change fails).")
	}
	if len(t.after) > 0 {
		notes = append(notes, "The triggers "+strings.Join(t.after, ", ")+" run after the message of a row was written. If one changes "+
			"other rows that the same statement has changed, the messages of these can come in another order.")
	}
	if t.kind == "p" {
		notes = append(notes, "Its partitions, later ones too, have its trigger, and need none of their own. A table that was attached by "+
			"itself can't become a partition: run outbox attach --remove for it first, in the same transaction (--dry-run prints the SQL).")
	}
	if len(t.children) > 0 {
		notes = append(notes, "Changes of rows of "+strings.Join(t.children, ", ")+", which inherit from it, don't run its trigger: "+
			"attach these too.")
	}
	return notes
}

// TriggerFunction returns the SQL of a trigger's function: name is quoted, owner owns the table, body is PL/pgSQL. It
// runs with that role's rights, its texts don't depend on the session that changes the row, and a temporary table can't
// stand for one of its types. setting is a further setting, or empty.
func TriggerFunction(name, owner, setting, body string) string {
	if setting != "" {
		setting = " SET " + setting
	}
	quote := "$outbox$"
	for strings.Contains(body, quote) {
		quote = quote[:len(quote)-1] + "_$"
	}
	return fmt.Sprintf(`CREATE OR REPLACE FUNCTION %[1]s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET datestyle = ISO SET intervalstyle = postgres SET bytea_output = hex
SET extra_float_digits = 1 SET lc_monetary = 'C'%[4]s AS %[2]s%[3]s%[2]s;
REVOKE ALL ON FUNCTION %[1]s() FROM PUBLIC;
ALTER FUNCTION %[1]s() OWNER TO %[5]s;
`, name, quote, body, setting, QuoteIdentifier(owner))
}

// OwnedByAnotherSQL is a condition in the function of a trigger: neither the table, nor a table that it is a partition
// of, still belongs to the function's owner.
const OwnedByAnotherSQL = `(SELECT pg_get_userbyid(c.relowner) FROM pg_class c WHERE c.oid = TG_RELID) <> current_user
        AND NOT EXISTS (SELECT FROM pg_partition_ancestors(TG_RELID) p JOIN pg_class c ON c.oid = p.relid
            WHERE pg_get_userbyid(c.relowner) = current_user)`

// makeSQL is the trigger. It comes after the row was changed, so the row's lock is held when the message draws its id.
//
// Its function belongs to the table's owner, and takes nothing from the row once the table is somebody else's: casts
// are code of those who own the types. concat runs no casts.
//
// What is taken from the row can fail: a column was dropped, a text has no form in UTF-8, a function of the
// application's turns a type into JSON. It is in a block of its own, which writes nothing, so its subtransaction takes
// no transaction id. A session keeps the types of the row's columns that it has met; if one has another type since, the
// same is taken once more by a statement that keeps nothing. json, and not jsonb, takes every json.
func (a Attachment) makeSQL(t *attached) string {
	taken := a.expressions("changed")
	again := fmt.Sprintf("SELECT %s, %s, convert_to(%s::text, 'UTF8')", a.expressions("($1)")...)
	// A virtual column that was added later is NULL in a trigger.
	unseen := "false"
	if len(a.Columns) == 0 {
		unseen = "EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = TG_RELID AND a.attgenerated = 'v' AND NOT a.attisdropped)"
	}
	fault := `RAISE EXCEPTION USING ERRCODE = code, MESSAGE = 'outbox attach: ' || reason, HINT = 'If columns changed, run outbox attach again.'`
	write := "PERFORM outbox.publish(topic, payload, key => key, event_type => event, content_type => 'application/json')"
	if a.Invalid != "refuse" {
		// The headers tell the reason: headers that are a text make a dead letter.
		fault = `headers := to_json('outbox attach: ' || left(reason, 2000) || '; if columns changed, run outbox attach again');
        BEGIN payload := convert_to(concat(changed), 'SQL_ASCII'); EXCEPTION WHEN OTHERS THEN payload := NULL; END`
		write = `INSERT INTO outbox.messages (topic, key, event_type, payload, content_type, headers)
    VALUES (coalesce(topic, ''), nullif(key, ''), event, payload, CASE WHEN headers IS NULL THEN 'application/json' END, headers)`
	}
	body := fmt.Sprintf(`
DECLARE
    changed record;
    event   text := %[1]s || lower(TG_OP COLLATE "C");
    topic   text;
    key     text;
    payload bytea;
    headers json;
    reason  text;
    code    text := '22023';
BEGIN
    IF TG_OP = 'DELETE' THEN changed := OLD; ELSE changed := NEW; END IF;
    IF %[9]s THEN
        topic := %[10]s;
        reason := 'the table has another owner than its trigger';
    ELSE BEGIN
        topic := %[2]s;
        key := %[3]s;
        payload := convert_to(%[4]s::text, 'UTF8');
    EXCEPTION WHEN OTHERS THEN
        BEGIN
            EXECUTE %[5]s INTO topic, key, payload USING changed;
        EXCEPTION WHEN OTHERS THEN
            reason := SQLERRM;
            code := SQLSTATE;
        END;
    END; END IF;
    IF reason IS NULL AND %[6]s THEN
        reason := 'the table has a column that is generated when it is read (VIRTUAL), and a trigger does not see it';
    END IF;
    IF reason IS NOT NULL THEN
        %[7]s;
    END IF;
    %[8]s;
    RETURN NULL;
END `, QuoteLiteral(t.name+"."), taken[0], taken[1], taken[2], QuoteLiteral(again), unseen, fault, write, OwnedByAnotherSQL, QuoteLiteral(a.Topic))
	former := ""
	if t.trigger == formerTrigger {
		former = fmt.Sprintf("DROP TRIGGER IF EXISTS %s ON %s;\n", formerTrigger, t.table)
	}
	return TriggerFunction(t.function, t.owner, "timezone = UTC", body) + fmt.Sprintf(
		"CREATE OR REPLACE TRIGGER %s AFTER %s ON %s FOR EACH ROW EXECUTE FUNCTION %s();\n",
		QuoteIdentifier(attachedTrigger), strings.ToUpper(strings.Join(a.On, " OR ")), t.table, t.function) + former
}

// expressions are the topic, the key and the payload of a row, in SQL.
func (a Attachment) expressions(row string) []any {
	field := func(column string) string { return row + "." + QuoteIdentifier(column) }
	topic := QuoteLiteral(a.Topic)
	if a.TopicColumn != "" {
		topic = field(a.TopicColumn) + "::text"
	}
	key := field(a.Key[0]) + "::text"
	if len(a.Key) > 1 {
		var parts []string
		for _, column := range a.Key {
			parts = append(parts, field(column))
		}
		key = "json_build_array(" + strings.Join(parts, ", ") + ")::text" // (a, bc) and (ab, c) are two keys
	}
	payload := "row_to_json(" + row + ")"
	if len(a.Columns) > 0 {
		var columns []string
		for _, column := range a.Columns {
			columns = append(columns, field(column)+" AS "+QuoteIdentifier(column))
		}
		payload = "(SELECT row_to_json(r.*) FROM (SELECT " + strings.Join(columns, ", ") + ") r)"
	}
	return []any{topic, key, payload}
}
