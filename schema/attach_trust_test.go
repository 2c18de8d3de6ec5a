package schema

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// What runs in the trigger and is somebody's own code, such as a cast of a type, notes in the table ran by whose
// rights. The owner of a table never gets the rights of the role that attached it, nor does a later owner.
func TestCodeOfATablesOwnerHasTheOwnersRights(t *testing.T) {
	onEachMajor(t, func(t *testing.T, url string) {
		super := connect(t, url)
		install(t, super)
		owner, heir, app := super.Config().Database+" owner", super.Config().Database+" heir", super.Config().Database+" app"
		quoted := func(role string) string { return pgx.Identifier{role}.Sanitize() }
		for _, role := range []string{owner, heir, app} {
			createRole(t, super, role)
		}
		t.Cleanup(func() {
			if _, err := super.Exec(context.Background(), `DROP SCHEMA mine CASCADE`); err != nil {
				t.Error(err)
			}
		})
		exec(t, super, `CREATE SCHEMA mine; GRANT ALL ON SCHEMA mine TO PUBLIC; CREATE TABLE public.ran (who text); GRANT ALL ON public.ran TO PUBLIC`)
		code := func(argument, result, name string) string {
			return `CREATE FUNCTION ` + name + `(v ` + argument + `) RETURNS ` + result + ` LANGUAGE plpgsql AS
				'BEGIN INSERT INTO public.ran VALUES (current_user || '' by ` + name + `''); RETURN ''true''; END';`
		}
		ran := func() (list []string) {
			t.Helper()
			rows, err := super.Query(t.Context(), `WITH r AS (DELETE FROM public.ran RETURNING who) SELECT DISTINCT who FROM r ORDER BY 1`)
			if err == nil {
				list, err = pgx.CollectRows(rows, pgx.RowTo[string])
			}
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		as := func(role string) *pgx.Conn {
			conn := connectAs(t, url, role)
			exec(t, conn, `SET search_path = mine`)
			return conn
		}
		exec(t, super, `SET search_path = mine`)
		mal, service := as(owner), as(app)

		exec(t, mal, `CREATE TYPE col AS ENUM ('a'); CREATE DOMAIN dom AS col; CREATE TABLE t (id col PRIMARY KEY, c col, d dom, l col[]); GRANT ALL ON t TO PUBLIC`)
		if _, err := (Attachment{Table: "t"}).Plan(t.Context(), super); !errors.Is(err, ErrForbidden) ||
			!strings.Contains(err.Error(), "--writer '"+owner) {
			t.Errorf("the owner is no writer: %v", err)
		}
		exec(t, super, Grants(owner, "", ""))
		// A function that the owner of the schema made before belongs to the table's owner from then on.
		exec(t, service, `CREATE FUNCTION t_outbox() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END -- outbox attach: '`)
		attach(t, super, Attachment{Table: "t"})
		exec(t, mal, code("col", "json", "to_js")+code("col", "text", "to_tx")+code("t", "text", "row_tx")+`
			CREATE CAST (col AS json) WITH FUNCTION to_js(col); CREATE CAST (col AS text) WITH FUNCTION to_tx(col); CREATE CAST (t AS text) WITH FUNCTION row_tx(t)`)
		exec(t, service, `INSERT INTO t VALUES ('a', 'a', 'a', '{a}')`)
		exec(t, mal, `ALTER TABLE t RENAME id TO gone`)
		exec(t, service, `UPDATE t SET c = NULL`)
		if got := ran(); !slices.Equal(got, []string{owner + " by to_js", owner + " by to_tx"}) {
			t.Errorf("of the owner's code ran %q", got)
		}

		// A table with a type of somebody else's.
		exec(t, super, `CREATE TABLE u (id int PRIMARY KEY, c mine.col[], r int)`)
		if _, err := (Attachment{Table: "u"}).Plan(t.Context(), super); !errors.Is(err, ErrForbidden) ||
			!strings.Contains(err.Error(), `ALTER TYPE col OWNER TO "postgres"`) {
			t.Errorf("a type is somebody else's: %v", err)
		}
		attach(t, super, Attachment{Table: "u", Columns: []string{"id"}})

		// A table that somebody else has got, and a function that somebody else may use.
		exec(t, super, `CREATE TABLE w (id int PRIMARY KEY)`)
		attach(t, super, Attachment{Table: "w"})
		exec(t, super, `GRANT EXECUTE ON FUNCTION w_outbox() TO PUBLIC; ALTER TABLE w OWNER TO `+quoted(heir))
		exec(t, as(heir), code("mine.col", "json", "heirs")+`ALTER TABLE w ALTER id TYPE mine.col USING 'a'; CREATE TABLE own (id mine.col);
			CREATE TRIGGER b AFTER INSERT ON own FOR EACH ROW EXECUTE FUNCTION w_outbox(); INSERT INTO w VALUES ('a'); INSERT INTO own VALUES ('a')`)
		if got := ran(); len(got) > 0 {
			t.Errorf("of the heir's code ran %q", got)
		}
		list := written(t, super)
		for _, m := range list[len(list)-2:] {
			if m != "w outbox attach: the table has another owner than its trigger; if columns changed, run outbox attach again (a)" {
				t.Errorf("got %s", m)
			}
		}
		if _, err := (Attachment{Table: "w", Columns: []string{"id"}}).Plan(t.Context(), as(heir)); err == nil ||
			!strings.Contains(err.Error(), `ALTER FUNCTION mine.w_outbox() OWNER TO "`+heir) {
			t.Errorf("the function is somebody else's: %v", err)
		}

		// A session's own types don't stand for the trigger's, nor for those of what it calls.
		exec(t, super, `CREATE TABLE v (id int PRIMARY KEY)`)
		for _, invalid := range []string{"bury", "refuse"} {
			attach(t, super, Attachment{Table: "v", Invalid: invalid})
			exec(t, super, `GRANT INSERT ON v TO PUBLIC`)
			session := as(app)
			for _, name := range []string{"uuid", "text", "jsonb", "json", "bytea"} {
				exec(t, session, code("pg_catalog."+name, "boolean", "pg_temp.check_"+name)+
					`CREATE DOMAIN pg_temp.`+name+` AS pg_catalog.`+name+` CHECK (pg_temp.check_`+name+`(value))`)
			}
			exec(t, session, `INSERT INTO v VALUES (`+map[string]string{"bury": "1", "refuse": "2"}[invalid]+`)`)
			if got := ran(); len(got) > 0 {
				t.Errorf("of the session's code ran %q", got)
			}
		}
	})
}

// A role makes temporary types at will. A function of the outbox finds its own types first, also where another
// function calls it with more rights.
func TestNoFunctionOfTheOutboxFindsATemporaryType(t *testing.T) {
	onEachMajor(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		install(t, conn)
		rows, err := conn.Query(t.Context(), `SELECT oid::regprocedure::text FROM pg_proc
			WHERE pronamespace = 'outbox'::regnamespace AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)`)
		if err != nil {
			t.Fatal(err)
		}
		if list, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(list) > 0 {
			t.Errorf("%q: %v", list, err)
		}
	})
}
