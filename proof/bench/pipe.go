package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/pgoutbox/outbox"
)

// pipe is the barest way into a broker: its own client with the settings that measured best, and nothing
// done about a failure but to report it.
type pipe interface {
	// send hands over a page, which the pipe gives back to free when every message of it is acknowledged.
	// It may wait for earlier ones.
	send(ctx context.Context, p *page) error
	// flush waits until everything is acknowledged, returns the first failure and hangs up.
	flush(ctx context.Context) error
}

// page is rows on their way: of the broker's memory, reused when all are acknowledged.
type page struct {
	rows []row
	text []byte // that rows point to
}

type row struct {
	id           [16]byte
	key, payload []byte
	headers      []byte // a JSON text, empty for none
	topic, event string // if they were read: constants, which pages share
	created      time.Time
	position     int64
}

const (
	pageRows  = 5000
	pageBytes = 1 << 20
)

// add appends a row, or means that the page is full.
func (p *page) add(id, key, payload []byte) bool {
	return p.addRow(row{id: [16]byte(id), key: key, payload: payload})
}

func (p *page) addRow(r row) bool {
	key, payload := r.key, r.payload
	need := len(key) + len(payload) + len(r.headers)
	if len(p.rows) == pageRows || len(p.rows) > 0 && len(p.text)+need > cap(p.text) {
		return false
	}
	if need > cap(p.text) {
		p.text = make([]byte, 0, need)
	}
	at := len(p.text)
	p.text = append(append(append(p.text, key...), payload...), r.headers...)
	mid, end := at+len(key), at+len(key)+len(payload)
	r.key, r.payload, r.headers = p.text[at:mid:mid], p.text[mid:end:end], p.text[end:len(p.text):len(p.text)]
	p.rows = append(p.rows, r)
	return true
}

// freePages is a store of pages: what is on its way is bounded by their number.
func freePages(n int) chan *page {
	free := make(chan *page, n)
	for range n {
		free <- &page{rows: make([]row, 0, pageRows), text: make([]byte, 0, pageBytes)}
	}
	return free
}

