package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/kafka"
	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
	"github.com/pgoutbox/outbox/schema"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

type obs struct{ n atomic.Int64; done chan struct{}; want int64 }

func (o *obs) Published(b []*outbox.Message, errs []error, t time.Duration) {
	if o.n.Add(int64(len(b))) >= o.want {
		select { case o.done <- struct{}{}: default: }
	}
}
func (o *obs) Settled(*relay.Settlement)              {}
func (o *obs) Changed(relay.State, error)              {}

func main() {
	role := flag.String("role", "", "")
	n := flag.Int("n", 600000, "")
	batch := flag.Int("batch", 0, "")
	inflight := flag.Int("inflight", 0, "")
	stripes := flag.Int("stripes", 0, "")
	gogc := flag.Int("gogc", 50, "")
	prof := flag.String("prof", "", "")
	url := flag.String("url", "", "")
	addr := flag.String("addr", "", "")
	null := flag.Bool("null", false, "")
	dest := flag.String("dest", "d0", "")
	runs := flag.Int("runs", 3, "")
	flag.Parse()
	ctx := context.Background()
	if *role == "relay" {
		debug.SetGCPercent(*gogc)
		debug.SetMemoryLimit(48 << 20)
		cfg, err := pgx.ParseConfig(*url)
		must(err)
		src, err := polling.NewSnapshot(cfg, *dest, polling.SnapshotConfig{})
		must(err)
		var br relay.Broker
		if *null { br = nullBroker{} } else {
		br, err = kafka.New(kafka.Config{Brokers: []string{*addr}, CreateTopics: true, Partitions: 2})
		must(err) }
		o := &obs{done: make(chan struct{}, 1), want: int64(*n)}
		r, err := relay.New(src, br, relay.Config{Name: *dest, Batch: *batch, MaxInFlight: *inflight, Stripes: *stripes, Observer: o})
		must(err)
		c, cancel := context.WithCancel(ctx)
		if *prof != "" {
			f, _ := os.Create(*prof)
			must(pprof.StartCPUProfile(f))
			defer pprof.StopCPUProfile()
		}
		t := time.Now()
		go func() { must(r.Run(c)) }()
		<-o.done
		wall := time.Since(t)
		var ru syscall.Rusage
		syscall.Getrusage(0, &ru)
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		fmt.Printf("   %.0f/s  cpu %.3f us  heapsys %d MB maxrss %d MB gcs %d alloc %d B/msg\n", float64(*n)/wall.Seconds(), float64(ru.Utime.Nano()+ru.Stime.Nano())/1e3/float64(*n), ms.HeapSys>>20, ru.Maxrss>>10, ms.NumGC, ms.TotalAlloc/uint64(*n))
		if *prof != "" { f, _ := os.Create(*prof+".mem"); pprof.Lookup("heap").WriteTo(f, 0); f.Close() }
		cancel()
		return
	}
	pg, err := servers.StartPostgres(ctx, servers.PostgresConfig{Fsync: true, Settings: map[string]string{"shared_buffers": "1GB", "autovacuum": "off", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}})
	must(err)
	defer pg.Close()
	k, err := servers.StartKafka(ctx, servers.KafkaConfig{})
	must(err)
	defer k.Close()
	conn, err := pgx.Connect(ctx, pg.URL("postgres"))
	must(err)
	_, err = schema.Up(ctx, conn, schema.UpConfig{})
	must(err)
	_, err = conn.Exec(ctx, fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
	  INSERT INTO outbox.messages (topic,key,event_type,payload) SELECT 'bench-topic-abcdef', 'key-'||(random()*10000)::int, 'bench', decode(repeat('ab',256),'hex') FROM generate_series(1,100);
	  COMMIT; END LOOP; END $$`, *n/100))
	must(err)
	_, err = conn.Exec(ctx, "VACUUM ANALYZE")
	must(err)
	args := os.Args[1:]
	for i := range *runs {
		a := append(append([]string{}, args...), "-role=relay", "-url="+pg.URL("postgres"), "-addr="+k.Addr(), fmt.Sprintf("-dest=d%d", i))
		if *prof != "" && i < *runs-1 {
			a = append(a, "-prof=")
		}
		cmd := exec.Command(os.Args[0], a...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		must(cmd.Run())
	}
}

type nullBroker struct{}

func (nullBroker) Publish(context.Context, []*outbox.Message) []error { return nil }
func (nullBroker) Close() error                                       { return nil }
