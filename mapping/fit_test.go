package mapping

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// By a column that can't be empty, or false, or the status of a new row, every row looks delivered: nothing comes, and
// nothing tells. So neither the doctor proposes it nor does a relay start with it.
func TestNoMappingIsTakenByWhichRowsCanNeverWait(t *testing.T) {
	t.Parallel()
	conn, exec := connected(t)
	exec(`CREATE DOMAIN given AS timestamptz NOT NULL; CREATE DOMAIN still_given AS given; CREATE DOMAIN at_once AS timestamptz DEFAULT now();
		CREATE DOMAIN later AS timestamptz CHECK (VALUE IS NOT NULL); CREATE DOMAIN nullable AS timestamptz;
		CREATE TYPE state AS ENUM ('pending', 'sent'); CREATE DOMAIN state_of AS state;
		CREATE DOMAIN word AS text CHECK (VALUE IN ('new', 'done')); CREATE DOMAIN brief AS varchar(4);
		CREATE FUNCTION strict_check(text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS
			$$ BEGIN IF $1 <> 'open' THEN RAISE 'no'; END IF; RETURN true; END $$`)
	when := Done{How: DoneTimestamp, Column: "sent"}
	flag := Done{How: DoneBoolean, Column: "sent"}
	word := Done{How: DoneStatus, Column: "sent", Waiting: "new", Value: "done"}
	named := Done{How: DoneStatus, Column: "sent", Waiting: "pending", Value: "sent"}
	for column, test := range map[string]struct {
		done   Done
		reason string // empty: it is taken
	}{
		"timestamptz":                          {when, ""},
		"timestamp DEFAULT NULL":               {when, ""},
		"nullable":                             {when, ""},
		"timestamptz NOT NULL":                 {when, "NOT NULL"},
		"given":                                {when, "NOT NULL"},
		"still_given":                          {when, "NOT NULL"},
		"timestamptz DEFAULT now()":            {when, "has the default now()"},
		"timestamp DEFAULT 'infinity'":         {when, "has the default 'infinity'"},
		"at_once":                              {when, "has the default now()"},
		"timestamptz CHECK (sent IS NOT NULL)": {when, "can't be NULL, which means waiting"},
		"later":                                {when, "can't be NULL, which means waiting"},
		"timestamptz CHECK (sent < '2020-01-01')":       {when, "can't be now(), which means done"},
		"timestamptz CHECK (sent > '2020-01-01')":       {when, ""},
		"timestamptz GENERATED ALWAYS AS (NULL) STORED": {when, "is generated"},
		"boolean":                               {flag, ""},
		"boolean NOT NULL DEFAULT false":        {flag, ""},
		"boolean NOT NULL":                      {flag, ""},
		"boolean NOT NULL DEFAULT true":         {flag, "has the default true"},
		"boolean CHECK (sent)":                  {flag, ""}, // NULL waits
		"boolean CHECK (coalesce(sent, false))": {flag, "can't be false or NULL, which means waiting"},
		"boolean CHECK (NOT sent)":              {flag, "can't be true, which means done"},
		"boolean GENERATED ALWAYS AS (payload IS NOT NULL) STORED": {flag, "is generated"},
		"text":                                    {word, ""},
		"word NOT NULL DEFAULT 'new'":             {word, ""},
		"text DEFAULT 'done'":                     {word, "has the default 'done'"},
		"text CHECK (sent IN ('new', 'sent'))":    {word, "can't be 'done', which means done"},
		"text CHECK (sent IN ('open', 'done'))":   {word, "can't be 'new', which means waiting"},
		"text CHECK (strict_check(sent))":         {word, "can't be 'new', which means waiting"},
		"varchar(3) DEFAULT 'new'":                {word, `too short for "done"`},
		"brief":                                   {word, ""},
		"state":                                   {word, `has no value "new"`},
		"state_of":                                {word, `has no value "done"`},
		"text GENERATED ALWAYS AS ('new') STORED": {word, "is generated"},
		"state DEFAULT 'sent'":                    {named, "has the default 'sent'"},
	} {
		exec("DROP TABLE IF EXISTS own")
		exec("CREATE TABLE own (id bigserial PRIMARY KEY, topic text, payload text, sent " + column + ")")
		table, err := ReadTable(t.Context(), conn, TableName{Name: "own"})
		must(t, err)
		m := Mapping{Table: "own", ID: "id", Topic: "{topic}", Payload: "payload", Done: test.done}
		if err = m.Fit(table); err == nil {
			err = m.Allowed(t.Context(), conn, table)
		}
		if test.reason == "" && err != nil ||
			test.reason != "" && (!errors.Is(err, ErrMapping) || !strings.Contains(err.Error(), test.reason)) {
			t.Errorf("%s: got %v, want %q", column, err, test.reason)
		}
		if test.done.How == DoneStatus {
			continue // the doctor can't guess its values
		}
		exec("ALTER TABLE own RENAME sent TO " + map[DoneHow]string{DoneTimestamp: "sent_at", DoneBoolean: "sent"}[test.done.How] + "_")
		r, err := Doctor(t.Context(), conn, "own")
		if err != nil || (len(r.Faults) > 0) != (test.reason != "") {
			t.Errorf("%s: doctor proposes %+v with the faults %q, %v", column, r.Mapping.Done, r.Faults, err)
		}
	}
	exec(`DROP TABLE own; CREATE TABLE own (id bigserial PRIMARY KEY, topic text, payload text,
		processed_at timestamptz NOT NULL, sent_at timestamptz)`)
	if r, err := Doctor(t.Context(), conn, "own"); err != nil || r.Mapping.Done.Column != "sent_at" || len(r.Faults) > 0 {
		t.Errorf("beside a column that every row has, doctor proposes %+v with the faults %q, %v", r.Mapping.Done, r.Faults, err)
	}
}

