package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func cpu(pid uint32) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	must(err)
	var ns float64
	fmt.Sscan(string(b), &ns)
	return ns / 1e3
}

type sink struct{ n int }

func (s *sink) Write(b []byte) (int, error) { s.n += len(b); return len(b), nil }

const pageTail = `FROM unnest($1::xid8[], $2::xid8[]) r (lo, hi)
CROSS JOIN LATERAL (
	SELECT * FROM outbox.messages m
	WHERE (m.xid, m.id) > (r.lo, $5::bigint) AND (m.xid, m.id) <= (r.hi, $6::bigint)
	AND m.id > $5::bigint AND m.id <= $6::bigint
	AND pg_visible_in_snapshot(m.xid, $7::pg_snapshot)
	AND m.shard % $3::integer = $4::integer
	OFFSET 0
) m
ORDER BY m.id LIMIT $8::bigint`

func main() {
	ctx := context.Background()
	pg, err := servers.StartPostgres(ctx, servers.PostgresConfig{Settings: map[string]string{"shared_buffers": "1GB", "autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}})
	must(err)
	defer pg.Close()
	conn, err := pgx.Connect(ctx, pg.URL("postgres"))
	must(err)
	_, err = schema.Up(ctx, conn, schema.UpConfig{})
	must(err)
	n := 500000
	_, err = conn.Exec(ctx, fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
	  INSERT INTO outbox.messages (topic,key,event_type,payload) SELECT 'bench-topic-abcdef', 'key-'||(random()*10000)::int, 'bench', decode(repeat('ab',256),'hex') FROM generate_series(1,100);
	  COMMIT; END LOOP; END $$`, n/100))
	must(err)
	_, err = conn.Exec(ctx, "VACUUM ANALYZE")
	must(err)
	for _, s := range []string{"plan_cache_mode=force_generic_plan", "enable_seqscan=off", "jit=off"} {
		_, err = conn.Exec(ctx, "SET "+s)
		must(err)
	}
	var pid uint32
	must(conn.QueryRow(ctx, "select pg_backend_pid()").Scan(&pid))
	var lo, hi uint64
	var minid, maxid int64
	must(conn.QueryRow(ctx, "select min(xid::text::bigint), max(xid::text::bigint), min(id), max(id) from outbox.messages").Scan(&lo, &hi, &minid, &maxid))
	var snap string
	must(conn.QueryRow(ctx, "select pg_current_snapshot()::text").Scan(&snap))
	measure := func(name string, f func()) {
		best, bw := 1e18, 1e18
		for range 3 {
			c, t := cpu(pid), time.Now()
			f()
			w := float64(time.Since(t).Microseconds())
			d := cpu(pid) - c
			best = min(best, d)
			bw = min(bw, w)
		}
		fmt.Printf("%-50s cpu %.3f us/row  wall %.3f\n", name, best/float64(n), bw/float64(n))
	}
	copyq := func(name, q string) {
		measure(name, func() {
			_, err := conn.PgConn().CopyTo(ctx, &sink{}, "COPY ("+q+") TO STDOUT (FORMAT binary)")
			must(err)
		})
	}
	copyq("copy 3 cols", "SELECT message_id, key, payload FROM outbox.messages")
	_, err = conn.Exec(ctx, "SET enable_seqscan=off")


	_ = func(name, q string) {
		nm := fmt.Sprintf("c%d", time.Now().UnixNano())
		d, err := conn.PgConn().Prepare(ctx, nm, q, nil)
		must(err)
		measure(name, func() {
			at := lo
			for {
				args := [][]byte{[]byte(fmt.Sprint(at)), []byte(fmt.Sprint(hi+10)), []byte(snap), []byte("10000")}
				args = args[:len(d.ParamOIDs)]
				rr := conn.PgConn().ExecStatement(ctx, d, args, []int16{0}, []int16{1})
				rows := 0
				for rr.NextRow() { rows++ }
				_, err := rr.Close()
				must(err)
				at += 99
				if at > hi { break }
			}
		})
	}
	var wide uint64
	page := func(name, cols, tail string, pageRows int64, copyMode bool) {
		stmt := "SELECT " + cols + " " + tail
		nm := fmt.Sprintf("p%d", time.Now().UnixNano())
		d, err := conn.PgConn().Prepare(ctx, nm, stmt, nil)
		must(err)
		measure(name, func() {
			rows := 0
			for a := minid - 1; a < maxid; a += pageRows {
				l := lo + uint64(a-minid+1)/100 - min(2, uint64(a-minid+1)/100)
				h := l + uint64(pageRows)/100 + wide + 4
				args := [][]byte{[]byte(fmt.Sprintf("{%d}", l)), []byte(fmt.Sprintf("{%d}", h)), []byte("1"), []byte("0"), []byte(fmt.Sprint(a)), []byte(fmt.Sprint(a + pageRows)), []byte(snap), []byte(fmt.Sprint(pageRows))}
				args = args[:len(d.ParamOIDs)]
				rr := conn.PgConn().ExecStatement(ctx, d, args, []int16{0}, []int16{1})
				for rr.NextRow() {
					rows++
				}
				_, err := rr.Close()
				must(err)
			}
			if rows != n && !strings.Contains(name, "count") {
				fmt.Println("rows", rows)
			}
		})
	}
	all := "m.xid, m.id, m.message_id, m.topic, m.key, m.shard, m.aggregate_type, m.aggregate_id, m.event_type, m.payload, m.content_type, m.headers, m.deliver_at, m.created_at"

	stretch := `FROM outbox.messages m
WHERE (m.xid, m.id) > (($1::xid8[])[1], $5::bigint) AND (m.xid, m.id) <= (($2::xid8[])[1], $6::bigint)
AND m.id > $5::bigint AND m.id <= $6::bigint
AND pg_visible_in_snapshot(m.xid, $7::pg_snapshot)
AND m.shard % $3::integer = $4::integer
ORDER BY m.id LIMIT $8::bigint`
	for _, w := range []uint64{100, 60, 30, 10, 2} {
		wide = w
		page(fmt.Sprintf("stretch full wide %d", w), all, stretch, 2500, false)
	}
	noshard := strings.Replace(stretch, "AND m.shard % $3::integer = $4::integer", "AND $3::integer IS NOT NULL AND $4::integer IS NOT NULL", 1)
	page("no shard", all, noshard, 2500, false)
	novis := strings.Replace(noshard, "AND pg_visible_in_snapshot(m.xid, $7::pg_snapshot)", "AND $7::pg_snapshot IS NOT NULL", 1)
	page("no shard no vis", all, novis, 2500, false)
	nosort := strings.Replace(novis, "ORDER BY m.id LIMIT $8::bigint", "LIMIT $8::bigint", 1)
	page("no shard no vis no sort", all, nosort, 2500, false)
	page("no shard no vis no sort count", "count(*)", nosort, 2500, false)
	page("no shard no vis no sort 3 cols", "message_id, key, payload", nosort, 2500, false)
	page("no shard no vis no sort xid only", "xid", nosort, 2500, false)
}
