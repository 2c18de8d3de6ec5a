package wal

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// wire is a connection on which the server streams. Frames are parsed in the receive buffer, so a frame is valid until
// the next fill.
//
// One goroutine may read, and one at a time may write.
type wire struct {
	conn net.Conn
	in   io.Reader // reads conn
	low  lowWater

	buf        []byte
	start, end int // of the bytes that were received and not parsed
}

const (
	bufferSize   = 256 << 10
	writeTimeout = 10 * time.Second
	partWithin   = 2 * time.Second
)

// errTick means that nothing came in time.
var errTick = errors.New("nothing came")

// errStreamEnded means that the server has ended the stream regularly, as it does when it shuts down.
var errStreamEnded = errors.New("the server has ended the stream")

// takeOver turns an idle connection into a wire. pgx starts a background reader when a write is slow, and that reader
// may still wait for bytes: it would get the answer to the next command. So the wire reads through that reader, which
// first returns the bytes that it has, and then ends.
func takeOver(conn *Conn) (*wire, error) {
	hijacked, err := conn.Hijack()
	if err != nil {
		return nil, err
	}
	for hijacked.Frontend.ReadBufferLen() > 0 { // the server has sent more than it was asked for
		message, err := hijacked.Frontend.Receive()
		if err != nil {
			return nil, err
		}
		if fault, ok := message.(*pgproto3.ErrorResponse); ok {
			return nil, pgconn.ErrorResponseToPgError(fault)
		}
	}
	w := &wire{conn: hijacked.Conn, in: conn.in, buf: make([]byte, bufferSize)}
	under := w.conn
	if secure, ok := under.(*tls.Conn); ok {
		under = secure.NetConn()
	}
	w.low = newLowWater(under)
	return w, nil
}

// close ends the connection, even while a goroutine reads.
func (w *wire) close() { _ = w.conn.Close() }

// frame returns the next complete message that was received, or false if there is none.
func (w *wire) frame() (typ byte, body []byte, ok bool) {
	have := w.buf[w.start:w.end]
	if len(have) < 5 {
		return 0, nil, false
	}
	n := int(binary.BigEndian.Uint32(have[1:])) + 1
	if n < 5 || len(have) < n {
		return 0, nil, false
	}
	w.start += n
	return have[0], have[5:n:n], true
}

// fill receives more bytes. It returns errTick if none have come until deadline, and returns at once when ctx ends.
func (w *wire) fill(ctx context.Context, deadline time.Time) error {
	if err := w.makeRoom(); err != nil {
		return err
	}
	if err := w.conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	if ctx.Done() != nil {
		// This comes after the deadline was set, because it moves the deadline into the past.
		defer context.AfterFunc(ctx, func() { _ = w.conn.SetReadDeadline(time.Unix(1, 0)) })()
	}
	n, err := w.in.Read(w.buf[w.end:])
	w.end += n
	if n > 0 {
		return nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errTick
	}
	return err
}

// makeRoom makes room behind the received bytes, at least for the rest of the last message.
func (w *wire) makeRoom() error {
	have := w.end - w.start
	need := 0
	if have >= 5 {
		size := uint64(binary.BigEndian.Uint32(w.buf[w.start+1:])) + 1
		if size < 5 || size > 1<<31 {
			return fmt.Errorf("the server sent a message of %d bytes", size)
		}
		need = int(size)
	}
	switch {
	case have == 0 && len(w.buf) <= 4*bufferSize:
		w.start, w.end = 0, 0
	case need > len(w.buf) || have == 0 || len(w.buf) > 4*bufferSize && max(need, have) < bufferSize:
		// The buffer grows for a large message and shrinks again afterwards.
		bigger := make([]byte, max(bufferSize, need+bufferSize/4))
		copy(bigger, w.buf[w.start:w.end])
		w.buf, w.start, w.end = bigger, 0, have
	case len(w.buf)-w.end < bufferSize/4 || w.start+need > len(w.buf):
		copy(w.buf, w.buf[w.start:w.end])
		w.start, w.end = 0, have
	}
	return nil
}

func (w *wire) send(message []byte) error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := w.conn.Write(message)
	return err
}

// begin sends START_REPLICATION and waits until the server streams.
func (w *wire) begin(ctx context.Context, command string) error {
	query := (&pgproto3.Query{String: command})
	message, err := query.Encode(nil)
	if err != nil {
		return err
	}
	if err := w.send(message); err != nil {
		return err
	}
	for {
		typ, body, ok := w.frame()
		if !ok {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := w.fill(ctx, time.Now().Add(time.Second)); err != nil && !errors.Is(err, errTick) {
				return err
			}
			continue
		}
		switch typ {
		case 'W':
			return nil
		case 'E':
			return serverError(body)
		case 'N', 'S', 'Z':
		default:
			return fmt.Errorf("unexpected answer %q to %s", typ, command)
		}
	}
}

func serverError(body []byte) error {
	var response pgproto3.ErrorResponse
	if err := response.Decode(body); err != nil {
		return err
	}
	return pgconn.ErrorResponseToPgError(&response)
}

// status tells the server what was received and up to where nothing is needed any more. It sends all three positions:
// the server takes a missing one for not written, and would wait for it at a shutdown.
func (w *wire) status(received, confirmed LSN, answer bool) error {
	var m [1 + 4 + 1 + 8*4 + 1]byte
	m[0] = 'd'
	binary.BigEndian.PutUint32(m[1:], uint32(len(m)-1))
	m[5] = 'r'
	binary.BigEndian.PutUint64(m[6:], uint64(max(received, confirmed))) // written
	binary.BigEndian.PutUint64(m[14:], uint64(confirmed))               // flushed
	binary.BigEndian.PutUint64(m[22:], uint64(confirmed))               // applied
	binary.BigEndian.PutUint64(m[30:], uint64(time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds()))
	if answer {
		m[38] = 1
	}
	return w.send(m[:])
}

// goodbye ends the stream regularly.
func (w *wire) goodbye() {
	_ = w.send(copyDoneAndTerminate()) // the server may be gone already
	w.close()
}

// closeGracefully ends the stream as goodbye does, and waits until the server has read everything that was sent before:
// the next reader may end the stream without asking.
func (w *wire) closeGracefully() {
	defer w.close()
	until := time.Now().Add(partWithin)
	if w.send(copyDoneAndTerminate()) != nil || w.conn.SetReadDeadline(until) != nil {
		return
	}
	for {
		if _, err := w.in.Read(w.buf); err != nil {
			return // the server has ended the connection
		}
	}
}

func copyDoneAndTerminate() []byte { return []byte{'c', 0, 0, 0, 4, 'X', 0, 0, 0, 4} }
