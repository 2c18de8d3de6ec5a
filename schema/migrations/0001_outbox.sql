-- The outbox: what writers insert, where relays stand, what waits and what could not be delivered.
-- Column names and defaults of outbox.messages, and outbox.publish, are a public contract.

CREATE SEQUENCE outbox.messages_id_seq AS bigint CACHE 1;

-- xid stands before id: defaults are evaluated in column order, so a row's id is always drawn after
-- its transaction has its xid. CACHE 1 keeps ids in the order in which they are drawn.
CREATE TABLE outbox.messages (
    xid            xid8        NOT NULL DEFAULT pg_current_xact_id(),
    id             bigint      NOT NULL DEFAULT nextval('outbox.messages_id_seq'),
    message_id     uuid        NOT NULL DEFAULT gen_random_uuid(),
    topic          text        NOT NULL,
    key            text,
    shard          smallint    GENERATED ALWAYS AS
                               ((hashtextextended(coalesce(nullif(key, ''), nullif(aggregate_id, ''), message_id::text), 0) & 63)::smallint) STORED,
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        bytea,
    content_type   text,
    headers        json, -- and not jsonb: it is stored as it is sent
    deliver_at     timestamptz,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    segment        smallint    NOT NULL DEFAULT (date_part('epoch', now())::bigint / 600 % 8)::smallint
) PARTITION BY LIST (segment);

ALTER SEQUENCE outbox.messages_id_seq OWNED BY outbox.messages.id;

-- Windows are read by xid and id. shard is there so that the relay of a shard group looks at no other's rows.
CREATE INDEX messages_xid_id ON outbox.messages (xid, id, shard);

-- A message is found by its id or its ordering key. VACUUM fills this index, so an insert writes nothing to it. A range of
-- pages that is not yet in it is read as a whole.
CREATE INDEX messages_found ON outbox.messages USING brin (
    message_id uuid_bloom_ops (n_distinct_per_range = 1024, false_positive_rate = 0.005),
    coalesce(nullif(key, ''), nullif(aggregate_id, '')) text_bloom_ops (n_distinct_per_range = 1024, false_positive_rate = 0.005)
) WITH (pages_per_range = 32);

-- Eight segments of ten minutes. The clock only chooses where a row lands; whether a segment may be
-- emptied is decided by the cursors, under a lock.
CREATE TABLE outbox.messages_0 PARTITION OF outbox.messages FOR VALUES IN (0);
CREATE TABLE outbox.messages_1 PARTITION OF outbox.messages FOR VALUES IN (1);
CREATE TABLE outbox.messages_2 PARTITION OF outbox.messages FOR VALUES IN (2);
CREATE TABLE outbox.messages_3 PARTITION OF outbox.messages FOR VALUES IN (3);
CREATE TABLE outbox.messages_4 PARTITION OF outbox.messages FOR VALUES IN (4);
CREATE TABLE outbox.messages_5 PARTITION OF outbox.messages FOR VALUES IN (5);
CREATE TABLE outbox.messages_6 PARTITION OF outbox.messages FOR VALUES IN (6);
CREATE TABLE outbox.messages_7 PARTITION OF outbox.messages FOR VALUES IN (7);

-- A relay that rests holds this lock, and then writers notify it. At other times they only share the lock for the rest of
-- their transaction, which costs about a microsecond; a NOTIFY would serialise their commits. Where the queue of
-- notifications is filling, because a session doesn't fetch its own, nothing is added: a full queue fails commits.
CREATE FUNCTION outbox.wake() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('outbox_wake', '');
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER wake BEFORE INSERT ON outbox.messages FOR EACH STATEMENT
    WHEN (NOT pg_try_advisory_xact_lock_shared('outbox.messages'::regclass::oid::int4, 1))
    EXECUTE FUNCTION outbox.wake();

