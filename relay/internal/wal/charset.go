package wal

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/dial"
	"github.com/pgoutbox/outbox/schema"
)

// charset converts texts from the database's encoding to UTF-8. The stream carries them as they are stored: a server
// that converted them would break off at the first text without a UTF-8 form, at the same place every time. One
// goroutine at a time.
type charset struct {
	encoding string // of the database
	server   Server
	conn     *pgx.Conn // to ask for conversions; nil before the first one
}

// asStored makes the stream that begins on conn carry texts as they are stored.
func (s Server) asStored(ctx context.Context, conn *Conn) (*charset, error) {
	if err := conn.Exec(ctx, "SET client_encoding = 'SQL_ASCII'").Close(); err != nil {
		return nil, fmt.Errorf("prepare the stream: %w", err)
	}
	return &charset{encoding: conn.ParameterStatus("server_encoding"), server: s}, nil
}

func (c *charset) close() {
	dial.HangUp(c.conn)
	c.conn = nil
}

// convert replaces texts by their UTF-8 forms. A text without one is replaced by an escaped form, and faults has its
// index; faults is nil if there is none.
func (c *charset) convert(ctx context.Context, texts [][]byte) (faults map[int]error, err error) {
	if c.encoding == "UTF8" {
		return nil, nil
	}
	var places []int
	for i, text := range texts {
		if bytes.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) {
			places = append(places, i)
		}
	}
	if len(places) == 0 {
		return nil, nil
	}
	converted, err := c.ask(ctx, texts, places)
	if err == nil {
		for i, at := range places {
			texts[at] = converted[i]
		}
		return nil, nil
	}
	if !schema.IsDataError(err) {
		return nil, err
	}
	faults = make(map[int]error)
	for _, at := range places {
		switch converted, err := c.ask(ctx, texts, []int{at}); {
		case err == nil:
			texts[at] = converted[0]
		case schema.IsDataError(err):
			faults[at] = err
			quoted := strconv.QuoteToASCII(string(texts[at]))
			texts[at] = []byte(quoted[1 : len(quoted)-1])
		default:
			return nil, err
		}
	}
	return faults, nil
}

// ask makes the server convert the texts at the given indexes; the server may refuse one of them.
func (c *charset) ask(ctx context.Context, texts [][]byte, places []int) (converted [][]byte, err error) {
	if c.conn == nil {
		if c.conn, err = c.server.Connect(ctx); err != nil {
			return nil, err
		}
	}
	list, args := make([]string, len(places)), make([]any, len(places))
	for i, at := range places {
		list[i] = fmt.Sprintf("convert($%d::bytea, %s, 'UTF8')", i+1, schema.QuoteLiteral(c.encoding))
		args[i] = texts[at]
		converted = append(converted, nil)
	}
	into := make([]any, len(places))
	for i := range into {
		into[i] = &converted[i]
	}
	if err := c.conn.QueryRow(ctx, "SELECT "+strings.Join(list, ", "), args...).Scan(into...); err != nil {
		return nil, fmt.Errorf("convert a text to UTF-8: %w", err)
	}
	return converted, nil
}