func take(ctx context.Context, free <-chan *page) (*page, error) {
	select {
	case p := <-free:
		p.rows, p.text = p.rows[:0], p.text[:0]
		return p, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pages that may be on their way: with 256 bytes a row, about the 20,000 records that measured best.
const pages = 6

// runFloor is what the barest contenders have in common: a pipe to the broker, a word when they begin, and a farewell.
// One that is told to end has not failed.
func runFloor(ctx context.Context, o order, linger time.Duration, started func(), move func(pipe, chan *page) error) error {
	free := freePages(pages)
	out, err := openPipe(o, free, linger)
	if err != nil {
		return err
	}
	started()
	if err = move(out, free); ctx.Err() != nil {
		err = nil
		farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUp)
		defer cancel()
		ctx = farewell
	}
	return errors.Join(err, out.flush(ctx))
}

// runCopy is a floor of a drain: one COPY of the whole table, decoded, into the pipe. It keeps no
// cursor, no order beyond the client's, and stops at the first error. A fair one reads the columns that a relay reads,
// in the order in which a relay finds them, and sends the headers that a relay sends.
func runCopy(ctx context.Context, o order, started func()) error {
	conn, err := pgx.Connect(ctx, o.Database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return runFloor(ctx, o, 2*time.Millisecond, started, func(out pipe, free chan *page) error {
		c := &copier{ctx: ctx, free: free, out: out}
		query := "SELECT message_id, key, payload, topic FROM outbox.messages"
		if o.Fair {
			query = `SELECT message_id, key, payload, topic, event_type, created_at, id, headers, xid, shard, aggregate_type,
				aggregate_id, content_type, deliver_at FROM outbox.messages ORDER BY xid, id`
		}
		_, err := conn.PgConn().CopyTo(ctx, c, "COPY ("+query+") TO STDOUT (FORMAT binary)")
		if err == nil {
			err = c.finish()
		}
		return err
	})
}

// copier decodes the binary COPY format: a header, then rows of length-prefixed fields. The connection
// gives it what the server has sent, which is whole rows; it bears with anything else.
type copier struct {
	ctx  context.Context
	free chan *page
	out  pipe

	page  *page
	rest  []byte // the beginning of a row
	begun bool
	ended bool
	names names // topics and event types
}

const copyHeader = 19

// The columns of a COPY that are looked at. There may be others behind them.
const (
	copyID = iota
	copyKey
	copyPayload
	copyTopic
	copyEvent
	copyCreated
	copyPosition
	copyHeaders
	copyLooked
)

func (c *copier) Write(data []byte) (int, error) {
	n := len(data)
	if len(c.rest) > 0 {
		c.rest = append(c.rest, data...)
		data = c.rest
	}
	if !c.begun {
		if len(data) < copyHeader {
			c.rest = append(c.rest[:0], data...)
			return n, nil
		}
		data, c.begun = data[copyHeader:], true
	}
	for len(data) > 0 {
		used, err := c.row(data)
		if err != nil {
			return 0, err
		}
		if used == 0 {
			break
		}
		data = data[used:]
	}
	c.rest = append(c.rest[:0], data...)
	return n, nil
}

// row takes one row off data and returns its length, or 0 if it isn't complete.
func (c *copier) row(data []byte) (int, error) {
	if len(data) < 2 {
		return 0, nil
	}
	count := int(int16(binary.BigEndian.Uint16(data)))
	if count < 0 {
		c.ended = true
		return 2, nil
	}
	at := 2
	var fields [copyLooked][]byte
	for i := range count {
		if len(data) < at+4 {
			return 0, nil
		}
		length := max(int(int32(binary.BigEndian.Uint32(data[at:]))), 0)
		if at += 4; len(data) < at+length {
			return 0, nil
		}
		if i < len(fields) {
			fields[i] = data[at : at+length]
		}
		at += length
	}
	r := row{id: [16]byte(fields[copyID]), key: fields[copyKey], payload: fields[copyPayload], topic: c.names.intern(fields[copyTopic])}
	if len(fields[copyCreated]) == 8 && len(fields[copyPosition]) == 8 {
		const epoch = 946684800000000 // 2000-01-01
		r.event, r.created = c.names.intern(fields[copyEvent]), time.UnixMicro(int64(binary.BigEndian.Uint64(fields[copyCreated]))+epoch)
		r.position, r.headers = int64(binary.BigEndian.Uint64(fields[copyPosition])), fields[copyHeaders]
	}
	return at, c.add(r)
}

// names are strings that are the same for all rows with that name.
type names map[string]string

func (n *names) intern(b []byte) string {
	s, known := (*n)[string(b)]
	if !known {
		s = string(b)
		if *n == nil {
			*n = names{}
		}
		(*n)[s] = s
	}
	return s
}

// header takes the first header off an object of headersOf; its name is nil if there is none.
func header(text []byte) (name, value, rest []byte) {
	if _, text, _ = bytes.Cut(text, quote); text == nil {
		return nil, nil, nil
	}
	name, text, _ = bytes.Cut(text, quote)
	_, text, _ = bytes.Cut(text, quote)
	value, rest, _ = bytes.Cut(text, quote)
	return name, value, rest
}

var quote = []byte{'"'}

func (c *copier) add(r row) (err error) {
	if c.page != nil {
		if c.page.addRow(r) {
			return nil
		}
		if err := c.out.send(c.ctx, c.page); err != nil {
			return err
		}
	}
	if c.page, err = take(c.ctx, c.free); err != nil {
		return err
	}
	c.page.addRow(r)
	return nil
}

func (c *copier) finish() error {
	if !c.ended {
		return errors.New("the COPY broke off")
	}
	if c.page == nil {
		return nil
	}
	return c.out.send(c.ctx, c.page)
}

func openPipe(o order, free chan *page, linger time.Duration) (pipe, error) {
	if o.Broker == "nats" {
		return newNATSPipe(o, free)
	}
	return newKafkaPipe(o, free, linger)
}

type kafkaPipe struct {
	client *kgo.Client
	free   chan *page
	slabs  chan *kafkaSlab
	fair   bool
	second second
	names  names // of headers

	mu  sync.Mutex
	err error
}

// kafkaSlab is the records of a page.
type kafkaSlab struct {
	pipe    *kafkaPipe
	page    *page
	records []kgo.Record
	headers []kgo.RecordHeader
	text    []byte // that headers point to
	waiting int    // promises are called one after the other
	done    func(*kgo.Record, error)
}

func newKafkaPipe(o order, free chan *page, linger time.Duration) (*kafkaPipe, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(o.Address), kgo.DefaultProduceTopic(o.Topic), kgo.ProducerLinger(linger),
		kgo.MaxBufferedRecords(20_000), kgo.ProducerBatchMaxBytes(1_000_000), kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		return nil, err
	}
	p := &kafkaPipe{client: client, free: free, slabs: make(chan *kafkaSlab, cap(free)), fair: o.Fair}
	for range cap(free) {
		s := &kafkaSlab{pipe: p}
		s.done = s.acknowledged
		p.slabs <- s
	}
	return p, nil
}

func (p *kafkaPipe) send(_ context.Context, pg *page) error {
	s := <-p.slabs // there are as many as pages
	s.page, s.records, s.waiting = pg, s.records[:0], len(pg.rows)
	s.headers, s.text = s.headers[:0], s.text[:0]
	now := time.Now()
	for i := range pg.rows {
		r := &pg.rows[i]
		record := kgo.Record{Topic: r.topic, Key: r.key, Value: r.payload, Timestamp: now}
		if p.fair {
			record.Headers = s.heads(r)
		}
		s.records = append(s.records, record)
	}
	for i := range s.records {
		p.client.Produce(context.Background(), &s.records[i], s.done)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// heads are the headers that the relay sends.
func (s *kafkaSlab) heads(r *row) []kgo.RecordHeader {
	first, at := len(s.headers), len(s.text)
	s.text, _ = outbox.ID(r.id).AppendText(s.text) // it has no error
	mid := len(s.text)
	s.text = s.pipe.second.append(s.text, r.created)
	for name, value, rest := header(r.headers); name != nil; name, value, rest = header(rest) {
		s.headers = append(s.headers, kgo.RecordHeader{Key: s.pipe.names.intern(name), Value: value})
	}
	s.headers = append(s.headers, kgo.RecordHeader{Key: "outbox-id", Value: s.text[at:mid:mid]},
		kgo.RecordHeader{Key: "outbox-event-type", Value: []byte(r.event)},
		kgo.RecordHeader{Key: "outbox-created-at", Value: s.text[mid:len(s.text):len(s.text)]})
	return s.headers[first:len(s.headers):len(s.headers)]
}

// second writes times, and formats each second once.
type second struct {
	at   int64
	text []byte
}

func (s *second) append(to []byte, t time.Time) []byte {
	if t.Unix() != s.at {
		s.at, s.text = t.Unix(), t.UTC().AppendFormat(s.text[:0], "2006-01-02T15:04:05.")
	}
	digits := [...]byte{0, 0, 0, 0, 0, 0, 'Z'}
	for i, left := 5, t.Nanosecond()/1000; i >= 0; i, left = i-1, left/10 {
		digits[i] = '0' + byte(left%10)
	}
	return append(append(to, s.text...), digits[:]...)
}

func (s *kafkaSlab) acknowledged(_ *kgo.Record, err error) {
	if err != nil {
		s.pipe.mu.Lock()
		s.pipe.err = err
		s.pipe.mu.Unlock()
	}
	if s.waiting--; s.waiting == 0 {
		pg := s.page
		s.pipe.slabs <- s
		s.pipe.free <- pg
	}
}

func (p *kafkaPipe) flush(ctx context.Context) error {
	err := p.client.Flush(ctx)
	p.client.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(err, p.err)
}

// natsPipe publishes with message ids and counts acknowledgements, which is less than what the client's
// own asynchronous publishing does.
type natsPipe struct {
	conn  *nats.Conn
	topic string
	inbox string
	free  chan *page
	fair  bool
	names names // of headers

	window chan struct{} // a place for each message without acknowledgement

	mu  sync.Mutex
	err error
}

// natsWindow is how many messages may be unacknowledged.
const natsWindow = 4000

func newNATSPipe(o order, free chan *page) (*natsPipe, error) {
	conn, err := nats.Connect(o.Address)
	if err != nil {
		return nil, err
	}
	p := &natsPipe{conn: conn, topic: o.Topic, inbox: conn.NewInbox(), free: free, fair: o.Fair, window: make(chan struct{}, natsWindow)}
	if _, err = conn.Subscribe(p.inbox, p.acknowledged); err == nil {
		err = conn.Flush()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return p, nil
}

// send copies the messages into the client's buffer, so the page is free at once.
func (p *natsPipe) send(ctx context.Context, pg *page) error {
	var id [32]byte
	ids, events, created := []string{""}, []string{""}, []string{""}
	keys, positions := []string{""}, []string{""}
	m := nats.Msg{Subject: p.topic, Reply: p.inbox, Header: nats.Header{jetstream.MsgIDHeader: ids}}
	if p.fair { // what the relay sends
		m.Header["Outbox-Event-Type"], m.Header["Outbox-Created-At"] = events, created
		m.Header["Outbox-Key"], m.Header["Outbox-Position"] = keys, positions
	}
	for i := range pg.rows {
		select {
		case p.window <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		hex.Encode(id[:], pg.rows[i].id[:])
		ids[0] = string(id[:])
		m.Data = pg.rows[i].payload
		if r := &pg.rows[i]; p.fair {
			ids[0], events[0], created[0] = outbox.ID(r.id).String(), r.event, r.created.UTC().Format(time.RFC3339Nano)
			keys[0], positions[0] = string(r.key), strconv.FormatInt(r.position, 10)
			for name, value, rest := header(r.headers); name != nil; name, value, rest = header(rest) {
				m.Header[p.names.intern(name)] = []string{string(value)} // every message has the same names
			}
		}
		if err := p.conn.PublishMsg(&m); err != nil {
			return err
		}
	}
	p.free <- pg
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *natsPipe) acknowledged(m *nats.Msg) {
	const accepted = `{"stream":`
	if len(m.Data) < len(accepted) || string(m.Data[:len(accepted)]) != accepted {
		p.mu.Lock()
		p.err = fmt.Errorf("JetStream answered %.200q", m.Data)
		p.mu.Unlock()
	}
	<-p.window
}

func (p *natsPipe) flush(ctx context.Context) error {
	defer p.conn.Close()
	for range natsWindow { // when all places are ours, nothing is on its way
		select {
		case p.window <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
