package mapped

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/admin/health"
	"github.com/pgoutbox/outbox/admin/jobs"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/internal/testdb"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/relaytest"
	"github.com/pgoutbox/outbox/schema"
)

// The matrix has a test for each preset, strategy (the log is one), start, and event. In each, every row is delivered
// with the same bytes and in the order of its key, or is a dead letter with its reason, or was taken away by others;
// what `outbox status` concludes is true; and the server's log has no error of ours but those that the event names.
//
// OUTBOX_MATRIX=full runs all of them. Otherwise a few run that have each pair of values.

// cell is one of them.
type cell struct {
	preset   mapping.Preset
	strategy string
	start    string
	event    *matrixEvent
	kind     int // of the table's types

	*testing.T
	db       testdb.DB
	conn     *pgx.Conn // of a superuser, with the time zone of the database
	mapping  mapping.Mapping
	table    *matrixTable
	letter   string
	broker   *relaytest.Memory
	rows     []*matrixRow
	released bool
	changes  bool // the event locks the table
	stop     func() error
	logged   int64 // where this cell's part of the server's log begins
}

func (c *cell) name() string {
	return fmt.Sprintf("%s/%s/%s/%s/%d", c.preset.Name, c.strategy, c.start, c.event.name, c.kind)
}

// values are what a pair is made of. Presets of outbox_messages have one layout, and differ in their strategies.
func (c *cell) values() []string {
	layout := c.preset.Name
	if strings.HasPrefix(layout, "outbox_messages") {
		layout = "outbox_messages"
	}
	strategy := c.strategy
	if c.mapping.Claim.Status != "" {
		strategy += " by status"
	}
	return []string{"p " + layout, "s " + strategy, "b " + c.start, "e " + c.event.name, fmt.Sprint("k ", c.kind)}
}

// matrixStarts are what a table holds, and what becomes of it, when the event happens.
var matrixStarts = []string{
	"empty",
	"drained",
	"in flight", // a call to the broker has begun with one row
	"backlog",   // is being delivered
	"later",     // all rows wait for their time
	"blocked",   // the broker refuses the head of each key
}

func matrixCells() (all []*cell) {
	for _, p := range mapping.Presets() {
		for _, strategy := range mapping.Strategies() {
			m, ok := matrixMapping(p, strategy)
			if !ok {
				continue
			}
			for _, start := range matrixStarts {
				for i := range matrixEvents {
					e := &matrixEvents[i]
					for kind := range 3 {
						c := &cell{preset: p, strategy: strategy, start: start, event: e, kind: kind, mapping: m,
							table: newMatrixTable(p, m, kind)}
						if e.columns == nil || len(e.columns(c)) > 0 {
							all = append(all, c)
						}
					}
				}
			}
		}
	}
	return all
}

// pairwise selects cells that have each pair of values that any has.
func pairwise(all []*cell) (some []*cell) {
	numbers := make(map[string]int) // of pairs
	pairs := make([][]int, len(all))
	for i, c := range all {
		values := c.values()
		for a := range values {
			for b := range a {
				name := values[a] + "|" + values[b]
				if _, known := numbers[name]; !known {
					numbers[name] = len(numbers)
				}
				pairs[i] = append(pairs[i], numbers[name])
			}
		}
	}
	covered, left := make([]bool, len(numbers)), len(numbers)
	for left > 0 {
		best, most := 0, 0
		for i := range all {
			n := 0
			for _, p := range pairs[i] {
				if !covered[p] {
					n++
				}
			}
			if n > most {
				best, most = i, n
			}
		}
		for _, p := range pairs[best] {
			if !covered[p] {
				covered[p] = true
				left--
			}
		}
		some = append(some, all[best])
	}
	return some
}