-- A cursor per destination and shard group. Everything visible in prev is settled. windows are the open
-- windows, oldest first: each holds what is visible in it and not in the one before. last_id is the last
-- settled id of the oldest, last_at when that message was written. Every write names the epoch of the lease that it was made under. lease is for how long it is
-- given: one that lasts much longer was given before the clock was set back. locked: the owner's session has an advisory lock, as
-- long as it lasts, on this table's oid and hashtext(shard_group || ' ' || destination). So another session that gets the lock knows
-- that the owner's has ended, and takes the lease before it expires.
-- lag_objective is how long a message may wait before the destination lags, 0 for as long as it likes: it is here so that everybody
-- judges by the same. settings are for people too: what the destination selects and how fast it may be (admin.Settings), as of
-- settings_at. delivered counts messages, each when it is settled as delivered. updated_at is written with the position only: a rebase after a restore goes by it.
CREATE TABLE outbox.cursors (
    destination       text          NOT NULL,
    shard_group       smallint      NOT NULL,
    shard_groups      smallint      NOT NULL,
    prev              pg_snapshot   NOT NULL DEFAULT '1:1:',
    windows           pg_snapshot[] NOT NULL DEFAULT '{}',
    last_id           bigint        NOT NULL DEFAULT 0,
    last_at           timestamptz,
    epoch             bigint        NOT NULL DEFAULT 0,
    owner             text,
    lease_until       timestamptz   NOT NULL DEFAULT '-infinity',
    lease             interval      NOT NULL DEFAULT '0',
    locked            boolean       NOT NULL DEFAULT false,
    system_identifier bigint        NOT NULL,
    delivered         bigint        NOT NULL DEFAULT 0,
    state             text          NOT NULL DEFAULT 'flowing',
    state_since       timestamptz   NOT NULL DEFAULT clock_timestamp(),
    last_error        text,
    last_error_at     timestamptz,
    lag_objective     interval      NOT NULL DEFAULT '30 seconds',
    settings          jsonb         NOT NULL DEFAULT '{}',
    settings_at       timestamptz   NOT NULL DEFAULT clock_timestamp(),
    updated_at        timestamptz   NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (destination, shard_group),
    CHECK (shard_groups BETWEEN 1 AND 64 AND shard_group >= 0 AND shard_group < shard_groups)
) WITH (fillfactor = 20);

-- Which broker each destination delivers to, so that a relay that has another one under the same name is refused. identity
-- has the broker's names, any of which is enough to know it by (relay.Identifier). relay recorded it. refused are the names of
-- the broker that was refused last, since the destination's own was last seen. outbox destinations move accepts it.
CREATE TABLE outbox.brokers (
    destination text        NOT NULL PRIMARY KEY,
    identity    text[]      NOT NULL,
    relay       text        NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    refused     text[],
    refused_by  text,
    refused_at  timestamptz
);

-- Running relays. backend_pid and backend_start name the database session of the instance, by which
-- the next one of the same name tells a dead predecessor from a live namesake. clock_ahead is the relay's clock less the
-- database's, when the relay last had a heartbeat. Nothing is decided by it: people are told of it. silence is how long the relay
-- may be silent until it is taken for dead by one of the same name, though its session lives: longer where nothing happens.
-- A dormant relay has no session, backend_pid is 0, and it is dead when it has not looked for as long as silence.
CREATE TABLE outbox.relays (
    name          text        NOT NULL PRIMARY KEY,
    instance      uuid        NOT NULL,
    backend_pid   integer     NOT NULL,
    backend_start timestamptz NOT NULL,
    host          text        NOT NULL,
    pid           integer     NOT NULL,
    version       text        NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    clock_ahead   interval    NOT NULL DEFAULT '0',
    silence       interval    NOT NULL DEFAULT '3 seconds',
    role          text        NOT NULL DEFAULT session_user -- when it can't log in any more, nothing else tells it
) WITH (fillfactor = 20);

-- Messages set aside for a later attempt: the head of a lane and those behind it. lane is the ordering
-- key, or the message id of a message without one, and short enough for the index (relay.Delivery.Lane).
-- Every head needs a retry_at: by it a relay finds the lane when it is due, and 'infinity' blocks the lane until an
-- operator acts. Only a head that a relay is about to load has none. Others have none either, but for one that older
-- holds have come before since it was a head: its time means nothing until it is the head again.
--
-- Here and in the dead letters id is a place in the order, and ids can repeat: sequences are set back, and
-- are not carried by logical replication. A message is known by its message_id. A writer may give that to
-- two messages, so a row is known by both, and no conflict can meet another message than the row's own.
CREATE TABLE outbox.holds (
    destination    text        NOT NULL,
    lane           text        NOT NULL,
    id             bigint      NOT NULL,
    message_id     uuid        NOT NULL,
    topic          text        NOT NULL,
    key            text,
    shard          smallint    NOT NULL,
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        bytea,
    content_type   text,
    headers        json,
    deliver_at     timestamptz,
    created_at     timestamptz NOT NULL,
    attempts       integer     NOT NULL DEFAULT 0,
    retry_at       timestamptz,
    error          text,
    held_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    deaths         integer     NOT NULL DEFAULT 0, -- how often it was a dead letter before
    original         jsonb, -- as in the dead letters
    original_payload bytea,
    job            bigint, -- the replay that sends it once more; NULL: the destination has not got it yet
    PRIMARY KEY (destination, lane, id, message_id)
);

