package schema

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// EmitsOpen reports whether every role of the database may write logical messages: PostgreSQL lets PUBLIC execute
// pg_logical_emit_message until a superuser revokes that. revoke is the statement to run, "" if it has been run.
func EmitsOpen(ctx context.Context, q Querier) (revoke string, err error) {
	err = q.QueryRow(ctx, `SELECT coalesce(string_agg(format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC;', p.oid::regprocedure), ' ' ORDER BY p.oid), '')
FROM pg_catalog.pg_proc p
WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::regnamespace
	AND EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0 AND a.privilege_type = 'EXECUTE')`).Scan(&revoke)
	if err != nil {
		return "", fmt.Errorf("ask who may write logical messages: %w", err)
	}
	return revoke, nil
}

// EmitterGrants prints the statements that let a role, and besides those named before no other, write messages to the
// log alone (Writer.Emit of package outbox). A superuser runs them, for the function is the server's; they may be run
// again.
func EmitterGrants(emitter string) string {
	name := pgx.Identifier{emitter}.Sanitize()
	// The function's arguments differ by the server's version.
	body := `DECLARE f regprocedure;
BEGIN
	FOR f IN SELECT oid FROM pg_catalog.pg_proc WHERE proname = 'pg_logical_emit_message' AND pronamespace = 'pg_catalog'::regnamespace LOOP
		EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', f);
		EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', f, ` + QuoteLiteral(emitter) + `);
	END LOOP;
END`
	return "-- Emitter: a service that writes messages to the write-ahead log alone. A superuser runs this.\n" +
		"GRANT USAGE ON SCHEMA outbox TO " + name + ";\nGRANT USAGE ON SEQUENCE outbox.messages_id_seq TO " + name +
		";\nDO " + QuoteLiteral(body) + ";\n\n"
}

const maxName = 63

// SlotName is the default name of a destination's slot. Slots belong to the whole server, so the name has the database
// and the destination: outbox_DATABASE_DESTINATION. A name from which the two could not be read again, because
// something had to be replaced or left out, or because the database has an underscore, ends with a part of their hash.
// So two destinations never have one name.
func SlotName(database, destination string) string {
	full := "outbox_" + database + "_" + destination
	plain := strings.Map(func(c rune) rune {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return '_'
		}
		return c
	}, strings.ToLower(full))
	if plain == full && len(full) <= maxName && !strings.Contains(database, "_") {
		return full
	}
	hash := sha256.Sum256([]byte(database + "\x00" + destination))
	end := "_" + hex.EncodeToString(hash[:4])
	return plain[:min(len(plain), maxName-len(end))] + end
}
