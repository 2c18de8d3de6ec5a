-- Where a destination stands in the write-ahead log, if that is read: everything that committed up to
-- position is settled, and of the transaction whose commit lies at partial_lsn the first partial_count
-- messages. Everything that the cursor's prev sees is settled too; fallback is that prev as it was written
-- with this position, so a cursor that somebody else has moved is noticed. It sees everything that commits
-- before fallback_lsn.
-- The slot's own confirmed position never is beyond position, for nothing is confirmed before it is here.
-- publication_version is another one after every change by which inserts may not have been sent.
-- mode is what an operator wants: 'replication', or 'snapshot' to have the table read for the time being.
CREATE TABLE outbox.slots (
    destination         text        NOT NULL PRIMARY KEY,
    mode                text        NOT NULL DEFAULT 'replication' CHECK (mode IN ('replication', 'snapshot')),
    slot                text        NOT NULL,
    publication         text        NOT NULL,
    publication_version text,
    position            pg_lsn,
    partial_lsn         pg_lsn,
    partial_count       bigint      NOT NULL DEFAULT 0,
    fallback            pg_snapshot,
    fallback_lsn        pg_lsn,
    lost_at             timestamptz,
    lost_reason         text,
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 20);
