package schema

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// privilege is one GRANT. Grants prints it and Check verifies it, so they can't disagree.
type privilege struct {
	kind   string
	object string
	rights []string
}

const (
	onSchema   = "SCHEMA"
	onTable    = "TABLE"
	onSequence = "SEQUENCE"
	onFunction = "FUNCTION"
)

const (
	segments    = 8
	inboxTables = 3
)

// Grants prints the statements that give each role what it needs and no more. An empty name leaves that
// role out. The owner of the schema runs them; running them again is harmless. Names are quoted.
//
//   - The writer may insert messages and call outbox.publish. It can neither read nor change one, and
//     doesn't choose the columns on which delivery rests: xid, id, segment and created_at.
//   - The relay reads messages, empties segments, and owns the rows of cursors, relays, holds and dead
//     letters. It can't insert or change a message.
//   - The viewer reads everything except payloads.
func Grants(writer, relay, viewer string) string {
	var b strings.Builder
	print := func(title, role string, privileges []privilege) {
		if role == "" {
			return
		}
		name := pgx.Identifier{role}.Sanitize()
		fmt.Fprintf(&b, "-- %s\n", title)
		for _, p := range privileges {
			fmt.Fprintf(&b, "GRANT %s ON %s %s TO %s;\n", strings.Join(p.rights, ", "), p.kind, p.object, name)
		}
		b.WriteByte('\n')
	}
	print("Writer: a service that publishes.", writer, writerPrivileges())
	print("Relay, and operators who act on dead letters.", relay, relayPrivileges())
	if relay != "" {
		fmt.Fprintf(&b, "-- Optional: lets the relay name the session and the query that it waits for.\n-- GRANT "+
			"pg_read_all_stats TO %s;\n\n",
			pgx.Identifier{relay}.Sanitize())
	}
	print("Viewer: dashboards and status. It reads everything except payloads.", viewer, viewerPrivileges())
	return b.String()
}

// ConsumerGrants prints the statements that give a role what package inbox needs to record what the
// role's service applies and to look after the records. Like those of Grants, they may be run again.
func ConsumerGrants(consumer string) string {
	var b strings.Builder
	b.WriteString("-- Consumer: a service that applies messages.\n")
	for _, p := range consumerPrivileges() {
		fmt.Fprintf(&b, "GRANT %s ON %s %s TO %s;\n", strings.Join(p.rights, ", "), p.kind, p.object, pgx.Identifier{consumer}.Sanitize())
	}
	return b.String() + "\n"
}

func consumerPrivileges() []privilege {
	privileges := []privilege{
		{onSchema, "outbox", []string{"USAGE"}},
		{onTable, "outbox.inbox_rotation", []string{"SELECT", "UPDATE"}},
		{onSequence, "outbox.inbox_applied_seq", []string{"USAGE"}},
		{onTable, "outbox.inbox_positions", []string{"SELECT", "INSERT", "UPDATE"}},
		{onTable, "outbox.inbox_gaps", []string{"SELECT", "INSERT", "DELETE"}},
		{onFunction, "outbox.inbox_id(text)", []string{"EXECUTE"}},
		{onFunction, "outbox.receive(text, uuid, text, boolean)", []string{"EXECUTE"}},
		{onFunction, "outbox.try_receive(text, uuid, text)", []string{"EXECUTE"}},
		{onFunction, "outbox.store(text, uuid, text, boolean, text, text, text, text, text, bytea, text, jsonb)", []string{"EXECUTE"}},
		{onTable, "outbox.inbox_messages", []string{"INSERT (message_id, topic, key, aggregate_type, aggregate_id, " +
			"event_type, payload, content_type, headers)"}},
		{onSequence, "outbox.inbox_messages_id_seq", []string{"USAGE"}},
		{onTable, "outbox.cursors", []string{"SELECT (destination)", "INSERT (destination, shard_group, shard_groups, system_identifier)"}},
		{onTable, "outbox.dead_letters", []string{"SELECT (destination, message_id)", "INSERT"}},
		{onFunction, "outbox.receive_in_order(text, uuid, text, boolean, text, text, bigint, text, boolean, bigint)", []string{"EXECUTE"}},
	}
	for i := range inboxTables {
		privileges = append(privileges, privilege{onTable, fmt.Sprintf("outbox.inbox_%d", i), []string{"SELECT", "INSERT", "TRUNCATE"}})
	}
	return privileges
}