// each selects every combination of preset, strategy, start and event, with one kind of table after the other.
func each(all []*cell) (some []*cell) {
	same := func(a, b *cell) bool {
		return a.preset.Name == b.preset.Name && slices.Equal(a.values()[:4], b.values()[:4])
	}
	for from, to := 0, 0; from < len(all); from = to {
		for to = from + 1; to < len(all) && same(all[from], all[to]); to++ {
		}
		some = append(some, all[from+len(some)%(to-from)])
	}
	return some
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	all := matrixCells()
	cells := pairwise(all)
	switch os.Getenv("OUTBOX_MATRIX") {
	case "full":
		cells = each(all)
	}
	rand.Shuffle(len(cells), func(i, j int) { cells[i], cells[j] = cells[j], cells[i] })
	t.Logf("%d of %d cells", len(cells), len(all))
	room := &matrixRoom{T: t, server: servers.TestPostgres(t, matrixServer), free: make(map[string][]testdb.DB)}
	if room.server.LogFile() == "" {
		t.Fatal("the server's log can't be read")
	}
	testdb.New(t, matrixServer).Exec(`DO $$ BEGIN CREATE ROLE matrix_relay LOGIN REPLICATION; EXCEPTION WHEN duplicate_object THEN END $$`)
	for _, c := range cells {
		t.Run(c.name(), func(t *testing.T) {
			t.Parallel()
			c.T = t
			c.run(room)
		})
	}
}

// matrixServer is a server of our own, whose log can be read.
var matrixServer = servers.PostgresConfig{Settings: map[string]string{"log_error_verbosity": "terse"}}

// matrixRoom has the databases that cells use one after the other.
type matrixRoom struct {
	*testing.T
	server *servers.Postgres
	mu     sync.Mutex
	free   map[string][]testdb.DB // by their encoding
}

func (r *matrixRoom) take(t *testing.T, encoding string) testdb.DB {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.free[encoding]); n > 0 {
		db := r.free[encoding][n-1]
		r.free[encoding] = r.free[encoding][:n-1]
		return testdb.DB{T: t, URL: db.URL}
	}
	db := testdb.New(r.T, matrixServer)
	if encoding != "" {
		db = db.NewEncoded(encoding)
	}
	conn := db.Connect()
	if _, err := schema.Up(r.Context(), conn, schema.UpConfig{}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(r.Context(), schema.Grants("", "matrix_relay", "")); err != nil {
		t.Fatal(err)
	}
	r.Cleanup(db.DropSlots)
	return testdb.DB{T: t, URL: db.URL}
}

// wipeSQL makes a database what it was before a cell.
const wipeSQL = `DROP SCHEMA IF EXISTS public, p2p CASCADE; CREATE SCHEMA public; DELETE FROM outbox.tables;
	DO $$ DECLARE p text; BEGIN
		FOR p IN SELECT pubname FROM pg_publication LOOP EXECUTE format('DROP PUBLICATION %I', p); END LOOP;
		EXECUTE format('ALTER ROLE matrix_relay IN DATABASE %I RESET ALL', current_database());
		EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
	END $$;`

func (c *cell) exec(sql string, args ...any) {
	c.Helper()
	if _, err := c.conn.Exec(c.Context(), sql, args...); err != nil {
		c.Fatalf("%s: %v", sql, err)
	}
}

func (c *cell) run(room *matrixRoom) {
	c.db = room.take(c.T, c.event.encoding)
	if info, err := os.Stat(room.server.LogFile()); err == nil {
		c.logged = info.Size()
	}
	c.letter = cmp.Or(c.event.letter, "ü")
	c.broker = relaytest.NewMemory()
	c.broker.Fail("dead", -1, outbox.Permanent(errors.New("never")))
	c.prepare()
	c.begin()
	if c.event.do != nil {
		c.event.do(c)
	}
	c.release()
	for n := range 4 {
		c.insert(fmt.Sprint("k", n%2+1), "")
	}
	c.awaitAll()
	c.verdict("all is delivered", func(v health.Verdict) bool { return v.State == health.StateIdle })
	c.insert("dead", "").dead = "never"
	if c.event.odd != "" {
		c.insertOdd()
	}
	c.awaitDead()
	c.verdict("there is a dead letter", func(v health.Verdict) bool { return v.State == health.StateDead })
	if err := c.stop(); err != nil {
		c.Errorf("the relay ended: %v", err)
	}
	c.check()
	c.checkLog(room.server.LogFile())
	if !c.Failed() {
		// A statement that the client has left would not find its table.
		c.db.Await(`SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND usename = 'matrix_relay'`)
		c.db.DropSlots()
		c.exec(wipeSQL)
		room.mu.Lock()
		room.free[c.event.encoding] = append(room.free[c.event.encoding], c.db)
		room.mu.Unlock()
	}
}

