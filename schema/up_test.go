package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/sqlstate"
)

// withOneMore is the program's migrations and one more, as a later release would have.
func withOneMore(t *testing.T, sql string) []Migration {
	t.Helper()
	known := Migrations()
	files := fstest.MapFS{}
	for _, m := range known {
		files[fmt.Sprintf("migrations/%s.sql", m)] = &fstest.MapFile{Data: []byte(m.SQL)}
	}
	files[fmt.Sprintf("migrations/%04d_more.sql", len(known)+1)] = &fstest.MapFile{Data: []byte(sql)}
	more, err := load(files)
	if err != nil {
		t.Fatal(err)
	}
	return more
}

func TestUpInstallsAndThenFindsNothingToDo(t *testing.T) {
	t.Parallel()
	onEachMajor(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		if err := Check(t.Context(), conn); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "outbox migrate up") {
			t.Fatalf("before: %v", err)
		}
		applied, err := Up(t.Context(), conn, UpConfig{})
		if err != nil || len(applied) != Latest() {
			t.Fatalf("applied %v: %v", applied, err)
		}
		applied, err = Up(t.Context(), conn, UpConfig{})
		if err != nil || len(applied) != 0 {
			t.Fatalf("again: applied %v: %v", applied, err)
		}
		if err := Check(t.Context(), conn); err != nil {
			t.Fatalf("after: %v", err)
		}
		state, err := Status(t.Context(), conn)
		if err != nil || state.Version != Latest() || len(state.Pending) != 0 || len(state.Applied) != Latest() ||
			state.Applied[0].Name != "outbox" || time.Since(state.Applied[0].AppliedAt).Abs() > time.Hour || state.Standby {
			t.Fatalf("status %+v: %v", state, err)
		}
	})
}

