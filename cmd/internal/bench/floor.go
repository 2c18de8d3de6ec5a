package bench

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"
)

// RunFloor is the barest pipe: one COPY of the whole table, decoded, into the broker's own client, with
// the client's best settings. It keeps no cursor, no order beyond the client's, and stops at the first
// error. It prints one line when it begins to read.
func RunFloor(ctx context.Context, broker, database, address string, started io.Writer) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var out pipe
	if broker == "nats" {
		out, err = newNATSPipe(address)
	} else {
		out, err = newKafkaPipe(address)
	}
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(started, "{\"msg\":\"started\",\"time\":%q}\n", time.Now().Format(time.RFC3339Nano)); err != nil {
		return err
	}
	reader, writer := io.Pipe()
	go func() {
		_, err := conn.PgConn().CopyTo(ctx, writer, "COPY (SELECT message_id, key, payload FROM outbox.messages) TO STDOUT (FORMAT binary)")
		writer.CloseWithError(err)
	}()
	return errors.Join(copyRows(reader, out), out.flush(ctx))
}

type pipe interface {
	// send may keep key and payload until flush returns.
	send(id [16]byte, key, payload []byte) error
	flush(ctx context.Context) error
}

// copyRows decodes the binary COPY format: a header, then rows of length-prefixed fields.
func copyRows(r io.Reader, to pipe) error {
	buf := newChunks(r)
	if _, err := buf.next(19); err != nil {
		return err
	}
	for {
		count, err := buf.next(2)
		if err != nil {
			return err
		}
		if int16(binary.BigEndian.Uint16(count)) < 0 {
			return nil
		}
		var fields [3][]byte
		for i := range fields {
			length, err := buf.next(4)
			if err != nil {
				return err
			}
			if fields[i], err = buf.next(int(int32(binary.BigEndian.Uint32(length)))); err != nil {
				return err
			}
		}
		if err := to.send([16]byte(fields[0]), fields[1], fields[2]); err != nil {
			return err
		}
	}
}

// chunks hands out slices of large blocks, which stay untouched.
type chunks struct {
	r          io.Reader
	block      []byte
	start, end int
}

func newChunks(r io.Reader) *chunks { return &chunks{r: r, block: make([]byte, 1<<20)} }

func (c *chunks) next(n int) ([]byte, error) {
	for c.end-c.start < n {
		if len(c.block)-c.start < n {
			fresh := make([]byte, max(1<<20, n))
			c.end = copy(fresh, c.block[c.start:c.end])
			c.block, c.start = fresh, 0
		}
		read, err := c.r.Read(c.block[c.end:])
		c.end += read
		if err != nil && c.end-c.start < n {
			return nil, err
		}
	}
	out := c.block[c.start : c.start+n : c.start+n]
	c.start += n
	return out, nil
}

type kafkaPipe struct {
	client *kgo.Client
	mu     sync.Mutex
	err    error
	done   func(*kgo.Record, error)
}

func newKafkaPipe(address string) (pipe, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(2*time.Millisecond),
		kgo.MaxBufferedRecords(20_000), kgo.ProducerBatchMaxBytes(1_000_000), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		return nil, err
	}
	p := &kafkaPipe{client: client}
	p.done = func(_ *kgo.Record, err error) {
		if err != nil {
			p.mu.Lock()
			p.err = err
			p.mu.Unlock()
		}
	}
	return p, nil
}

func (p *kafkaPipe) send(_ [16]byte, key, payload []byte) error {
	p.client.Produce(context.Background(), &kgo.Record{Key: key, Value: payload}, p.done)
	return nil
}

func (p *kafkaPipe) flush(ctx context.Context) error {
	err := p.client.Flush(ctx)
	p.client.Close()
	return errors.Join(err, p.err)
}

type natsPipe struct {
	conn *nats.Conn
	js   jetstream.JetStream
	id   [32]byte
}

func newNATSPipe(address string) (pipe, error) {
	conn, err := nats.Connect(address)
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(4000))
	return &natsPipe{conn: conn, js: js}, err
}

func (p *natsPipe) send(id [16]byte, _, payload []byte) error {
	hex.Encode(p.id[:], id[:])
	m := &nats.Msg{Subject: topic, Data: payload, Header: nats.Header{jetstream.MsgIDHeader: []string{string(p.id[:])}}}
	for {
		_, err := p.js.PublishMsgAsync(m)
		if !errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
			return err
		}
	}
}

func (p *natsPipe) flush(ctx context.Context) error {
	defer p.conn.Close()
	select {
	case <-p.js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