CREATE INDEX holds_replayed ON outbox.holds (destination) WHERE job IS NOT NULL;

-- Relays list what is due route by route, so that millions of holds of a closed or paused topic are no trouble to others.
-- A hash, because a topic may be long. The expression is schema.RouteSQL. shard is there so that the relay of a shard group
-- looks at no other's rows.
CREATE INDEX holds_due ON outbox.holds (destination, (hashtextextended(topic,
    hashtextextended(coalesce(aggregate_type, ''), hashtextextended(coalesce(event_type, ''), 0)))), retry_at, shard)
    WHERE retry_at < 'infinity';

CREATE TABLE outbox.dead_letters (
    destination    text        NOT NULL,
    lane           text        NOT NULL,
    id             bigint      NOT NULL,
    message_id     uuid        NOT NULL,
    topic          text        NOT NULL,
    key            text,
    shard          smallint    NOT NULL,
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        bytea,
    content_type   text,
    headers        json,
    deliver_at     timestamptz,
    created_at     timestamptz NOT NULL,
    attempts       integer     NOT NULL,
    reason         text        NOT NULL,
    error          text        NOT NULL,
    dead_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    acknowledged_at timestamptz, -- when an operator said that they know of it, and who
    acknowledged_by text,
    deaths         integer     NOT NULL DEFAULT 1, -- more than one: it was requeued, and failed again
    -- What it was before an operator edited it first; NULL: it is as it was written. The payload is apart, because viewers
    -- may read the rest. Its headers are a text, because jsonb can't have all that json can.
    original         jsonb,
    original_payload bytea,
    -- What groups dead letters by cause: the error without ids, numbers and quoted names. What stays is the text of
    -- members of JSON, because receivers tell the cause there, and the number of a status or an error code.
    fingerprint    text        NOT NULL GENERATED ALWAYS AS (left(md5(regexp_replace(
        regexp_replace(error, '([{,]\s*\\?"[^"]*"\s*:(\s*\\?"[^"]*")?)|"[^"{]*"|''[^'']*''', '\1', 'g'),
        '[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}|(?<!(answers|answered|status|code|HTTP|error)"?[ :=]{1,2})\m[0-9]+|\m[0-9]*[A-Za-z_]+[0-9]\w*',
        '#', 'g')), 8)) STORED,
    PRIMARY KEY (destination, id, message_id)
);

CREATE INDEX dead_letters_message_id ON outbox.dead_letters (message_id);
CREATE INDEX dead_letters_fingerprint ON outbox.dead_letters (destination, fingerprint, dead_at);
CREATE INDEX dead_letters_new ON outbox.dead_letters (destination, dead_at) WHERE acknowledged_at IS NULL;

-- Bulk verbs on dead letters, or on blocked messages, and replays. What a job acts on is listed when it is planned, in
-- order, and its position is how far it has come in that list. A process that carries it out locks its row for a batch. next_at is
-- when the next batch may begin. An undo goes back to position 0.
--
-- A replay lists pages of messages. bounds has, for the shards of each cursor that must have passed its messages, what that
-- cursor had passed when the replay was planned. last_id is the id up to which it has come. A replay of an archive has no
-- pages: a command reads the archive, and fed_at is when it was last seen. last_id is then the lowest id that is not sent.
CREATE TABLE outbox.jobs (
    id          bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    verb        text        NOT NULL CHECK (verb IN ('requeue', 'discard', 'acknowledge', 'restore', 'replay')),
    blocked     boolean     NOT NULL,
    destination text, -- the one that all its messages are of, if the selection named it
    target      text, -- where a replay sends to
    selection   jsonb       NOT NULL,
    bounds      jsonb,
    last_id     bigint      NOT NULL DEFAULT -1,
    groups      jsonb       NOT NULL DEFAULT '[]',
    state       text        NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'running', 'undoing', 'done', 'stopped', 'undone')),
    total       bigint      NOT NULL DEFAULT 0,
    position    bigint      NOT NULL DEFAULT 0,
    done        bigint      NOT NULL DEFAULT 0, -- what was changed; the rest up to position was left as it is
    rate        integer     CHECK (rate > 0),   -- messages a second; NULL: as fast as it goes
    actor       text        NOT NULL,
    reason      text,
    note        text, -- why something was left as it is, or the last error
    planned_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at  timestamptz,
    begun_at    timestamptz,
    next_at     timestamptz,
    fed_at      timestamptz,
    ended_at    timestamptz
) WITH (fillfactor = 50);

