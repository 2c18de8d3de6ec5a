-- What operators ask of a destination, or of one that is still to come: pauses, and a bound on its rate. Relays read it
-- about once a second. An empty topic or lane stands for all. The id is there because a table of a publication needs a key.
CREATE TABLE outbox.controls (
    id          uuid             NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    destination text             NOT NULL,
    topic       text             NOT NULL DEFAULT '',
    lane        text             NOT NULL DEFAULT '',
    rate        double precision CHECK (rate IS NULL OR rate > 0 AND topic = '' AND lane = ''), -- messages a second; NULL: a pause
    until       timestamptz      NOT NULL DEFAULT 'infinity',
    actor       text             NOT NULL,
    reason      text,
    at          timestamptz      NOT NULL DEFAULT clock_timestamp()
);

CREATE UNIQUE INDEX controls_target ON outbox.controls (destination, topic, lane, (rate IS NULL));