// prepare makes the table and what the relay's role may do.
func (c *cell) prepare() {
	var settings []string
	for _, s := range c.event.settings {
		settings = append(settings, "EXECUTE format('ALTER ROLE matrix_relay IN DATABASE %I SET "+
			strings.ReplaceAll(s, "'", "''")+"', current_database())")
	}
	if c.event.zone != "" {
		settings = append(settings, "EXECUTE format('ALTER DATABASE %I SET timezone = ''"+c.event.zone+"''', current_database())")
	}
	db := c.db.Connect()
	if _, err := db.Exec(c.Context(), wipeSQL+matrixDDL+"; DO $$ BEGIN "+strings.Join(append(settings, ""), "; ")+" END $$"); err != nil {
		c.Fatal(err)
	}
	c.conn = c.db.Connect()
	c.exec("SET client_encoding = 'UTF8'")
	c.exec(c.table.ddl() + "GRANT USAGE ON SCHEMA public, p2p TO matrix_relay; GRANT SELECT, UPDATE, DELETE ON " + c.table.name +
		" TO matrix_relay; GRANT SELECT, INSERT ON dead_rows TO matrix_relay")
	if o := c.table.m.Offsets.Table; o != "" {
		c.exec("GRANT SELECT, INSERT, UPDATE ON " + o + " TO matrix_relay")
	}
	if c.strategy == mapping.Replication {
		name, _ := mapping.ParseTableName(c.table.name)
		name.Schema = cmp.Or(name.Schema, "public")
		c.exec(mapping.CreatePublicationSQL("rows", name))
		c.exec(mapping.CreateSlotSQL(c.slot()))
	}
}

func (c *cell) slot() string { return c.conn.Config().Database }

// begin begins with what the table has at the start, and returns when the event may happen.
func (c *cell) begin() {
	switch c.start {
	case "drained":
		for n := range 3 {
			c.insert(fmt.Sprint("k", n%2+1), "")
		}
	case "in flight":
		c.broker.Freeze()
		c.insert("k1", "")
	case "backlog":
		c.broker.Delay(5 * time.Millisecond)
		for n := range 30 {
			c.insert(fmt.Sprint("k", n%3+1), "")
		}
	case "later":
		for n := range 3 {
			c.insert(fmt.Sprint("k", n%2+1), "now() + interval '1.5 s'")
		}
	case "blocked":
		for n := range 4 {
			c.broker.Fail(fmt.Sprint("k", n%2+1), -1, errors.New("not yet"))
			c.insert(fmt.Sprint("k", n%2+1), "")
		}
	}
	c.runRelay()
	idle := func(v health.Verdict) bool { return v.State == health.StateIdle }
	switch c.start {
	case "empty":
		c.verdict("the table is empty", idle)
	case "drained":
		c.awaitAll()
		c.verdict("the table is drained", idle)
	case "in flight":
		c.wait("a call has begun", func() bool { _, waiting := c.broker.Calls(); return waiting > 0 })
	case "backlog":
		c.wait("some came", func() bool { return len(c.broker.Messages()) > 5 })
	case "later":
		c.verdict("rows wait for their time", func(v health.Verdict) bool { return v.State.OK() })
	case "blocked":
		c.verdict("the broker refuses", func(v health.Verdict) bool { return v.State == health.StateFailing })
	}
}

// release lets the broker take what it has refused or kept waiting.
func (c *cell) release() {
	if c.released {
		return
	}
	c.released = true
	c.broker.Thaw()
	c.broker.Delay(0)
	for n := range 2 {
		c.broker.Fail(fmt.Sprint("k", n+1), 0, nil)
	}
}

