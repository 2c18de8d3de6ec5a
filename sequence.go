package outbox

import (
	"fmt"
	"strconv"
)

// SequenceHeader carries a message's number among those of its topic and ordering key, if its Writer numbers them: 1,
// 2, 3 and so on in the order of their commits, without gaps. Every broker carries it, because it is a header. A
// consumer that misses a number misses a message; package inbox detects that.
const SequenceHeader = "sequence"

// SequenceOf returns the number that m carries and whether it carries one. It is an error if the header exists and is
// not a number from 1.
func SequenceOf(m *Message) (n int64, ok bool, err error) {
	text, ok := m.Header(SequenceHeader)
	if !ok {
		return 0, false, nil
	}
	n, err = strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, false, fmt.Errorf("outbox: the header %q is %.40q: it must be a number from 1", SequenceHeader, text)
	}
	return n, true, nil
}

// The row of outbox.sequences is locked from the first message of a key that a transaction writes to the transaction's
// end. So a drawn number either commits or is drawn again, and the rows' ids, which are drawn after it, are in the same
// order.
const insertOneNumbered = `WITH s AS (
	INSERT INTO outbox.sequences AS q (topic, key, last) VALUES ($2::text, $11::text, 1)
	ON CONFLICT ON CONSTRAINT sequences_pkey DO UPDATE SET last = q.last + 1 RETURNING q.last
)
INSERT INTO outbox.messages ` + insertColumns + `
SELECT $1::uuid, $2::text, $3::text, $4::text, $5::text, $6::text, $7::bytea, $8::text,
       (coalesce(left($9::text, -1) || ',', '{') || '"` + SequenceHeader + `":"' || s.last || '"}')::json, $10::timestamptz
FROM s`

// The rows of several keys are locked in the order of the keys, so that two calls don't deadlock. Messages without a
// key have no number.
const insertManyNumbered = `WITH m AS MATERIALIZED (
	SELECT m.*, coalesce(nullif(m.key, ''), nullif(m.aggregate_id, '')) AS lane
	FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], $9::text[], $10::text[])
	     WITH ORDINALITY AS m (message_id, topic, key, aggregate_type, aggregate_id, event_type, payload, content_type, headers, deliver_at, place)
), s AS (
	INSERT INTO outbox.sequences AS q (topic, key, last)
	SELECT m.topic, m.lane, count(*) FROM m WHERE m.lane IS NOT NULL GROUP BY m.topic, m.lane ORDER BY m.topic, m.lane
	ON CONFLICT ON CONSTRAINT sequences_pkey DO UPDATE SET last = q.last + excluded.last RETURNING q.topic, q.key, q.last
), n AS MATERIALIZED (
	SELECT m.*, s.last - count(*) OVER (PARTITION BY m.topic, m.lane)
	            + row_number() OVER (PARTITION BY m.topic, m.lane ORDER BY m.place) AS number
	FROM m LEFT JOIN s ON s.topic = m.topic COLLATE "C" AND s.key = m.lane COLLATE "C"
)
INSERT INTO outbox.messages ` + insertColumns + `
SELECT nullif(m.message_id, '')::uuid, m.topic, nullif(m.key, ''), nullif(m.aggregate_type, ''), nullif(m.aggregate_id, ''),
       nullif(m.event_type, ''), m.payload, nullif(m.content_type, ''),
       coalesce(coalesce(nullif(left(m.headers, -1), '') || ',', '{') || '"` + SequenceHeader + `":"' || m.number || '"}',
                nullif(m.headers, ''))::json,
       nullif(m.deliver_at, '')::timestamptz
FROM n m ORDER BY m.place`