// Functions in a CHECK are the application's: what they can't tell is no fault, and a superuser who asks doesn't lend
// them its rights.
func TestAConditionThatCanNotBeEvaluatedIsNoFault(t *testing.T) {
	t.Parallel()
	conn, exec := connected(t)
	var owner string
	const name = "SELECT 'owner_' || oid FROM pg_database WHERE datname = current_database()"
	must(t, conn.QueryRow(t.Context(), name).Scan(&owner))
	exec(`CREATE ROLE ` + owner)
	t.Cleanup(func() {
		_, err := conn.Exec(context.Background(), `DROP OWNED BY `+owner+`; DROP ROLE `+owner)
		if err != nil {
			t.Error(err)
		}
	})
	for body, refused := range map[string]bool{
		`RAISE ''no'' USING ERRCODE = ''ZZ001''`: false,
		`CREATE TABLE made ()`:                   false, // it only reads
		`RAISE ''no''`:                           true,
		`IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN RAISE ''super''; END IF`: false,
	} {
		exec(`DROP TABLE IF EXISTS own`)
		exec(`CREATE OR REPLACE FUNCTION fine(text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN ` + body + `; RETURN true; END'`)
		exec(`CREATE TABLE own (id bigserial PRIMARY KEY, topic text, payload text, sent text CHECK (fine(sent)))`)
		exec(`ALTER TABLE own OWNER TO ` + owner)
		table, err := ReadTable(t.Context(), conn, TableName{Name: "own"})
		must(t, err)
		m := Mapping{Table: "own", ID: "id", Topic: "{topic}", Payload: "payload",
			Done: Done{How: DoneStatus, Column: "sent", Waiting: "new", Value: "done"}}
		if err := m.Allowed(t.Context(), conn, table); errors.Is(err, ErrMapping) != refused || err != nil && !refused {
			t.Errorf("%s: %v", body, err)
		}
	}
}