CREATE INDEX jobs_next ON outbox.jobs (next_at) WHERE state IN ('running', 'undoing');

-- at is when the message was set aside: one that has been sent since, and has failed again, is another matter.
CREATE TABLE outbox.job_messages (
    job         bigint      NOT NULL REFERENCES outbox.jobs ON DELETE CASCADE,
    n           bigint      NOT NULL,
    destination text        NOT NULL,
    lane        text        NOT NULL,
    id          bigint      NOT NULL,
    message_id  uuid        NOT NULL,
    at          timestamptz NOT NULL,
    PRIMARY KEY (job, n)
);

-- Where the messages of a replay are: a page is that of their ids, and first and last are transaction ids. Of a page, there
-- is a row for each range of transaction ids in which it has messages, so that one that was open for long makes no page
-- read what lies between. upto is how many messages the job has up to here.
CREATE TABLE outbox.job_pages (
    job   bigint NOT NULL REFERENCES outbox.jobs ON DELETE CASCADE,
    page  bigint NOT NULL,
    first bigint NOT NULL,
    last  bigint NOT NULL,
    upto  bigint NOT NULL,
    PRIMARY KEY (job, page, first)
);

-- Dead letters that were discarded, as they were. They are kept for a day.
CREATE TABLE outbox.trash (
    LIKE outbox.dead_letters,
    job        bigint      NOT NULL, -- that discarded it
    trashed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (destination, id, message_id)
);

CREATE INDEX trash_trashed_at ON outbox.trash (trashed_at);

-- What operators did: who, when, why.
CREATE TABLE outbox.audit (
    id          bigint      NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor       text        NOT NULL,
    verb        text        NOT NULL,
    destination text,
    detail      jsonb       NOT NULL DEFAULT '{}',
    reason      text
);

-- header is a header's value, of an object that json can store: NULL also where the object has an escape that is no
-- character of the database, or is nested so deeply that its INSERT had just enough stack. The operators of json make
-- that an error, which would end a search at the first such row.
CREATE FUNCTION outbox.header(headers json, name text) RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(headers ->> name, (headers -> name)::text); -- as it is delivered: null is a text
EXCEPTION WHEN data_exception OR statement_too_complex THEN
    RETURN NULL;
END $$;

-- It reads nothing, so everybody may call it who may use the schema, whatever the owner's default privileges are.
GRANT EXECUTE ON FUNCTION outbox.header(json, text) TO PUBLIC;

