-- The members of fleets: relays that share the parts of many databases (docs/fleet.md). They know each other by these rows, in one
-- database, the fleet's home. A member that lives has a session here with an advisory lock of two keys: the oid of this table, and lock.
-- The row of one that has gone keeps its ordinal for a while, for the one that comes in its place.
CREATE TABLE outbox.members (
    fleet      text             NOT NULL,
    instance   uuid             NOT NULL, -- one start of a process
    name       text             NOT NULL,
    lock       integer          NOT NULL, -- another one for each session
    ordinal    integer          CHECK (ordinal >= 0), -- NULL: a spare, which has no parts yet
    weight     double precision NOT NULL DEFAULT 1 CHECK (weight > 0),
    placement  integer          NOT NULL DEFAULT 1, -- how its build places parts
    version    text             NOT NULL DEFAULT '',
    host       text             NOT NULL DEFAULT '',
    pid        integer          NOT NULL DEFAULT 0,
    joined_at  timestamptz      NOT NULL DEFAULT clock_timestamp(),
    beat_at    timestamptz      NOT NULL DEFAULT clock_timestamp(),
    leaving    boolean          NOT NULL DEFAULT false, -- it has said that it leaves
    left_at    timestamptz,               -- since when it leaves, or is known to be dead
    cause      text             NOT NULL DEFAULT '', -- why it leaves or is dead
    PRIMARY KEY (fleet, instance)
) WITH (fillfactor = 50);

CREATE UNIQUE INDEX members_ordinal ON outbox.members (fleet, ordinal);

-- The last move of each part: the member that has taken it, from which one, and why.
CREATE TABLE outbox.moves (
    fleet       text        NOT NULL,
    database    text        NOT NULL,
    destination text        NOT NULL,
    shard_group smallint    NOT NULL,
    member      text        NOT NULL,
    previous    text        NOT NULL DEFAULT '',
    cause       text        NOT NULL,
    moved_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (fleet, database, destination, shard_group)
);
