-- The inbox: what consumers have applied, so that a repeat of a message has no effect, and how far they
-- have come with each key. outbox.receive is a public contract. So is outbox.next_sequence, by which
-- writers number the messages of a key.

-- What is applied is recorded in three tables of one shape, by turns. One is written to ("current"), the
-- one before it is still looked into, and the third is emptied by TRUNCATE, without a lock on the other
-- two. What a transaction has recorded is found for at least keep after it has ended, because the turn
-- goes on only when the table before has had no writer for that long (closed_at).
CREATE TABLE outbox.inbox_rotation (
    single    boolean     NOT NULL PRIMARY KEY DEFAULT true CHECK (single),
    current   smallint    NOT NULL DEFAULT 0 CHECK (current BETWEEN 0 AND 2),
    keep      interval    NOT NULL DEFAULT '7 days' CHECK (keep > '0'),
    began_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at timestamptz DEFAULT clock_timestamp(),
    emptied   boolean     NOT NULL DEFAULT true
) WITH (fillfactor = 20);

INSERT INTO outbox.inbox_rotation DEFAULT VALUES;

-- The order in which messages were applied. CACHE 1, so that one that was drawn later is larger.
CREATE SEQUENCE outbox.inbox_applied_seq AS bigint CACHE 1;

-- id is the message's id, or one that is made of its deduplication key: 16 bytes either way, so that the
-- index stays narrow. message_id is NULL where it would be id.
CREATE TABLE outbox.inbox_0 (
    consumer    text COLLATE "C" NOT NULL,
    id          uuid        NOT NULL,
    applied     bigint      NOT NULL DEFAULT nextval('outbox.inbox_applied_seq'),
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    message_id  uuid,
    dedup_key   text,
    PRIMARY KEY (consumer, id)
) WITH (autovacuum_freeze_min_age = 0);
CREATE TABLE outbox.inbox_1 (LIKE outbox.inbox_0 INCLUDING ALL) WITH (autovacuum_freeze_min_age = 0);
CREATE TABLE outbox.inbox_2 (LIKE outbox.inbox_0 INCLUDING ALL) WITH (autovacuum_freeze_min_age = 0);

-- Everything that is recorded, for people and for verification.
CREATE VIEW outbox.inbox AS
    SELECT consumer, coalesce(message_id, id) AS message_id, applied, recorded_at, dedup_key, id FROM outbox.inbox_0
    UNION ALL SELECT consumer, coalesce(message_id, id), applied, recorded_at, dedup_key, id FROM outbox.inbox_1
    UNION ALL SELECT consumer, coalesce(message_id, id), applied, recorded_at, dedup_key, id FROM outbox.inbox_2;

-- How far a consumer has come with a key: the last sequence number, the last version.
CREATE TABLE outbox.inbox_positions (
    consumer   text COLLATE "C" NOT NULL,
    topic      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    sequence   bigint,
    version    bigint,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, topic, key)
) WITH (fillfactor = 70);

-- Stretches of sequence numbers that a consumer has passed without having seen them.
CREATE TABLE outbox.inbox_gaps (
    consumer    text COLLATE "C" NOT NULL,
    topic       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    first       bigint      NOT NULL,
    last        bigint      NOT NULL,
    detected_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, topic, key, first),
    CHECK (first <= last)
);

-- The last number that was given to a message of a topic and key. Its row is locked until the writer's
-- transaction ends: so numbers have no gaps, and their order is that of the commits. A conflict is with the last number, and
-- counts on from it. A logical replication of the outbox must include this table: otherwise numbers repeat, and a
-- consumer takes a message with such a number for a repeat.
CREATE TABLE outbox.sequences (
    topic text COLLATE "C" NOT NULL,
    key   text COLLATE "C" NOT NULL,
    last  bigint NOT NULL,
    PRIMARY KEY (topic, key)
) WITH (fillfactor = 50);