-- publish inserts one message and returns its id. It refuses what a broker would refuse later, by the
-- same limits as the Go writer. An empty text is an absent one.
CREATE FUNCTION outbox.publish(
    topic text, payload bytea, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, event_type text DEFAULT NULL,
    content_type text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL, message_id uuid DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    result uuid := coalesce(message_id, gen_random_uuid());
    name   text;
    value  jsonb;
    found  text;
    total  integer := 0;
    pairs  integer := 0;
BEGIN
    IF coalesce(topic, '') = '' THEN
        RAISE EXCEPTION 'outbox.publish: topic is empty' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Give the topic that consumers read.';
    END IF;
    IF octet_length(topic) > 249 THEN
        RAISE EXCEPTION 'outbox.publish: topic has % bytes, the limit is 249', octet_length(topic)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Written out, because what [[:space:]] means depends on the database's locale.
    IF topic ~ E'[\\x01-\\x20\\x7f-\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]' THEN
        RAISE EXCEPTION 'outbox.publish: topic contains white space or a control character'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- One test for the usual case; the loop only finds out which field it is.
    IF greatest(octet_length(key), octet_length(aggregate_type), octet_length(aggregate_id),
                octet_length(event_type), octet_length(content_type)) > 1024
       OR concat(key, aggregate_type, aggregate_id, event_type, content_type) ~ E'[\\r\\n]' THEN
        FOR name, found IN
            SELECT f.name, f.found FROM (VALUES ('key', key), ('aggregate_type', aggregate_type),
                ('aggregate_id', aggregate_id), ('event_type', event_type), ('content_type', content_type)) f (name, found)
        LOOP
            IF octet_length(found) > 1024 THEN
                RAISE EXCEPTION 'outbox.publish: % has % bytes, the limit is 1024', name, octet_length(found)
                    USING ERRCODE = 'invalid_parameter_value';
            END IF;
            IF found ~ E'[\\r\\n]' THEN
                RAISE EXCEPTION 'outbox.publish: % contains CR or LF', name USING ERRCODE = 'invalid_parameter_value';
            END IF;
        END LOOP;
    END IF;
    IF octet_length(payload) > 1000000 THEN
        RAISE EXCEPTION 'outbox.publish: payload has % bytes, the limit is 1000000', octet_length(payload)
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Store the body elsewhere and publish a reference to it.';
    END IF;
    IF deliver_at NOT BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN
        RAISE EXCEPTION 'outbox.publish: deliver_at is %, it must be in the years 1970 to 9999', deliver_at
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF headers IS NOT NULL THEN
        IF jsonb_typeof(headers) <> 'object' THEN
            RAISE EXCEPTION 'outbox.publish: headers is a JSON %, it must be an object of strings', jsonb_typeof(headers)
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        FOR name, value IN SELECT e.key, e.value FROM jsonb_each(headers) e LOOP
            IF jsonb_typeof(value) <> 'string' THEN
                RAISE EXCEPTION 'outbox.publish: header "%" is a JSON %, it must be a string', name, jsonb_typeof(value)
                    USING ERRCODE = 'invalid_parameter_value';
            END IF;
            IF name = '' OR name ~ E'[\\r\\n]' OR (value #>> '{}') ~ E'[\\r\\n]' THEN
                RAISE EXCEPTION 'outbox.publish: header "%" has an empty name, or CR or LF in it', name
                    USING ERRCODE = 'invalid_parameter_value';
            END IF;
            IF starts_with(lower(name COLLATE "C"), 'outbox-') THEN
                RAISE EXCEPTION 'outbox.publish: header "%" has a name that begins with outbox-, as only headers of the relay do', name
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Rename it.';
            END IF;
            -- Written out, because what a range of letters means depends on the database's locale.
            IF translate(name, '0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ!#$%&''*+-.^_`|~', '') <> '' THEN
                RAISE EXCEPTION 'outbox.publish: header "%" has a name that no protocol can carry: it has letters of ASCII, digits and %',
                    name, '!#$%&''*+-.^_`|~' USING ERRCODE = 'invalid_parameter_value';
            END IF;
            total := total + octet_length(name) + octet_length(value #>> '{}');
            pairs := pairs + 1;
        END LOOP;
        IF pairs > 64 OR total > 32768 THEN
            RAISE EXCEPTION 'outbox.publish: % headers with % bytes, the limits are 64 and 32768', pairs, total
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    INSERT INTO outbox.messages (message_id, topic, key, aggregate_type, aggregate_id, event_type, payload, content_type,
                                 headers, deliver_at)
    VALUES (result, topic, nullif(key, ''), nullif(aggregate_type, ''), nullif(aggregate_id, ''), nullif(event_type, ''),
            payload, nullif(content_type, ''), nullif(headers, '{}'), deliver_at);
    RETURN result;
END
$$;

CREATE FUNCTION outbox.publish(
    topic text, payload text, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, event_type text DEFAULT NULL,
    content_type text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL, message_id uuid DEFAULT NULL
) RETURNS uuid LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT outbox.publish(topic, convert_to(payload, 'UTF8'), key, headers, aggregate_type, aggregate_id, event_type,
                          content_type, deliver_at, message_id)
$$;

CREATE FUNCTION outbox.publish(
    topic text, payload jsonb, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, event_type text DEFAULT NULL,
    content_type text DEFAULT 'application/json', deliver_at timestamptz DEFAULT NULL, message_id uuid DEFAULT NULL
) RETURNS uuid LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT outbox.publish(topic, convert_to(payload::text, 'UTF8'), key, headers, aggregate_type, aggregate_id, event_type,
                          content_type, deliver_at, message_id)
$$;

-- Nobody may call it unless granted, as nobody may insert.
REVOKE ALL ON FUNCTION
    outbox.publish(text, bytea, text, jsonb, text, text, text, text, timestamptz, uuid),
    outbox.publish(text, text, text, jsonb, text, text, text, text, timestamptz, uuid),
    outbox.publish(text, jsonb, text, jsonb, text, text, text, text, timestamptz, uuid)
FROM PUBLIC;
