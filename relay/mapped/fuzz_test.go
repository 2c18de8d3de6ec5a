package mapped

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/mapping"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/schema"
)

// What the bytes of a fuzzer's input choose from.
var (
	fuzzTypes     = append(slices.Sorted(maps.Keys(samples)), varying...) // pick the header
	fuzzPayloads  = []string{"text", "bytea", "json", "jsonb", "varchar(2000)", "raw"}
	fuzzKeys      = []string{"text", "bytea", "bigint", "uuid", "char(9)", "mood", "varchar(40)", "fixed", "raw"}
	fuzzTimes     = []string{"timestamptz", "timestamp", "timestamp(0)", "instant", "timestamptz(2)"}
	fuzzZones     = []string{"UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "<+03>-3", "EST5EDT", "-7.5", "Africa/Monrovia"}
	fuzzEncodings = []string{"UTF8", "LATIN1", "SQL_ASCII", "EUC_JP"}
	fuzzWays      = []string{mapping.Advisory, mapping.SkipLocked, mapping.Lease, mapping.Serial, mapping.XMin}
	fuzzSettings  = slices.Concat(hostile, []string{"default_transaction_read_only = on", "default_transaction_isolation = serializable",
		"client_encoding = 'LATIN1'", "client_min_messages = error", "transform_null_equals = on"})
)

func pick[T any](list []T, shape []byte, at int) T {
	if at >= len(shape) {
		return list[0]
	}
	return list[int(shape[at])%len(list)]
}

// fuzzShape is the input by which [pick] chooses these.
func fuzzShape(header, payload, key, at, zone, encoding, way string, settings byte) []byte {
	i := func(list []string, s string) byte { return byte(max(slices.Index(list, s), 0)) }
	return []byte{i(fuzzTypes, header), i(fuzzPayloads, payload), i(fuzzKeys, key), i(fuzzTimes, at), i(fuzzZones, zone),
		i(fuzzEncodings, encoding), i(fuzzWays, way), settings, settings}
}

// FuzzAMessageIsTheSameByEachWay writes a row of columns of any types, and compares three texts of each: what the table
// holds, by the server's own output, what a relay delivers that polls, and what one delivers that reads the log. Their
// role has any settings. A row that is refused is refused by both, with a reason.
func FuzzAMessageIsTheSameByEachWay(f *testing.F) {
	ways := 0
	add := func(header, value, payload, key, keyValue, at, time, zone, encoding string, settings byte) {
		f.Add(fuzzShape(header, payload, key, at, zone, encoding, fuzzWays[ways%len(fuzzWays)], settings), []byte(value),
			[]byte(`{"b": [1, "x"]}`), []byte(keyValue), time)
		ways++
	}
	add("regclass", "pg_class", "text", "text", "k", "timestamptz", "now", "UTC", "UTF8", 0)
	for i, name := range fuzzTypes {
		values := samples[name]
		if !strings.HasPrefix(name, "timestamp") && len(values) > 1 {
			values = values[:1]
		}
		for _, value := range values {
			add(name, value, fuzzPayloads[i%len(fuzzPayloads)], "text", "k", "timestamptz",
				"2026-07-01 12:00:00.123456+02", "Asia/Kolkata", "UTF8", 255)
		}
	}
	for key, value := range map[string]string{"bytea": `\x00ff`, "bigint": "-7", "uuid": "a0000000-0000-0000-0000-00000000000a", "char(9)": "a ",
		"mood": "sad", "fixed": "ab", "raw": `\x`, "text": ""} {
		add("text", "x", "raw", key, value, "timestamp", "2026-03-29 02:30", "Europe/Berlin", "UTF8", 85)
	}
	for _, zone := range fuzzZones {
		add("text", "x", "text", "text", "k", "timestamp", "2026-11-01 01:30", zone, "UTF8", 0)
	}
	for _, encoding := range fuzzEncodings {
		for _, value := range []string{"a\xe4", "\xa9\xa1", "a\nb"} {
			add("text", value, "text", "text", "k"+value, "timestamptz", "now", "UTC", encoding, 0)
			add("text[]", "{\""+value+"\"}", "json", "varchar(40)", "k", "timestamptz", "now", "UTC", encoding, 0)
		}
	}
	f.Fuzz(func(t *testing.T, shape, header, payload, key []byte, at string) {
		if len(header)+len(payload)+len(key) > 10_000 || len(at) > 100 {
			return
		}
		x := &fuzzed{T: t, types: [4]string{
			pick(fuzzTypes, shape, 0), pick(fuzzPayloads, shape, 1), pick(fuzzKeys, shape, 2), pick(fuzzTimes, shape, 3)},
			zone: pick(fuzzZones, shape, 4), way: pick(fuzzWays, shape, 6), encoding: pick(fuzzEncodings, shape, 5)}
		for i, s := range fuzzSettings {
			if at := 7 + i/8; at < len(shape) && shape[at]>>(i%8)&1 > 0 {
				x.settings = append(x.settings, s)
			}
		}
		x.run(header, payload, key, at)
	})
}

// fuzzRoom is a database that one input after the other uses.
type fuzzRoom struct {
	url    string
	conn   *pgx.Conn
	tables int
}

var fuzzRooms = struct {
	sync.Mutex
	by map[string]*fuzzRoom // by their encoding
}{by: make(map[string]*fuzzRoom)}

// fuzzServer is another server than that of other tests: its databases last as long as it.
var fuzzServer = servers.PostgresConfig{Settings: map[string]string{"log_min_messages": "fatal"}}

// room returns the database of an encoding. fuzzRooms is locked.
func (x *fuzzed) room() *fuzzRoom {
	ctx := context.Background()
	if r := fuzzRooms.by[x.encoding]; r != nil && !r.conn.IsClosed() {
		return r
	}
	p := servers.TestPostgres(x, fuzzServer)
	name := "fuzz_" + strings.ToLower(x.encoding)
	for _, database := range []string{"postgres", name} {
		conn, err := pgx.Connect(ctx, p.URL(database))
		if err != nil {
			x.Fatal(err)
		}
		sql := []string{"CREATE DATABASE " + name + " TEMPLATE template0 ENCODING '" + x.encoding + "' LOCALE 'C'",
			"DO $$ BEGIN CREATE ROLE fuzz_relay LOGIN REPLICATION; EXCEPTION WHEN duplicate_object THEN END $$"}
		if database == name {
			// The settings are those that the oracle's texts have.
			sql = []string{typesDDL, "CREATE PUBLICATION everything FOR ALL TABLES WITH (publish = 'insert')", mapping.CreateSlotSQL(name),
				mapping.OffsetsDDL(mapping.TableName{Name: "fuzz_offsets"}), "GRANT SELECT, INSERT, UPDATE ON fuzz_offsets TO fuzz_relay",
				"SET client_encoding = 'UTF8'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; SET bytea_output = 'hex'; " +
					"SET lc_monetary = 'C'"}
		}
		for _, sql := range sql {
			if _, err := conn.Exec(ctx, sql); err != nil {
				x.Fatalf("%s: %v", sql, err)
			}
		}
		fuzzRooms.by[x.encoding] = &fuzzRoom{url: p.URL(database), conn: conn}
	}
	return fuzzRooms.by[x.encoding]
}

// fuzzed is an input.
type fuzzed struct {
	*testing.T
	types               [4]string // pick header, payload, key, created_at
	zone, encoding, way string
	settings            []string
	*fuzzRoom
}

func (x *fuzzed) run(header, payload, key []byte, at string) {
	fuzzRooms.Lock()
	defer fuzzRooms.Unlock()
	x.fuzzRoom = x.room()
	x.tables++
	table := fmt.Sprint("fuzz", x.tables)
	x.exec(fmt.Sprintf(`CREATE TABLE %[1]s (id bigserial PRIMARY KEY, h %[2]s, p %[3]s, k %[4]s, at %[5]s, until timestamptz,
		xid xid8 NOT NULL DEFAULT pg_current_xact_id()); GRANT SELECT, UPDATE, DELETE ON %[1]s TO fuzz_relay; SET timezone = '%[6]s'`,
		table, x.types[0], x.types[1], x.types[2], x.types[3], x.zone))
	defer x.exec("DROP TABLE " + table + "; DELETE FROM fuzz_offsets; ALTER ROLE fuzz_relay RESET ALL")
	insert := fmt.Sprintf(`INSERT INTO %s (h, p, k, at) VALUES (convert_from($1::bytea, getdatabaseencoding())::%s,
		convert_from($2::bytea, getdatabaseencoding())::%s, convert_from($3::bytea, getdatabaseencoding())::%s, $4::text::%s)`,
		table, x.types[0], x.types[1], x.types[2], x.types[3])
	if _, err := x.conn.Exec(x.Context(), insert, header, payload, key, at); err != nil {
		return // no such value
	}
	for _, s := range append(x.settings, "timezone = '"+x.zone+"'") {
		x.exec("ALTER ROLE fuzz_relay SET " + s)
	}
	m := mapping.Mapping{Table: table, ID: "id", Topic: "t.{id}", Key: "{k}", Payload: "p", CreatedAt: "at", AggregateID: "id",
		HeaderColumns: []mapping.HeaderColumn{{Name: "h", Column: "h"}}}
	byLog, logErr := x.read(mapping.Replication, m)
	switch x.way {
	case mapping.Serial, mapping.XMin:
		m.Offsets = mapping.Offsets{Table: "fuzz_offsets", Transaction: "xid"}
	default:
		m.Done, m.RowsMayBeDeleted, m.Claim.Until = mapping.Done{How: mapping.DoneDelete}, true, "until"
	}
	polled, err := x.read(x.way, m)
	if err != nil || logErr != nil {
		if !outbox.IsPermanent(err) || !outbox.IsPermanent(logErr) || !slices.Contains(varying, x.types[0]) {
			x.Errorf("%v: by polling %v, by the log %v", x.types, err, logErr)
		}
		return
	}
	x.compare(table, byLog, polled)
}

func (x *fuzzed) exec(sql string) {
	x.Helper()
	if err := x.conn.PgConn().Exec(context.Background(), sql).Close(); err != nil {
		x.Fatalf("%s: %v", sql, err)
	}
}

// read returns what a relay gets that reads in a way, and settles it.
func (x *fuzzed) read(way string, m mapping.Mapping) (d relay.Delivery, err error) {
	conn, err := pgx.ParseConfig(x.url)
	if err != nil {
		x.Fatal(err)
	}
	conn.User = "fuzz_relay"
	source, err := Open(way, conn, m, Config{Name: "one", PollIdle: time.Millisecond, Slot: conn.Database, Publication: "everything"})
	if err != nil {
		x.Fatal(err)
	}
	ctx := await.Context(x)
	s, err := source.Acquire(ctx)
	if err != nil {
		return d, err
	}
	defer func() { _ = s.Close(context.Background()) }()
	for {
		b, err := s.Next(ctx, 10)
		if err != nil {
			x.Fatalf("%v by %s: %v", x.types, way, err)
		}
		if len(b.Deliveries) > 0 {
			if way == mapping.Replication { // the slot goes on, and the table keeps its row
				err = s.Settle(ctx, relay.Settlement{Through: &b.Deliveries[len(b.Deliveries)-1], Delivered: 1})
			}
			if err != nil {
				x.Fatal(err)
			}
			return b.Deliveries[0], nil
		}
	}
}

// outputSQL is the output of a column in bytes.
func (x *fuzzed) outputSQL(column, typ string, raw bool) string {
	text := "format('%s', " + column + ")"
	switch typ {
	case "bytea", "raw":
		if raw {
			return column + "::bytea"
		}
	case "boolean", "flag":
		text = "CASE " + text + " WHEN 't' THEN 'true' ELSE 'false' END"
	case "char(9)", "fixed", "fixed_still":
		text = "rtrim(" + text + ", ' ')"
	}
	return "convert_to(" + text + ", CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END)"
}

func (x *fuzzed) compare(table string, byLog, polled relay.Delivery) {
	var header, payload, key []byte
	var at *int64
	x.exec("SET timezone = 'UTC'")
	err := x.conn.QueryRow(x.Context(), "SELECT "+x.outputSQL("h", x.types[0], false)+", "+x.outputSQL("p", x.types[1], true)+", "+
		x.outputSQL("k", x.types[2], false)+" FROM "+table).Scan(&header, &payload, &key)
	x.exec("SET timezone = '" + x.zone + "'")
	if err == nil {
		err = x.conn.QueryRow(x.Context(), `SELECT CASE WHEN at BETWEEN '0001-01-02' AND '9999-12-30' -- brokers know it
			THEN (extract(epoch FROM at::timestamptz) * 1000000)::bigint END FROM `+table).Scan(&at)
	}
	if schema.IsDataError(err) {
		header, key = []byte("\xff"), []byte(`\x`) // a character that UTF-8 doesn't have
	} else if err != nil {
		x.Fatal(err)
	}
	if x.types[2] == "bytea" || x.types[2] == "raw" {
		key = key[2:] // its digits
	}
	what := fmt.Sprintf("%v, zone %s, %s, %s, %q", x.types, x.zone, x.encoding, x.way, x.settings)
	refusable := !utf8.Valid(header) || !utf8.Valid(key) || !utf8.Valid(payload) && x.types[1] != "bytea" && x.types[1] != "raw" ||
		strings.ContainsAny(string(header), "\r\n\x00")
	if (polled.Invalid == nil) != (byLog.Invalid == nil) || polled.Invalid != nil && !refusable ||
		polled.Invalid == nil && (!utf8.Valid(header) || !utf8.Valid(key)) {
		x.Errorf("%s: by polling %v, by the log %v; header %q, key %q", what, polled.Invalid, byLog.Invalid, header, key)
	}
	if polled.Invalid != nil {
		return
	}
	byLog.Ref, byLog.Shard = polled.Ref, polled.Shard // these are the strategy's
	if got, want := fmt.Sprintf("%+v", byLog), fmt.Sprintf("%+v", polled); got != want {
		x.Errorf("%s: by the log\n%s\nby polling\n%s", what, got, want)
	}
	h, _ := polled.Header("h")
	if h != string(header) || string(polled.Payload) != string(payload) || polled.Key != string(key) {
		x.Errorf("%s: got %q %q %q, and the table has %q %q %q", what, h, polled.Payload, polled.Key, header, payload, key)
	}
	if at != nil && polled.CreatedAt.UnixMicro() != *at {
		x.Errorf("%s: got %s, and the table has %s", what, polled.CreatedAt, time.UnixMicro(*at).UTC())
	}
}
