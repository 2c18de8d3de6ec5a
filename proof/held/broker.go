package main

import (
	"context"
	"encoding/gob"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/relay"
	"github.com/pgoutbox/outbox/relay/polling"
)

// request is a call to the broker, which is this program's first process; answer has a byte for each message: 0 for
// accepted, 1 for a topic that doesn't exist.
type request struct {
	Topics   []string
	Payloads [][]byte
}

type answer []byte

// remote is the broker as the relay's process sees it. Each call takes a connection of its own.
type remote struct {
	address string
	mu      sync.Mutex
	idle    []*peer
}

type peer struct {
	net.Conn
	in  *gob.Decoder
	out *gob.Encoder
}

func newPeer(conn net.Conn) *peer { return &peer{conn, gob.NewDecoder(conn), gob.NewEncoder(conn)} }

func (r *remote) Publish(ctx context.Context, batch []*outbox.Message) []error {
	var q request
	for _, m := range batch {
		q.Topics, q.Payloads = append(q.Topics, m.Topic), append(q.Payloads, m.Payload)
	}
	a, err := r.call(ctx, &q)
	errs := make([]error, len(batch))
	missing := make(map[string]bool) // keys
	failed := false
	for i, m := range batch {
		switch {
		case err != nil:
			errs[i] = outbox.Unavailable(err)
		case missing[m.OrderingKey()] && m.OrderingKey() != "":
			errs[i] = outbox.ErrSkipped
		case a[i] != 0:
			errs[i] = outbox.TopicUnavailable(errors.New("topic " + m.Topic + " doesn't exist"))
			missing[m.OrderingKey()] = true
		}
		failed = failed || errs[i] != nil
	}
	if !failed {
		return nil
	}
	return errs
}

func (r *remote) call(ctx context.Context, q *request) (a answer, err error) {
	r.mu.Lock()
	var p *peer
	if n := len(r.idle); n > 0 {
		p, r.idle = r.idle[n-1], r.idle[:n-1]
	}
	r.mu.Unlock()
	if p == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.address)
		if err != nil {
			return nil, err
		}
		p = newPeer(conn)
	}
	if err = p.out.Encode(q); err == nil {
		err = p.in.Decode(&a)
	}
	if err != nil || len(a) != len(q.Topics) {
		return nil, errors.Join(err, p.Close(), errors.New("the broker has not answered"))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle = append(r.idle, p)
	return a, nil
}

func (r *remote) Close() error { return nil }

// relayProcess is the second process: a relay with the default strategy and settings.
func relayProcess(ctx context.Context, url, broker string) error {
	conn, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	source, err := polling.NewSnapshot(conn, destination, polling.SnapshotConfig{Logger: logger})
	if err != nil {
		return err
	}
	r, err := relay.New(source, &remote{address: broker}, relay.Config{Name: destination, Logger: logger, Grace: time.Second})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
