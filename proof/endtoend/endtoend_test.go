// Package endtoend proves the whole way: rows and events are committed, relayed to a real broker, and applied by
// a consumer with an inbox, while writer, relay, broker and consumer are killed again and again. At the end the
// consumer's rows are the writer's: each once, in the order of its key.
//
// In CI it is a few thousand events. OUTBOX_E2E_EVENTS and OUTBOX_E2E_KILLS say how many of each, per broker.
package endtoend

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox/internal/servers"
	"github.com/pgoutbox/outbox/schema"
)

func TestMain(m *testing.M) {
	if text := os.Getenv("OUTBOX_E2E_PART"); text != "" {
		var p part
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		os.Exit(p.main())
	}
	servers.Main(m)
}

func TestNothingIsLostDoubledOrInvertedOnTheWayOverKafka(t *testing.T) {
	t.Parallel()
	server := servers.OwnKafka(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(server.Addr()), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	_, err = kadm.NewClient(client).CreateTopic(t.Context(), 6, 1, nil, topic)
	client.Close()
	if err != nil {
		t.Fatal(err)
	}
	prove(t, "kafka", server.Addr(), &server.Server)
}

func TestNothingIsLostDoubledOrInvertedOnTheWayOverNATS(t *testing.T) {
	t.Parallel()
	server := servers.OwnNATS(t)
	nc, err := natsgo.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err == nil {
		_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TRANSFERS", Subjects: []string{topic}})
	}
	if err != nil {
		t.Fatal(err)
	}
	prove(t, "nats", server.URL(), &server.Server)
}

func TestNothingIsLostDoubledOrInvertedOnTheWayOverRabbitMQ(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	conn, err := amqp091.Dial(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDeclare(topic, true, false, false, false,
			amqp091.Table{"x-queue-type": "quorum", "x-single-active-consumer": true})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	// A quorum queue that has just been declared does not survive a kill; after an orderly end it does.
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	prove(t, "rabbitmq", server.URL(), &server.Server)
}

func TestNothingIsLostDoubledOrInvertedOnTheWayOverSQS(t *testing.T) {
	t.Parallel()
	server := servers.OwnElasticMQ(t, servers.ElasticMQConfig{Durable: true, Relaxed: true, Queues: []string{topic + ".fifo"}})
	prove(t, "sqs", server.URL(), &server.Server)
}

// proof is one run.
type proof struct {
	t              *testing.T
	events         int
	source, target database
	broker         *servers.Server
	base           part
	children       map[string]*child
	last, moved    time.Time // of progress: of a report, and of the events
	seen           int       // how many were applied then
}

// patience is how long everything may stand still.
const patience = 2 * time.Minute

func prove(t *testing.T, broker, addr string, server *servers.Server) {
	inCI := 1500
	if broker == "sqs" {
		inCI = 500 // ElasticMQ writes each message to the disk by itself
	}
	events, kills := number(t, "OUTBOX_E2E_EVENTS", inCI), number(t, "OUTBOX_E2E_KILLS", 4)
	p := &proof{t: t, events: events, broker: server, children: map[string]*child{}}
	p.source = open(t, `CREATE TABLE booked (message_id uuid PRIMARY KEY, account text NOT NULL, cents int NOT NULL)`)
	p.target = open(t, `CREATE TABLE applied (no bigserial, message_id uuid NOT NULL, account text NOT NULL, n bigint NOT NULL, cents int NOT NULL)`)
	p.base = part{Broker: broker, Addr: addr, Source: p.source.url, Target: p.target.url, Events: events, Static: kills > 20}
	for _, role := range []string{"consume", "relay", "write"} {
		p.start(role)
	}
	t.Cleanup(func() {
		for _, c := range p.children {
			c.kill()
		}
	})
	began := time.Now()
	targets := []string{"write", "relay", "consume", "broker"}
	if broker == "rabbitmq" && kills <= 20 {
		targets = targets[:3] // its restart takes as long as all else; in long runs it is killed too
	}
	done := map[string]int{}
	for i := range kills {
		p.until("events flow", func() bool { return p.target.int(progressSQL) >= events*(i+1)/(kills+2) })
		victim := targets[i%len(targets)]
		p.kill(victim)
		done[victim]++
	}
	p.until("all is written", p.children["write"].ended)
	want := p.source.int(`SELECT count(*) FROM booked`)
	p.until("all is applied", func() bool {
		return p.target.int(progressSQL) >= want && p.target.int(`SELECT count(DISTINCT message_id) FROM applied`) >= want
	})
	took := time.Since(began)
	p.judge(want)
	t.Logf("%d events, %d kills %v, in %v: %.0f events/s", want,
		kills, done, took.Round(100*time.Millisecond), float64(want)/took.Seconds())
}

func number(t *testing.T, variable string, inCI int) int {
	s := os.Getenv(variable)
	if s == "" {
		return inCI
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, want a number", variable, s)
	}
	return n
}

// judge compares what was applied with what was committed.
func (p *proof) judge(want int) {
	p.t.Helper()
	if want < p.events {
		p.t.Errorf("%d events were committed, want %d", want, p.events)
	}
	if n := p.target.int(`SELECT count(*) FROM applied`); n != want {
		p.t.Errorf("%d effects of %d events", n, want)
	}
	booked, applied := p.source.int(`SELECT sum(cents) FROM booked`), p.target.int(`SELECT sum(cents) FROM applied`)
	if booked != applied {
		p.t.Errorf("%d cents were booked, %d applied", booked, applied)
	}
	if n := p.target.int(`SELECT count(*) FROM (SELECT n, lag(n, 1, 0::bigint) OVER (PARTITION BY account ORDER BY no) AS before FROM applied) s WHERE n <> before + 1`); n > 0 {
		p.t.Errorf("%d effects are out of order", n)
	}
}

// kill ends a process by SIGKILL, and starts it again.
func (p *proof) kill(victim string) {
	p.t.Helper()
	if victim == "broker" {
		if err := p.broker.Kill9(); err != nil {
			p.t.Fatal(err)
		}
		if err := p.broker.Restart(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
		return
	}
	p.children[victim].kill()
	p.start(victim)
}

func (p *proof) start(role string) {
	p.t.Helper()
	one := p.base
	one.Role = role
	c, err := startChild(one)
	if err != nil {
		p.t.Fatal(err)
	}
	p.children[role] = c
}

func (p *proof) until(what string, condition func() bool) {
	p.t.Helper()
	for p.moved = time.Now(); !condition(); time.Sleep(20 * time.Millisecond) {
		for role, c := range p.children {
			if c.ended() && (role != "write" || c.err != nil) {
				p.t.Fatalf("%s ended by itself: %v\n%s", role, c.err, c.stderr.String())
			}
		}
		now, applied := time.Now(), p.target.int(progressSQL)
		if applied > p.seen {
			p.seen, p.moved = applied, now
		}
		if now.Sub(p.moved) > patience {
			p.t.Fatalf("nothing moves, while waiting until %s: %d booked, %d applied",
				what, p.source.int(`SELECT count(*) FROM booked`), p.target.int(`SELECT count(*) FROM applied`))
		}
		if now.Sub(p.last) > 30*time.Second {
			p.last = now
			p.t.Logf("%s: about %d applied", now.Format(time.TimeOnly), applied)
		}
	}
}

// database is one with the outbox's schema and a table.
type database struct {
	t    *testing.T
	url  string
	conn *pgx.Conn
}

func open(t *testing.T, table string) database {
	t.Helper()
	d := database{t: t, url: servers.TestDatabase(t)}
	var err error
	if d.conn, err = pgx.Connect(t.Context(), d.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.conn.Close(context.Background()) })
	if _, err = schema.Up(t.Context(), d.conn, schema.UpConfig{}); err == nil {
		_, err = d.conn.Exec(t.Context(), table)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (d database) int(query string) (n int) {
	d.t.Helper()
	if err := d.conn.QueryRow(d.t.Context(), query).Scan(&n); err != nil {
		d.t.Fatal(err)
	}
	return n
}

// child is a process of this program in another part.
type child struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	err    error         // how it ended; to be read after done
	done   chan struct{} // closed when it has
	once   sync.Once
}

func startChild(p part) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), "OUTBOX_E2E_PART="+string(text))
	c.cmd.Stderr = &c.stderr
	if _, err := c.cmd.StdinPipe(); err != nil { // closed when this process ends
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

func (c *child) kill() {
	c.once.Do(func() { _ = c.cmd.Process.Kill() }) // it may have ended
	<-c.done
}

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}
