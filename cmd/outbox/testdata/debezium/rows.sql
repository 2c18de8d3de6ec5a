-- What Debezium Server and the relay are given, in tables of the layout that Debezium documents.
CREATE TABLE ob_json (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
    type varchar(255) NOT NULL, payload jsonb);
CREATE TABLE ob_bytes (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
    type varchar(255) NOT NULL, payload bytea);
CREATE TYPE mood AS ENUM ('calm', 'wild');
CREATE TABLE ob_text (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL,
    type varchar(255) NOT NULL, payload text,
    tenant text NOT NULL, note text, small smallint, version integer, large bigint, flag boolean, single real, ratio double precision,
    price numeric(10,2), created_at timestamptz, local_at timestamp, day date, token uuid, doc jsonb, mood mood);
CREATE PUBLICATION pub_all FOR TABLE ob_json, ob_bytes, ob_text;
CREATE PUBLICATION pub_ob_json FOR TABLE ob_json WITH (publish = 'insert');
CREATE PUBLICATION pub_ob_bytes FOR TABLE ob_bytes WITH (publish = 'insert');
CREATE PUBLICATION pub_ob_text FOR TABLE ob_text WITH (publish = 'insert');

-- rows
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000001', 'order', 'o-1', 'Created', '{"id": 1, "name": "x"}');
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000002', 'order', 'o-1', 'Deleted', NULL);
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000003', 'order', 'o-2', 'Created',
    '{"nested": {"list": [1, 2, 3], "deep": {"null": null, "yes": true}}, "f": 1.5, "n": 1e3, "m": 100.50, "u": "grüße € 漢", "e": "\"\\\n\t/\u001f"}');
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000004', 'order', 'o-2', 'Listed', '{"items": [{"x": 1}, {"x": 2, "y": 3}]}');
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000005', 'order', 'o-2', 'Scalar', '"text"');
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000006', 'order', 'o-2', 'Scalar', '42');
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000007', 'order', 'o-2', 'Scalar', 'null');
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000008', 'order', 'o-2', 'Scalar', 'true');
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000009', 'order', 'o-2', 'Empty', '{}');
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000010', 'order.Line', 'l-1', 'Created', '{"id": 1}');
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000011', 'order', 'schlüssel €', 'Created', '{"id": 1}');
BEGIN;
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000012', 'order', 'o-3', 'Fleeting', '{"id": 1}');
DELETE FROM ob_json WHERE id = '00000000-0000-4000-8000-000000000012';
COMMIT;
BEGIN;
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000013', 'order', 'o-3', 'RolledBack', '{"id": 1}');
ROLLBACK;
UPDATE ob_json SET payload = '{"id": 2}' WHERE id = '00000000-0000-4000-8000-000000000011';
DELETE FROM ob_json WHERE id = '00000000-0000-4000-8000-000000000010';
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000014', 'order', '', 'NoId', '{"id": 1}');
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000015', 'order', 'o-4', '', '{"id": 1}');
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000016', 'order', 'o-5', 'Large', '{"n": 9007199254740993, "l": 9223372036854775807}');
INSERT INTO ob_json VALUES ('00000000-0000-4000-8000-000000000099', 'order', 'end', 'End', '{"end": true}');

INSERT INTO ob_bytes VALUES ('00000000-0000-4000-8000-000000000001', 'blob', 'b-1', 'Bytes', '\x0001ff7b7d');
INSERT INTO ob_bytes VALUES ('00000000-0000-4000-8000-000000000002', 'blob', 'b-1', 'Empty', '');
INSERT INTO ob_bytes VALUES ('00000000-0000-4000-8000-000000000003', 'blob', 'b-1', 'Null', NULL);
INSERT INTO ob_bytes VALUES ('00000000-0000-4000-8000-000000000099', 'blob', 'end', 'End', 'end');

INSERT INTO ob_text VALUES ('00000000-0000-4000-8000-000000000001', 'order', 'o-1', 'Plain', 'no JSON', 'acme', 'a "note" €',
    7, 3, 9007199254740993, true, 1.5, 0.1, 19.90, '2026-01-02 03:04:05.678901+00', '2026-01-02 03:04:05.678901', '2026-01-02',
    '11111111-2222-4333-8444-555555555555', '{"a": 1}', 'calm');
INSERT INTO ob_text VALUES ('00000000-0000-4000-8000-000000000002', 'order', 'o-1', 'Negative', '{"id": 1}', 'acme', '',
    -7, -2147483648, -9223372036854775808, false, -1e20, 1e300, -0.01, '2026-07-02 05:04:05.5+02', '1969-12-31 23:59:59.5', '1969-12-31',
    '11111111-2222-4333-8444-555555555555', '[]', 'wild');
INSERT INTO ob_text VALUES ('00000000-0000-4000-8000-000000000003', 'order', 'o-1', 'Round', '{"id": 1}', 'acme', 'x',
    0, 0, 0, false, 0, 100, 0, '2026-01-02 03:04:00+00', '2026-01-02 03:04:00', '1970-01-01',
    '11111111-2222-4333-8444-555555555555', '"x"', 'calm');
INSERT INTO ob_text VALUES ('00000000-0000-4000-8000-000000000004', 'order', 'o-1', 'Wide', '{"id": 1}', 'acme', 'x',
    32767, 2147483647, 9223372036854775807, true, 3.4028235e38, 1e-7, 99999999.99, '2026-01-02 03:04:05.120+00', '2026-01-02 03:04:05.12', '9999-12-31',
    '11111111-2222-4333-8444-555555555555', 'null', 'calm');
INSERT INTO ob_text (id, aggregatetype, aggregateid, type, payload, tenant) VALUES
    ('00000000-0000-4000-8000-000000000005', 'order', 'o-1', 'AllNull', NULL, 'acme'),
    ('00000000-0000-4000-8000-000000000006', 'order', 'o-1', 'Blank', '', 'acme'),
    ('00000000-0000-4000-8000-000000000007', 'order', 'o-1', 'Blanks', E' \n\t', 'acme'),
    ('00000000-0000-4000-8000-000000000099', 'order', 'end', 'End', '{"end": true}', 'acme');
