-- Destinations that read a table of their own, as their relays last said: what outbox.cursors has of the others. session is the
-- application_name of a relay's sessions, by which one that lives is known. mapping says what the table's columns mean. account is what
-- the relay knows of its work and the table need not show (mapping.Account): what it holds and blocks, and when it last settled
-- a row. slot is the replication slot by which it reads the log, '' if it reads the table. began_at is when the relay was first seen: no older row is its business.
CREATE TABLE outbox.tables (
    destination   text        NOT NULL,
    shard_group   smallint    NOT NULL,
    owner         text        NOT NULL,
    shard_groups  smallint    NOT NULL,
    session       text        NOT NULL,
    strategy      text        NOT NULL,
    mapping       jsonb       NOT NULL,
    slot          text        NOT NULL DEFAULT '',
    state         text        NOT NULL,
    state_since   timestamptz NOT NULL,
    last_error    text,
    last_error_at timestamptz,
    lag_objective interval    NOT NULL,
    settings      jsonb       NOT NULL DEFAULT '{}',
    account       jsonb       NOT NULL DEFAULT '{}',
    began_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (destination, shard_group, owner)
);

-- How many of the dead letters of such a table an operator knows of.
CREATE TABLE outbox.tables_acknowledged (
    destination     text        NOT NULL PRIMARY KEY,
    messages        bigint      NOT NULL,
    acknowledged_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