CREATE FUNCTION outbox.next_sequence(topic text, key text) RETURNS bigint LANGUAGE sql SET search_path = pg_catalog, pg_temp SET row_security = off AS $$
    INSERT INTO outbox.sequences AS s (topic, key, last) VALUES ($1, $2, 1)
    ON CONFLICT ON CONSTRAINT sequences_pkey DO UPDATE SET last = s.last + 1 RETURNING s.last
$$;

-- inbox_id makes an id of a deduplication key: the text itself if it is a UUID, else the beginning of its
-- SHA-256 as a UUID of version 8. package inbox does the same.
CREATE FUNCTION outbox.inbox_id(dedup_key text) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN $1 ~ '^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$' THEN $1::uuid
    ELSE encode(set_byte(set_byte(h, 6, get_byte(h, 6) & 15 | 128), 8, get_byte(h, 8) & 63 | 128), 'hex')::uuid END
    FROM substring(sha256(convert_to($1, 'UTF8')) FROM 1 FOR 16) h
$$;

-- receive records, in the caller's transaction, that a consumer applies a message, and says whether it may:
--   applied    recorded: apply it now, in this transaction
--   duplicate  it was recorded before: do nothing
--   busy       another transaction is recording it (only with wait => false): come back later
-- A conflict is with a record of the same consumer and message, or deduplication key, which is what is looked for.
-- Two transactions with one message meet in a unique index, and the second waits for the first. They do so
-- whichever table is current for each: until the table before has no writer any more (closed_at), a message is
-- recorded there too; and once it has none, what it has is seen.
--
-- Where a transaction sees one snapshot throughout, that is not so. It then writes to all tables: a row
-- that it doesn't see is a conflict in one of them, and error 40001.
--
-- The settings: a plan that was made while a table was small must not read all of it when it has grown; and a policy that
-- hides records, so that a message would be applied again, makes an error.
CREATE FUNCTION outbox.receive(consumer text, message_id uuid, dedup_key text DEFAULT NULL, wait boolean DEFAULT true)
RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET row_security = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    entry uuid := receive.message_id;
    mid   uuid;
    dedup text := nullif(receive.dedup_key, '');
    turn  smallint;
    open  boolean;
    no    bigint;
