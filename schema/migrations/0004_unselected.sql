-- Messages that no destination selects, by topic: what the relay that owns the first destination of its
-- configuration has passed over. It is a note for operators; nothing rests on it.
CREATE TABLE outbox.unselected (
    topic      text        NOT NULL PRIMARY KEY,
    messages   bigint      NOT NULL,
    event_type text        NOT NULL,
    message_id uuid        NOT NULL,
    relay      text        NOT NULL,
    first_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 20);