func TestTenInstancesThatStartAtOnceInstallOnce(t *testing.T) {
	t.Parallel()
	onEachMajor(t, func(t *testing.T, url string) {
		known := withOneMore(t, `ALTER TABLE outbox.messages ADD COLUMN extra text;`)
		var applied atomic.Int32
		var all sync.WaitGroup
		for range 10 {
			conn := connect(t, url)
			all.Go(func() {
				mine, err := up(t.Context(), conn, UpConfig{}, known)
				applied.Add(int32(len(mine)))
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if int(applied.Load()) != len(known) {
			t.Errorf("%d migrations were applied, want %d", applied.Load(), len(known))
		}
	})
}

func TestUpWorksWhereTheDatabaseDefaultsToSerializableAndReadOnly(t *testing.T) {
	t.Parallel()
	url := servers.TestDatabase(t)
	exec(t, connect(t, url), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database());
		EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
	var all sync.WaitGroup
	for range 5 {
		conn := connect(t, url)
		all.Go(func() {
			if _, err := Up(t.Context(), conn, UpConfig{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func TestDryRunNamesWhatIsPendingAndChangesNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	pending, err := Up(t.Context(), conn, UpConfig{DryRun: true})
	if err != nil || len(pending) != Latest() {
		t.Fatalf("pending %v: %v", pending, err)
	}
	if err := Check(t.Context(), conn); !errors.Is(err, ErrMissing) {
		t.Fatalf("after the dry run: %v", err)
	}
}

func TestAMigrationThatFailsChangesNothingAndKeepsThoseBefore(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	applied, err := up(t.Context(), conn, UpConfig{}, withOneMore(t, `CREATE TABLE outbox.more (); SELECT 1/0;`))
	if err == nil || !strings.Contains(err.Error(), "_more") || len(applied) != Latest() {
		t.Fatalf("applied %v: %v", applied, err)
	}
	state, err := Status(t.Context(), conn)
	if err != nil || state.Version != Latest() {
		t.Fatalf("status %+v: %v", state, err)
	}
	var there bool
	if err := conn.QueryRow(t.Context(), `SELECT to_regclass('outbox.more') IS NOT NULL`).Scan(&there); err != nil || there {
		t.Fatalf("table of the failed migration is there: %v %v", there, err)
	}
}

func TestAMigrationDoesNotWaitLongForALockedTable(t *testing.T) {
	t.Parallel()
	url := servers.TestDatabase(t)
	conn, other := connect(t, url), connect(t, url)
	install(t, conn)
	exec(t, other, `BEGIN; LOCK TABLE outbox.messages IN ROW EXCLUSIVE MODE`)
	known := withOneMore(t, `ALTER TABLE outbox.messages ADD COLUMN extra text;`)
	_, err := up(t.Context(), conn, UpConfig{LockTimeout: await.Expiry(20 * time.Millisecond)}, known)
	if sqlstate.Of(err) != "55P03" || !strings.Contains(err.Error(), "another session held a lock on the table for 20ms") {
		t.Fatalf("want a lock timeout with its cause, got %v", err)
	}
	exec(t, other, `ROLLBACK`)
	if applied, err := up(t.Context(), conn, UpConfig{}, known); err != nil || len(applied) != 1 {
		t.Fatalf("once the lock is free: applied %v: %v", applied, err)
	}
}

func TestWaitingForAnotherInstanceIsBounded(t *testing.T) {
	t.Parallel()
	url := servers.TestDatabase(t)
	conn, other := connect(t, url), connect(t, url)
	exec(t, other, `BEGIN; `+lockSQL)
	_, err := Up(t.Context(), conn, UpConfig{Wait: await.Expiry(20 * time.Millisecond)})
	if err == nil || !strings.Contains(err.Error(), "another instance has been migrating this database for 20ms") {
		t.Fatalf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := Up(ctx, conn, UpConfig{})
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
}

func TestNonsenseTimeoutsAreRefused(t *testing.T) {
	t.Parallel()
	for _, cfg := range []UpConfig{{LockTimeout: -1}, {Wait: time.Microsecond}} {
		if _, err := Up(t.Context(), nil, cfg); err == nil || !strings.Contains(err.Error(), "at least 1ms") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestAChangedMigrationIsAnError(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	install(t, conn)
	exec(t, conn, `UPDATE outbox.migrations SET checksum = 'other'`)
	_, err := Up(t.Context(), conn, UpConfig{})
	if !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), "0001_outbox") {
		t.Errorf("up: %v", err)
	}
	if err := Check(t.Context(), conn); !errors.Is(err, ErrChanged) {
		t.Errorf("check: %v", err)
	}
}

func TestASchemaOfANewerProgramIsLeftAlone(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	if _, err := up(t.Context(), conn, UpConfig{}, withOneMore(t, `SELECT 1;`)); err != nil {
		t.Fatal(err)
	}
	// The next version is one beside which this program works: the schema is migrated before the programs are replaced.
	if applied, err := Up(t.Context(), conn, UpConfig{}); err != nil || len(applied) > 0 {
		t.Errorf("up beside the next version: %v, %v", applied, err)
	}
	if err := Check(t.Context(), conn); err != nil {
		t.Errorf("check beside the next version: %v", err)
	}
	exec(t, conn, `INSERT INTO outbox.migrations (version, name, checksum) SELECT max(version) + 1, 'further', 'x' FROM outbox.migrations`)
	if _, err := Up(t.Context(), conn, UpConfig{}); !errors.Is(err, ErrTooNew) {
		t.Errorf("up: %v", err)
	}
	if err := Check(t.Context(), conn); !errors.Is(err, ErrTooNew) || !strings.Contains(err.Error(), "use a newer program") {
		t.Errorf("check: %v", err)
	}
}

func TestASchemaOfAnOlderProgramIsOutdatedUntilItIsBroughtUp(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	if _, err := up(t.Context(), conn, UpConfig{}, Migrations()[:1]); err != nil {
		t.Fatal(err)
	}
	exec(t, conn, `SELECT outbox.publish('t', 'kept')`)
	err := Check(t.Context(), conn)
	if !errors.Is(err, ErrOutdated) || !strings.Contains(err.Error(), "outbox migrate up") {
		t.Fatal(err)
	}
	applied, err := Up(t.Context(), conn, UpConfig{})
	if err != nil || len(applied) != Latest()-1 || applied[0].Version != 2 {
		t.Fatalf("applied %v: %v", applied, err)
	}
	if err := Check(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM outbox.messages`).Scan(&n); err != nil || n != 1 {
		t.Fatalf("%d messages after the update: %v", n, err)
	}
}

func TestASchemaOutboxOfSomebodyElseIsLeftAlone(t *testing.T) {
	t.Parallel()
	conn := connect(t, servers.TestDatabase(t))
	exec(t, conn, `CREATE SCHEMA outbox; CREATE TABLE outbox.messages (id int)`)
	if err := Check(t.Context(), conn); !errors.Is(err, ErrMissing) {
		t.Errorf("check: %v", err)
	}
	if _, err := Up(t.Context(), conn, UpConfig{}); err == nil || !strings.Contains(err.Error(), "something else made") {
		t.Errorf("up: %v", err)
	}
	var there bool
	if err := conn.QueryRow(t.Context(), `SELECT to_regclass('outbox.migrations') IS NOT NULL`).Scan(&there); err != nil || there {
		t.Errorf("something was left behind: %v %v", there, err)
	}
}

func TestTheScriptForHandsDoesWhatUpDoes(t *testing.T) {
	t.Parallel()
	onEachMajor(t, func(t *testing.T, url string) {
		conn := connect(t, url)
		text, err := SQL(0, Latest())
		if err != nil {
			t.Fatal(err)
		}
		exec(t, conn, text)
		if applied, err := Up(t.Context(), conn, UpConfig{}); err != nil || len(applied) != 0 {
			t.Fatalf("after the script: applied %v: %v", applied, err)
		}
		if err := Check(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		before := tables(t, conn)
		if _, err := conn.Exec(t.Context(), text); err == nil || !strings.Contains(err.Error(), "needs a schema of version 0") {
			t.Fatalf("the script ran twice: %v", err)
		}
		exec(t, conn, `ROLLBACK`)
		if after := tables(t, conn); after != before {
			t.Fatalf("the second run changed\n%s\nto\n%s", before, after)
		}
	})
}

func tables(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	var text string
	err := conn.QueryRow(t.Context(), `SELECT string_agg(format('%s.%s %s', attrelid::regclass, attname, format_type(atttypid, atttypmod)), E'\n' ORDER BY attrelid, attnum)
		FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE relnamespace = 'outbox'::regnamespace`).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestAScriptBetweenImpossibleVersionsIsRefused(t *testing.T) {
	t.Parallel()
	for _, r := range [][2]int{{-1, 1}, {1, 0}, {0, Latest() + 1}} {
		if text, err := SQL(r[0], r[1]); err == nil {
			t.Errorf("SQL(%d, %d) = %q", r[0], r[1], text)
		}
	}
	if text, err := SQL(Latest(), Latest()); err != nil || text != "" {
		t.Errorf("nothing to do: %q, %v", text, err)
	}
}

func TestPostgreSQL13IsRefused(t *testing.T) {
	t.Parallel()
	if err := Check(t.Context(), server(130022)); !errors.Is(err, ErrUnsupportedServer) ||
		!strings.Contains(err.Error(), "it is PostgreSQL 13, and the outbox needs 14 or later") {
		t.Fatal(err)
	}
}

// server answers the first question that is asked of one, and fails at all others.
type server int

func (s server) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return nil, errors.New("asked more than the version")
}
func (s server) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row {
	return versionRow{s, strings.Contains(sql, "server_version_num")}
}

type versionRow struct {
	version server
	asked   bool
}

func (r versionRow) Scan(dest ...any) error {
	number, ok := dest[0].(*int)
	if !ok || len(dest) != 1 || !r.asked {
		return fmt.Errorf("asked more than the version: %T", dest[0])
	}
	*number = int(r.version)
	return nil
}

func TestAHotStandbyIsNamedAsTheReason(t *testing.T) {
	t.Parallel()
	primary := servers.OwnPostgres(t)
	standby := servers.OwnStandby(t, primary)
	conn := connect(t, standby.URL("postgres"))
	if _, err := Up(t.Context(), conn, UpConfig{}); !errors.Is(err, errStandby) ||
		!strings.Contains(err.Error(), "connect to the primary") {
		t.Errorf("up: %v", err)
	}
	if pending, err := Up(t.Context(), conn, UpConfig{DryRun: true}); err != nil || len(pending) != Latest() {
		t.Errorf("dry run: %v: %v", pending, err)
	}
	if state, err := Status(t.Context(), conn); err != nil || !state.Standby {
		t.Errorf("status %+v: %v", state, err)
	}
}