BEGIN
    IF dedup IS NOT NULL THEN
        entry := outbox.inbox_id(dedup);
        mid := nullif(receive.message_id, entry);
    END IF;
    IF coalesce(consumer, '') = '' OR octet_length(consumer) > 200 THEN
        RAISE EXCEPTION 'outbox.receive: the consumer''s name has % bytes, it must have 1 to 200', coalesce(octet_length(consumer), 0)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF entry IS NULL THEN
        RAISE EXCEPTION 'outbox.receive: the message has neither an id nor a deduplication key'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one of them, the same at every repeat of the message.';
    END IF;
    IF octet_length(dedup) > 1024 THEN
        RAISE EXCEPTION 'outbox.receive: the deduplication key has % bytes, the limit is 1024', octet_length(dedup)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Use a hash of it.';
    END IF;
    IF NOT wait THEN
        RETURN outbox.try_receive(consumer, receive.message_id, dedup);
    END IF;

    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        IF EXISTS (SELECT FROM outbox.inbox_0 i WHERE i.consumer = receive.consumer AND i.id = entry)
           OR EXISTS (SELECT FROM outbox.inbox_1 i WHERE i.consumer = receive.consumer AND i.id = entry)
           OR EXISTS (SELECT FROM outbox.inbox_2 i WHERE i.consumer = receive.consumer AND i.id = entry) THEN
            RETURN 'duplicate';
        END IF;
        INSERT INTO outbox.inbox_0 (consumer, id, message_id, dedup_key) VALUES (receive.consumer, entry, mid, dedup) ON CONFLICT DO NOTHING;
        INSERT INTO outbox.inbox_1 SELECT * FROM outbox.inbox_0 i WHERE i.consumer = receive.consumer AND i.id = entry ON CONFLICT DO NOTHING;
        INSERT INTO outbox.inbox_2 SELECT * FROM outbox.inbox_0 i WHERE i.consumer = receive.consumer AND i.id = entry ON CONFLICT DO NOTHING;
        RETURN 'applied';
    END IF;

    -- A second round follows when the turn has gone on in between. The row of the first is in the table
    -- before then, which stays open until this transaction ends.
    LOOP
        SELECT r.current, r.closed_at IS NULL INTO STRICT turn, open FROM outbox.inbox_rotation r WHERE r.single;
        IF turn = 0 THEN
            IF open AND no IS NULL THEN
                INSERT INTO outbox.inbox_2 AS n (consumer, id, message_id, dedup_key) VALUES (receive.consumer, entry, mid, dedup)
                ON CONFLICT DO NOTHING RETURNING n.applied INTO no;
                IF NOT FOUND THEN RETURN 'duplicate'; END IF;
            END IF;
            INSERT INTO outbox.inbox_0 AS n (consumer, id, message_id, dedup_key, applied)
            SELECT receive.consumer, entry, mid, dedup, coalesce(no, nextval('outbox.inbox_applied_seq'))
            WHERE no IS NOT NULL OR NOT EXISTS (SELECT FROM outbox.inbox_2 i WHERE i.consumer = receive.consumer AND i.id = entry)
            ON CONFLICT DO NOTHING RETURNING n.applied INTO no;
            IF NOT FOUND THEN RETURN 'duplicate'; END IF;
        ELSIF turn = 1 THEN
            IF open AND no IS NULL THEN
                INSERT INTO outbox.inbox_0 AS n (consumer, id, message_id, dedup_key) VALUES (receive.consumer, entry, mid, dedup)
                ON CONFLICT DO NOTHING RETURNING n.applied INTO no;
                IF NOT FOUND THEN RETURN 'duplicate'; END IF;
            END IF;
            INSERT INTO outbox.inbox_1 AS n (consumer, id, message_id, dedup_key, applied)
            SELECT receive.consumer, entry, mid, dedup, coalesce(no, nextval('outbox.inbox_applied_seq'))
            WHERE no IS NOT NULL OR NOT EXISTS (SELECT FROM outbox.inbox_0 i WHERE i.consumer = receive.consumer AND i.id = entry)
            ON CONFLICT DO NOTHING RETURNING n.applied INTO no;
            IF NOT FOUND THEN RETURN 'duplicate'; END IF;
        ELSE
            IF open AND no IS NULL THEN
                INSERT INTO outbox.inbox_1 AS n (consumer, id, message_id, dedup_key) VALUES (receive.consumer, entry, mid, dedup)
                ON CONFLICT DO NOTHING RETURNING n.applied INTO no;
                IF NOT FOUND THEN RETURN 'duplicate'; END IF;
            END IF;
            INSERT INTO outbox.inbox_2 AS n (consumer, id, message_id, dedup_key, applied)
            SELECT receive.consumer, entry, mid, dedup, coalesce(no, nextval('outbox.inbox_applied_seq'))
            WHERE no IS NOT NULL OR NOT EXISTS (SELECT FROM outbox.inbox_1 i WHERE i.consumer = receive.consumer AND i.id = entry)
            ON CONFLICT DO NOTHING RETURNING n.applied INTO no;
            IF NOT FOUND THEN RETURN 'duplicate'; END IF;
        END IF;
        EXIT WHEN turn = (SELECT r.current FROM outbox.inbox_rotation r WHERE r.single);
    END LOOP;
    RETURN 'applied';
END
$$;

-- try_receive never waits for another transaction. Its own setting ends with it.
CREATE FUNCTION outbox.try_receive(consumer text, message_id uuid, dedup_key text) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET row_security = off SET lock_timeout = '1ms' AS $$
BEGIN
    RETURN outbox.receive(consumer, message_id, dedup_key, true);
EXCEPTION WHEN lock_not_available THEN
    RETURN 'busy';
END
$$;

