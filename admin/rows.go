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

// Value is what p points to, or the zero value.
func Value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// OrElse is s, or the other text if s is empty.
func OrElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// Moment is a time that JSON can write, or NULL: rows may have infinity, and years beyond 9999.
func Moment(sql string) string {
	return "CASE WHEN " + sql + " BETWEEN '0001-01-02 00:00Z' AND '9999-12-30 00:00Z' THEN " + sql + " END"
}

// Readable is a text as it can be sent whatever the database's encoding: unless that is UTF-8, one that isn't ASCII has
// its bytes in octal. A dead letter may be one because of a text that has no UTF-8 form.
func Readable(text string) string {
	return `CASE WHEN getdatabaseencoding() = 'UTF8' OR ` + text + ` !~ E'[^\\x01-\\x7f]' THEN ` + text + `
		ELSE encode(decode(replace(` + text + `, E'\\', E'\\\\'), 'escape'), 'escape') END`
}

// ReadableJSON is a column of json or jsonb, as text; one that can't be sent as it is becomes a string of what is
// readable.
func ReadableJSON(column string) string {
	text := column + "::text"
	return `CASE WHEN ` + Readable(text) + ` = ` + text + ` THEN ` + text + ` ELSE to_jsonb(` + Readable(text) + `)::text END`
}

// StoredJSON is a JSON text as the database has it, or that text as a string if package json can't write it: it refuses
// what is nested deeper than 10,000 levels, with all that is around it.
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

// PageSize is how many entries of a list are read: 100 unless told, at most 1000.
func PageSize(limit int) int {
	if limit <= 0 {
		return 100
	}
	return min(limit, 1000)
}

// IDTexts are ids as statements take them.
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

// CountLimit is up to where things are counted one by one.
const CountLimit = 10_000

// Count is a number of messages: exact, or an estimate once counting would cost too much.
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

// Plus is the sum of both, which is an estimate if one of them is.
func (c Count) Plus(d Count) Count { return Count{c.N + d.N, c.Estimated || d.Estimated} }

// SampleLimit bounds how many holds and dead letters are counted.
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