// runRelay begins a relay. c.stop ends it.
func (c *cell) runRelay() {
	conn := c.db.Config()
	conn.User = "matrix_relay"
	source, err := Open(c.strategy, conn, c.mapping, Config{Name: "one", Destination: "shop", LagObjective: time.Minute,
		PollIdle: 20 * time.Millisecond, Slot: c.slot(), Publication: "rows"})
	if err != nil {
		c.Fatal(err)
	}
	soon := relay.Backoff{Initial: 20 * time.Millisecond, Max: 50 * time.Millisecond}
	r, err := relay.New(source, c.broker, relay.Config{Name: "shop", Batch: 4, MaxAttempts: 10000, HoldAfter: 10 * time.Millisecond,
		Backoff: soon, Outage: soon})
	if err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	c.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	c.Cleanup(func() { _ = c.stop() })
}

// insert writes a row.
func (c *cell) insert(key, due string) *matrixRow {
	c.Helper()
	values, r := c.table.values(len(c.rows)+1, key, c.letter, due)
	c.insertRow(values, r)
	return r
}

func (c *cell) insertRow(values map[string]string, r *matrixRow) {
	c.Helper()
	var names, list []string
	for name, value := range values {
		if value == "''" && name == "note" {
			continue
		}
		if c.columnType(name) == "bytea" {
			value = "convert_to(" + value + ", 'UTF8')"
		}
		names, list = append(names, fmt.Sprintf("%q", name)), append(list, value)
	}
	created := "NULL"
	if c.table.m.CreatedAt != "" {
		created = fmt.Sprintf("CASE WHEN %[1]q BETWEEN '0001-01-02' AND '9999-12-30' "+
			"THEN (extract(epoch FROM %[1]q::timestamptz) * 1000000)::bigint END",
			c.table.m.CreatedAt)
	}
	var at *int64
	err := c.conn.QueryRow(c.Context(), "INSERT INTO "+c.table.name+" ("+strings.Join(names, ", ")+") VALUES ("+strings.Join(list, ", ")+
		fmt.Sprintf(") RETURNING %q::text, ", c.table.m.ID)+created).Scan(&r.ID, &at)
	if err != nil {
		c.Fatalf("insert %v: %v", values, err)
	}
	if at != nil {
		r.want += fmt.Sprint("|", *at)
	}
	c.rows = append(c.rows, r)
}

// columnType is what a column has become.
func (c *cell) columnType(name string) string {
	altered := 0
	if c.event.alters != nil && slices.Contains(c.event.alters(c.table), name) && c.released {
		altered = 1
	}
	if c.table.classes[name] == "" {
		return "text"
	}
	return c.table.typeOf(name, altered)
}

func (c *cell) wait(what string, until func() bool) {
	c.Helper()
	ctx := await.Context(c)
	if c.broker.Wait(ctx, until) != nil {
		v := c.status()
		c.Fatalf("in vain waited until %s; the verdict is: %s", what, v.Sentence())
	}
}

func (c *cell) status() health.Verdict {
	c.Helper()
	r, err := health.Status(c.Context(), c.conn)
	if err != nil {
		c.Fatal(err)
	}
	return r.Verdict
}

// verdict waits until what `outbox status` concludes is so.
func (c *cell) verdict(when string, so func(v health.Verdict) bool) {
	c.Helper()
	var v health.Verdict
	await.UntilElse(c, func() bool {
		v = c.status()
		return so(v)
	}, func() string { return fmt.Sprintf("when %s, another verdict than: %s %+v", when, v.Sentence(), v.Also) })
}

// numberOf is that of the row that a payload is of.
func numberOf(payload []byte) (n int) {
	var of struct{ N int }
	_ = json.Unmarshal(payload, &of)
	return of.N
}

func (c *cell) counts() map[int]int {
	counts := make(map[int]int)
	for _, m := range c.broker.Messages() {
		counts[numberOf(m.Payload)]++
	}
	return counts
}