-- receive_in_order is receive for messages that carry a sequence number of their topic and key, or a
-- version of what they are about, or both. Further outcomes:
--   stale  its version is not newer than what was applied: do nothing
--   gap    messages from expected on are missing (only with gaps => 'wait'): come back later
-- With gaps => 'report' a message behind a gap is applied: expected is then the first that is missing, and
-- the gap is noted in outbox.inbox_gaps until what was missing comes. from_first says that a key's first
-- message must have the number 1; otherwise the first that comes is taken for the first.
--
-- The position's row is locked until the transaction ends, so messages of one key take turns.
CREATE FUNCTION outbox.receive_in_order(
    consumer text, message_id uuid, dedup_key text, wait boolean, topic text, key text,
    sequence bigint, gaps text, from_first boolean, version bigint, OUT outcome text, OUT expected bigint
) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET row_security = off SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    seen      bigint;
    applied   bigint;
    gap       outbox.inbox_gaps;
    awaited   bigint;
BEGIN
    outcome := outbox.receive(consumer, message_id, dedup_key, wait);
    IF outcome <> 'applied' THEN
        RETURN;
    END IF;
    LOOP
        SELECT p.sequence, p.version INTO seen, applied FROM outbox.inbox_positions p
        WHERE p.consumer = receive_in_order.consumer AND p.topic = receive_in_order.topic AND p.key = receive_in_order.key FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO outbox.inbox_positions (consumer, topic, key)
        VALUES (receive_in_order.consumer, receive_in_order.topic, receive_in_order.key) ON CONFLICT DO NOTHING; -- it is read next
    END LOOP;

    IF sequence IS NOT NULL THEN
        awaited := coalesce(seen + 1, CASE WHEN from_first THEN 1 ELSE sequence END);
        IF sequence < awaited THEN
            DELETE FROM outbox.inbox_gaps g
            WHERE g.consumer = receive_in_order.consumer AND g.topic = receive_in_order.topic AND g.key = receive_in_order.key
            AND g.first = (SELECT max(b.first) FROM outbox.inbox_gaps b
                           WHERE b.consumer = receive_in_order.consumer AND b.topic = receive_in_order.topic AND b.key = receive_in_order.key
                           AND b.first <= receive_in_order.sequence)
            AND g.last >= receive_in_order.sequence RETURNING g.* INTO gap;
            IF NOT FOUND THEN
                outcome := 'duplicate'; -- it was applied so long ago that it is forgotten
                RETURN;
            END IF;
            INSERT INTO outbox.inbox_gaps (consumer, topic, key, first, last, detected_at)
            SELECT gap.consumer, gap.topic, gap.key, r.first, r.last, gap.detected_at
            FROM (VALUES (gap.first, receive_in_order.sequence - 1), (receive_in_order.sequence + 1, gap.last)) r (first, last)
            WHERE r.first <= r.last;
        ELSIF sequence > awaited THEN
            expected := awaited;
            IF gaps = 'wait' THEN
                outcome := 'gap';
                RETURN;
            END IF;
            INSERT INTO outbox.inbox_gaps (consumer, topic, key, first, last)
            VALUES (receive_in_order.consumer, receive_in_order.topic, receive_in_order.key, awaited, receive_in_order.sequence - 1);
        END IF;
    END IF;
    IF version <= applied THEN
        outcome := 'stale';
    END IF;
    UPDATE outbox.inbox_positions p SET updated_at = clock_timestamp(),
        sequence = greatest(p.sequence, receive_in_order.sequence), version = greatest(p.version, receive_in_order.version)
    WHERE p.consumer = receive_in_order.consumer AND p.topic = receive_in_order.topic AND p.key = receive_in_order.key;
END
$$;

-- Nobody may call them unless granted.
REVOKE ALL ON FUNCTION
    outbox.next_sequence(text, text),
    outbox.inbox_id(text),
    outbox.receive(text, uuid, text, boolean),
    outbox.try_receive(text, uuid, text),
    outbox.receive_in_order(text, uuid, text, boolean, text, text, bigint, text, boolean, bigint)
FROM PUBLIC;