func writerPrivileges() []privilege {
	const arguments = "text, jsonb, text, text, text, text, timestamptz, uuid"
	return []privilege{
		{onSchema, "outbox", []string{"USAGE"}},
		{onTable, "outbox.messages", []string{"INSERT (message_id, topic, key, aggregate_type, aggregate_id, " +
			"event_type, payload, content_type, headers, deliver_at)"}},
		{onSequence, "outbox.messages_id_seq", []string{"USAGE"}},
		{onTable, "outbox.sequences", []string{"SELECT", "INSERT", "UPDATE"}},
		{onFunction, "outbox.next_sequence(text, text)", []string{"EXECUTE"}},
		{onFunction, "outbox.publish(text, bytea, " + arguments + ")", []string{"EXECUTE"}},
		{onFunction, "outbox.publish(text, text, " + arguments + ")", []string{"EXECUTE"}},
		{onFunction, "outbox.publish(text, jsonb, " + arguments + ")", []string{"EXECUTE"}},
	}
}

func relayPrivileges() []privilege {
	privileges := []privilege{
		{onSchema, "outbox", []string{"USAGE"}},
		{onTable, "outbox.migrations", []string{"SELECT"}},
		{onTable, "outbox.messages", []string{"SELECT"}},
		{onTable, "outbox.inbox_messages", []string{"SELECT"}},
		{onSequence, "outbox.messages_id_seq", []string{"SELECT"}}, // to see that it isn't behind
		{onSequence, "outbox.inbox_messages_id_seq", []string{"SELECT"}},
	}
	// TRUNCATE also lets it take the ACCESS EXCLUSIVE lock that retention decides under.
	for i := range segments {
		privileges = append(privileges, privilege{onTable, fmt.Sprintf("outbox.messages_%d", i), []string{"SELECT", "TRUNCATE"}},
			privilege{onTable, fmt.Sprintf("outbox.inbox_messages_%d", i), []string{"SELECT", "TRUNCATE"}})
	}
	for _, table := range []string{"cursors", "brokers", "slots", "relays", "holds", "dead_letters", "unselected", "jobs",
		"job_messages", "job_pages", "trash", "members", "moves"} {
		privileges = append(privileges, privilege{onTable, "outbox." + table, []string{"SELECT", "INSERT", "UPDATE", "DELETE"}})
	}
	return append(privileges, privilege{onTable, "outbox.controls", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
		privilege{onTable, "outbox.tables", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
		privilege{onTable, "outbox.tables_acknowledged", []string{"SELECT", "INSERT", "UPDATE", "DELETE"}},
		privilege{onTable, "outbox.audit", []string{"SELECT", "INSERT"}})
}

func viewerPrivileges() []privilege {
	privileges := []privilege{{onSchema, "outbox", []string{"USAGE"}}}
	for _, table := range []string{"migrations", "cursors", "brokers", "slots", "relays", "unselected", "controls", "tables",
		"tables_acknowledged", "audit", "jobs", "job_messages", "job_pages", "inbox", "inbox_rotation", "inbox_positions", "inbox_gaps",
		"members", "moves"} {
		privileges = append(privileges, privilege{onTable, "outbox." + table, []string{"SELECT"}})
	}
	const common = "message_id, topic, key, shard, aggregate_type, aggregate_id, event_type, content_type, headers, deliver_at, created_at"
	const kept = "destination, lane, id, " + common + ", attempts, error, original"
	const dead = kept + ", reason, dead_at, acknowledged_at, acknowledged_by, deaths, fingerprint"
	return append(privileges,
		privilege{onTable, "outbox.messages", []string{"SELECT (xid, id, segment, " + common + ")"}},
		privilege{onTable, "outbox.inbox_messages", []string{"SELECT (xid, id, segment, " + common + ")"}},
		privilege{onTable, "outbox.holds", []string{"SELECT (" + kept + ", retry_at, held_at, deaths, job)"}},
		privilege{onTable, "outbox.dead_letters", []string{"SELECT (" + dead + ")"}},
		privilege{onTable, "outbox.trash", []string{"SELECT (" + dead + ", job, trashed_at)"}},
	)
}

// MaySQL returns the condition that this role has all these rights on a table of the outbox; false if there is no such
// table. It reads the catalogue, because to_regclass fails for a role that may not use the schema.
func MaySQL(table string, rights ...string) string {
	may := "has_schema_privilege(n.oid, 'USAGE')"
	for _, right := range rights {
		may += " AND has_table_privilege(c.oid, '" + right + "')"
	}
	return "EXISTS (SELECT FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid " +
		"WHERE n.nspname = 'outbox' AND c.relname = '" + table + "' AND " + may + ")"
}