// awaitAll waits until every row is delivered that must be.
func (c *cell) awaitAll() {
	c.Helper()
	c.wait("all is delivered", func() bool {
		counts := c.counts()
		return !slices.ContainsFunc(c.rows, func(r *matrixRow) bool {
			return r.dead == "" && !r.gone && counts[r.n] <= r.repeats
		})
	})
}

// awaitDead waits until every dead letter is there, with its reason.
func (c *cell) awaitDead() {
	c.Helper()
	rows := c.rows
	await.Until(c, "dead letters", func() bool {
		list, err := jobs.DeadRows(c.Context(), c.conn, jobs.RowSelection{Destination: "shop"}, 0)
		if err != nil {
			c.Fatal(err)
		}
		found := 0
		for _, r := range rows {
			if r.dead != "" && slices.ContainsFunc(list, func(d jobs.DeadRow) bool {
				return d.ID == r.ID && strings.Contains(d.Error, r.dead)
			}) {
				found++
			}
		}
		return found == len(slices.DeleteFunc(slices.Clone(rows), func(r *matrixRow) bool { return r.dead == "" }))
	})
}

// matrixIDs are the ids of messages, by preset and row: they are the same by each strategy.
var matrixIDs sync.Map

// check compares what came with the rows.
func (c *cell) check() {
	last := make(map[string]int)
	seen := make(map[int]bool)
	for _, m := range c.broker.Messages() {
		n := numberOf(m.Payload)
		if n < 1 || n > len(c.rows) {
			c.Errorf("a message that no row is of: %+v", m)
			continue
		}
		r := c.rows[n-1]
		var headers []string
		for _, h := range m.Headers {
			headers = append(headers, h.Name+"="+h.Value)
		}
		got := strings.Join([]string{m.Topic, m.Key, m.AggregateType, m.AggregateID, m.EventType, strings.Join(headers, " ")}, "|")
		if strings.Count(r.want, "|") > strings.Count(got, "|") { // brokers know the time
			got += fmt.Sprint("|", m.CreatedAt.UnixMicro())
		}
		if got != r.want || !slices.Contains(r.payloads, string(m.Payload)) || r.dead != "" {
			c.Errorf("row %d came as\n%s %s, want\n%s %q", n, got, m.Payload, r.want, r.payloads)
		}
		if id, known := matrixIDs.LoadOrStore(fmt.Sprint(c.preset.Name, c.letter, r.ID, n), m.ID); known && id != m.ID {
			c.Errorf("row %d has the message id %v, elsewhere %v", n, m.ID, id)
		}
		// By other strategies, and by ids that are chosen before a transaction waits, there is no order to keep.
		ordered := c.table.numbered() && c.strategy != mapping.XMin
		if !seen[n] && ordered && n < last[r.key] {
			c.Errorf("row %d of key %s came after row %d", n, r.key, last[r.key])
		}
		seen[n], last[r.key] = true, max(last[r.key], n)
	}
}

var logLine = regexp.MustCompile(`^\S+ \S+ \S+ \[\d+\] (.*)@(\S*) (ERROR|FATAL|PANIC):  (.*)`)

// expected are the errors of a session whose relay is told to stop, and of one whose transactions an ALTER TABLE waits
// for.
func (c *cell) expected() []string {
	errs := append([]string{"canceling statement due to user request"}, c.event.provokes...)
	if c.changes && c.strategy == mapping.SkipLocked {
		errs = append(errs, "canceling statement due to lock timeout")
	}
	return errs
}

// checkLog looks for errors of the relay in the server's log.
func (c *cell) checkLog(path string) {
	file, err := os.Open(path)
	if err != nil {
		c.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Seek(c.logged, 0); err != nil {
		c.Fatal(err)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		c.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		m := logLine.FindStringSubmatch(line)
		if m == nil || m[2] != c.db.Config().Database {
			continue
		}
		if !slices.ContainsFunc(c.expected(), func(p string) bool { return regexp.MustCompile(p).MatchString(m[4]) }) {
			c.Errorf("the server's log: %s", line)
		}
	}
}