-- The stored inbox: messages that were received and wait to be applied. It has the columns of
-- outbox.messages, for it is read by the same engine: destinations named "inbox:" and a consumer's name
-- have their cursors, holds and dead letters beside all others, and read this table.
CREATE SEQUENCE outbox.inbox_messages_id_seq AS bigint CACHE 1;

CREATE TABLE outbox.inbox_messages (
    LIKE outbox.messages INCLUDING DEFAULTS INCLUDING GENERATED,
    CHECK (headers ->> 'inbox-consumer' IS NOT NULL)
) PARTITION BY LIST (segment);

ALTER TABLE outbox.inbox_messages ALTER COLUMN id SET DEFAULT nextval('outbox.inbox_messages_id_seq');

ALTER SEQUENCE outbox.inbox_messages_id_seq OWNED BY outbox.inbox_messages.id;

CREATE INDEX inbox_messages_xid_id ON outbox.inbox_messages (xid, id, shard);

CREATE TABLE outbox.inbox_messages_0 PARTITION OF outbox.inbox_messages FOR VALUES IN (0);
CREATE TABLE outbox.inbox_messages_1 PARTITION OF outbox.inbox_messages FOR VALUES IN (1);
CREATE TABLE outbox.inbox_messages_2 PARTITION OF outbox.inbox_messages FOR VALUES IN (2);
CREATE TABLE outbox.inbox_messages_3 PARTITION OF outbox.inbox_messages FOR VALUES IN (3);
CREATE TABLE outbox.inbox_messages_4 PARTITION OF outbox.inbox_messages FOR VALUES IN (4);
CREATE TABLE outbox.inbox_messages_5 PARTITION OF outbox.inbox_messages FOR VALUES IN (5);
CREATE TABLE outbox.inbox_messages_6 PARTITION OF outbox.inbox_messages FOR VALUES IN (6);
CREATE TABLE outbox.inbox_messages_7 PARTITION OF outbox.inbox_messages FOR VALUES IN (7);

-- store puts a message into the stored inbox of a consumer, once, and answers like receive: 'applied' means
-- stored. That it was stored is recorded under a name of its own, since applying it is recorded as well. The
-- consumer gets its cursor with its first message, so that no segment is emptied before its worker has run.
CREATE FUNCTION outbox.store(
    consumer text, message_id uuid, dedup_key text, wait boolean, topic text, key text, aggregate_type text,
    aggregate_id text, event_type text, payload bytea, content_type text, headers jsonb
) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET row_security = off SET enable_seqscan = off SET jit = off AS $$
DECLARE
    outcome text;
BEGIN
    IF octet_length(store.consumer) > 191 THEN
        RAISE EXCEPTION 'outbox.store: the consumer''s name has % bytes, the limit is 191', octet_length(store.consumer)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    outcome := outbox.receive(store.consumer || ' (stored)', store.message_id, store.dedup_key, store.wait);
    IF outcome <> 'applied' THEN
        RETURN outcome;
    END IF;
    IF NOT EXISTS (SELECT FROM outbox.cursors c WHERE c.destination = 'inbox:' || store.consumer) THEN
        INSERT INTO outbox.cursors (destination, shard_group, shard_groups, system_identifier)
        SELECT 'inbox:' || store.consumer, 0, 1, s.system_identifier FROM pg_control_system() s
        ON CONFLICT DO NOTHING; -- another has made it
    END IF;
    INSERT INTO outbox.inbox_messages (message_id, topic, key, aggregate_type, aggregate_id, event_type, payload, content_type, headers)
    VALUES (coalesce(store.message_id, outbox.inbox_id(store.dedup_key)), store.topic, nullif(store.key, ''),
            nullif(store.aggregate_type, ''), nullif(store.aggregate_id, ''), nullif(store.event_type, ''), store.payload,
            nullif(store.content_type, ''), coalesce(store.headers, '{}') || jsonb_build_object('inbox-consumer', store.consumer));
    RETURN outcome;
END
$$;

REVOKE ALL ON FUNCTION outbox.store(text, uuid, text, boolean, text, text, text, text, text, bytea, text, jsonb) FROM PUBLIC;
