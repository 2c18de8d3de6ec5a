package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/printed"
)

// Value returns what p points to, or the zero value.
func Value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// JSONTime returns a time, in SQL, that JSON can write, or NULL: rows may have infinity, and years beyond 9999.
func JSONTime(sql string) string {
	return "CASE WHEN " + sql + " BETWEEN '0001-01-02 00:00Z' AND '9999-12-30 00:00Z' THEN " + sql + " END"
}

// Readable returns a text, in SQL, that can be sent in every encoding of a database: unless that is UTF-8, a text that
// isn't ASCII is sent with its bytes in octal. A text without a UTF-8 form may be the reason why a message died.
func Readable(text string) string {
	return `CASE WHEN getdatabaseencoding() = 'UTF8' OR ` + text + ` !~ E'[^\\x01-\\x7f]' THEN ` + text + `
		ELSE encode(decode(replace(` + text + `, E'\\', E'\\\\'), 'escape'), 'escape') END`
}

// ReadableJSON returns a column of json or jsonb as text, in SQL. If it can't be sent as it is, it becomes a string of
// what is readable.
func ReadableJSON(column string) string {
	text := column + "::text"
	return `CASE WHEN ` + Readable(text) + ` = ` + text + ` THEN ` + text + ` ELSE to_jsonb(` + Readable(text) + `)::text END`
}

// StoredJSON returns a JSON text as the database has it. If package json can't write it, because it is nested deeper
// than 10,000 levels, it returns the text as a string.
func StoredJSON(text *string) json.RawMessage {
	if text == nil {
		return nil
	}
	if raw := json.RawMessage(*text); json.Valid(raw) {
		return raw
	}
	s, _ := json.Marshal(*text) // a string can be written
	return s
}

// PageSize returns how many entries of a list are read: 100 by default, at most 1000.
func PageSize(limit int) int {
	if limit <= 0 {
		return 100
	}
	return min(limit, 1000)
}

// IDTexts returns ids in the form of statements' arguments.
func IDTexts(ids []outbox.ID) []string {
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = id.String()
	}
	return list
}

// PreferIndexes keeps the planner from reading whole segments, or all that an index has of a backlog:
// statistics of segments are always out of date, and everything here ends after some rows. To plan a query for all
// segments takes longer than to run it, so it is planned once for all cursors.
func PreferIndexes(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off;
		SET LOCAL plan_cache_mode = force_generic_plan`)
	return err
}

// CountLimit is the number up to which counts are exact.
const CountLimit = 10_000

// Count is a number of messages: exact, or an estimate where counting would cost too much.
type Count struct {
	N         int64 `json:"n"`
	Estimated bool  `json:"estimated,omitempty"`
}

func (c Count) String() string {
	if c.Estimated {
		return "~" + printed.Number(c.N)
	}
	return printed.Number(c.N)
}

// Plus returns the sum, which is an estimate if either number is.
func (c Count) Plus(d Count) Count { return Count{c.N + d.N, c.Estimated || d.Estimated} }

// SampleLimit is how many holds and dead letters are counted at most.
const SampleLimit = 100_000

// DecodeJSON reads one value. Numbers keep all their digits.
func DecodeJSON(text []byte) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows the value")
	}
	return value, nil
}
