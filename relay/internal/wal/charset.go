package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/schema"
)

// charset turns texts of a database's encoding into UTF-8. The stream carries them as they are stored: the server would break off at
// the first that has no UTF-8 form, at the same place every time. One goroutine at a time.
type charset struct {
	encoding string // of the database
	source   *Source
	conn     *pgx.Conn // to ask for conversions; nil before the first one
}

// asStored makes a stream that begins on wal carry texts as they are stored.
func (s *Source) asStored(ctx context.Context, wal *walConn) (*charset, error) {
	if err := wal.Exec(ctx, "SET client_encoding = 'SQL_ASCII'").Close(); err != nil {
		return nil, fmt.Errorf("prepare the stream: %w", err)
	}
	return &charset{encoding: wal.ParameterStatus("server_encoding"), source: s}, nil
}

func (c *charset) close() {
	hangUp(c.conn)
	c.conn = nil
}

// convert replaces texts by their UTF-8 forms, and by escaped ones those that have none; faults says which these are, by their
// places, nil if there are none.
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

// ask has the server convert the texts at some places, or refuse one of them.
func (c *charset) ask(ctx context.Context, texts [][]byte, places []int) (converted [][]byte, err error) {
	if c.conn == nil {
		if c.conn, err = c.source.connect(ctx); err != nil {
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

// utf8 turns the texts of a row that was read from the log into UTF-8. An invalid row has what could be read of it, and no key if that
// could not.
func (r *row) utf8(ctx context.Context, c *charset) (invalid, err error) {
	texts := make([][]byte, len(r.columns.texts))
	for i, place := range r.columns.texts {
		texts[i] = r.values[place]
	}
	headers := len(texts) - 1 // behind a byte for the version
	if texts[headers] != nil {
		texts[headers] = texts[headers][1:]
	}
	faults, err := c.convert(ctx, texts)
	if err != nil {
		return nil, err
	}
	var found []error
	for i, place := range r.columns.texts {
		switch fault := faults[i]; {
		case fault == nil && i == headers && texts[i] != nil:
			texts[i] = append([]byte{1}, texts[i]...)
		case fault != nil:
			texts[i] = nil
			found = append(found, fmt.Errorf("%s can't be read as UTF-8: %w", r.columns.names[place], fault))
		}
		r.values[place] = texts[i]
	}
	if found != nil && r.values[r.columns.key] == nil {
		r.values[r.columns.aggregateID] = nil // whichever of the two it was, it has no lane but its own
	}
	return errors.Join(found...), nil
}
