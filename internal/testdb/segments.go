package testdb

import "fmt"

// PastSegment is a segment that isn't written to for half an hour or more, whatever the time is.
func (db DB) PastSegment() string {
	db.T.Helper()
	return db.Value(`SELECT (date_part('epoch', clock_timestamp())::bigint / 600 + 4) % 8`)
}

// WriteTo writes a message to a segment.
func (db DB) WriteTo(segment, payload string) {
	db.T.Helper()
	db.Exec(`INSERT INTO outbox.messages (topic, payload, segment) VALUES ('t', $1, $2::text::smallint)`, []byte(payload), segment)
}

// FillPast writes messages to a past segment.
func (db DB) FillPast(messages int) {
	db.T.Helper()
	db.Exec(fmt.Sprintf(`INSERT INTO outbox.messages (topic, payload, segment)
		SELECT 't', 'x', (date_part('epoch', now())::bigint / 600 + 4) %% 8 FROM generate_series(1, %d)`, messages))
}
