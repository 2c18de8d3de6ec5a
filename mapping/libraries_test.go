package mapping

import (
	"strings"
	"testing"
)

// The tables of libraries that many systems have, as their documentation has them. want is what the doctor has to find,
// as field=column; said is a part of a fault, a limit or an advice.
func TestDoctorKnowsTheTablesOfOtherLibraries(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ddl  string
		want []string
		said []string
	}{
		"MassTransit": {`CREATE TABLE box ("SequenceNumber" bigserial PRIMARY KEY, "EnqueueTime" timestamptz, "SentTime" timestamptz NOT NULL,
			"Headers" text, "Properties" text, "InboxMessageId" uuid, "InboxConsumerId" uuid, "OutboxId" uuid, "MessageId" uuid NOT NULL,
			"ContentType" varchar(256) NOT NULL, "MessageType" text NOT NULL, "Body" text NOT NULL, "ConversationId" uuid, "CorrelationId" uuid)`,
			[]string{"id=SequenceNumber", "message_id=MessageId", "type=MessageType", "payload=Body", "created_at=EnqueueTime"},
			[]string{"no column is the key", "ConversationId", `"SentTime" of table "public"."box" is NOT NULL`}},
		"a Django model": {`CREATE TABLE box (id bigserial PRIMARY KEY, topic varchar(99) NOT NULL, agg_id varchar(99) NOT NULL, payload jsonb NOT NULL,
			is_sent boolean NOT NULL DEFAULT false, sent_at timestamptz, created_at timestamptz NOT NULL)`,
			[]string{"id=id", "key={agg_id}", "done=sent_at", "flag=is_sent"}, nil},
		"a Django model with a status": {`CREATE TABLE box (id bigserial PRIMARY KEY, topic text, payload jsonb, status varchar(9) NOT NULL, sent_at timestamptz)`,
			[]string{"done=sent_at"}, []string{"nothing will write status"}},
		"django-outbox-pattern": {`CREATE TABLE box (id bigserial PRIMARY KEY, version varchar(100) NOT NULL, destination varchar(255) NOT NULL, headers jsonb,
			body jsonb NOT NULL, added timestamptz NOT NULL, expires_at timestamptz NOT NULL, status smallint NOT NULL, retry smallint)`,
			[]string{"topic={destination}", "payload=body", "created_at=added", "done="}, []string{"nothing will write status",
				"no column is the key"}},
		"Rails, transactional-outbox": {`CREATE TABLE box (id bigserial PRIMARY KEY, identifier uuid NOT NULL, event varchar NOT NULL, payload jsonb,
			aggregate varchar NOT NULL, aggregate_identifier uuid NOT NULL, created_at timestamp NOT NULL, updated_at timestamp NOT NULL)`,
			[]string{"id=id", "message_id=identifier", "key={aggregate_identifier}", "type=event", "topic={aggregate}", "payload=payload"},
			[]string{"no column says that a row was delivered"}},
		"Rails, sbmt-outbox": {`CREATE TABLE box (id bigserial PRIMARY KEY, uuid uuid NOT NULL, event_name varchar, event_key bigint NOT NULL, bucket bigint NOT NULL,
			status int NOT NULL DEFAULT 0, options jsonb, payload bytea NOT NULL, errors_count int NOT NULL DEFAULT 0, error_log text,
			processed_at timestamptz, created_at timestamptz NOT NULL)`,
			[]string{"message_id=uuid", "key={event_key}", "done=processed_at", "attempts=errors_count", "error=error_log"},
			[]string{"nothing will write status"}},
		"Axon": {`CREATE TABLE domain_event_entry (global_index bigserial PRIMARY KEY, aggregate_identifier varchar(255) NOT NULL, sequence_number bigint NOT NULL,
			type varchar(255), event_identifier varchar(255) NOT NULL UNIQUE, meta_data bytea, payload bytea NOT NULL, payload_revision varchar(255),
			payload_type varchar(255) NOT NULL, time_stamp varchar(255) NOT NULL, UNIQUE (aggregate_identifier, sequence_number))`,
			[]string{"id=global_index", "message_id=event_identifier", "key={aggregate_identifier}", "order=", "payload=payload"}, nil},
		"Eventuate": {`CREATE TABLE box (id varchar(767) PRIMARY KEY, destination varchar(1000) NOT NULL, headers varchar(1000) NOT NULL, payload text NOT NULL,
			published smallint DEFAULT 0, message_partition smallint, creation_time bigint)`,
			[]string{"id=id", "topic={destination}", "done=", "message_id="}, []string{"nothing will write published",
				"no column says that a row was delivered"}},
		"Spring Modulith": {`CREATE TABLE event_publication (id uuid PRIMARY KEY, listener_id text NOT NULL, event_type text NOT NULL, serialized_event text NOT NULL,
			publication_date timestamptz NOT NULL, completion_date timestamptz, status text, completion_attempts int)`,
			[]string{"id=id", "topic={event_type}", "payload=serialized_event", "done=completion_date", "created_at=publication_date",
				"attempts=completion_attempts"},
			[]string{"comes from no sequence", "nothing will write status", "listener_id"}},
		"Wolverine": {`CREATE TABLE wolverine_outgoing_envelopes (id uuid PRIMARY KEY, owner_id int NOT NULL, destination varchar NOT NULL, deliver_by timestamptz,
			body bytea NOT NULL, attempts int DEFAULT 0, message_type varchar NOT NULL)`,
			[]string{"topic={destination}", "payload=body", "attempts=attempts", "done="},
			[]string{"no column says that a row was delivered"}},
		"CAP": {`CREATE TABLE published ("Id" bigint PRIMARY KEY, "Version" varchar(20) NOT NULL, "Name" varchar(200) NOT NULL, "Content" text, "Retries" int NOT NULL,
			"Added" timestamp NOT NULL, "ExpiresAt" timestamp, "StatusName" varchar(50) NOT NULL)`,
			[]string{"id=Id", "topic={Name}", "payload=Content", "attempts=Retries", "done=StatusName"},
			[]string{"comes from no sequence"}},
		"Brighter": {`CREATE TABLE box (id bigserial PRIMARY KEY, messageid varchar(255) UNIQUE NOT NULL, topic varchar(255), messagetype varchar(32), timestamp timestamptz,
			correlationid varchar(255), replyto varchar(255), contenttype varchar(128), partitionkey varchar(128), dispatched timestamptz, headerbag text, body text)`,
			[]string{"id=id", "message_id=messageid", "key={partitionkey}", "done=dispatched", "payload=body", "headers=headerbag",
				"created_at=timestamp"}, nil},
		"NServiceBus": {`CREATE TABLE box (id varchar(200) PRIMARY KEY, dispatched boolean NOT NULL DEFAULT false, dispatchedat timestamp, persistenceversion text, operations jsonb)`,
			[]string{"done=dispatchedat", "flag=dispatched", "payload="}, []string{"no column is named for the payload"}},
		"gruelbox": {`CREATE TABLE txno_outbox (id varchar(36) PRIMARY KEY, invocation text, nextattempttime timestamp, attempts int, blocked boolean, version int,
			uniquerequestid varchar(250) UNIQUE, processed boolean, lastattempttime timestamp, topic varchar(250) NOT NULL DEFAULT '*', seq bigint, createtime timestamp)`,
			[]string{"id=id", "payload=invocation", "done=processed", "next_attempt=nextattempttime", "order="},
			[]string{"comes from no sequence"}},
		"namastack": {`CREATE TABLE outbox_record (id varchar(255) PRIMARY KEY, record_key varchar(255) NOT NULL, record_type varchar(255) NOT NULL, payload text NOT NULL,
			context text, partition_no int NOT NULL, created_at timestamptz NOT NULL, status varchar(20) NOT NULL, completed_at timestamptz, failure_count int NOT NULL,
			failure_reason text, next_retry_at timestamptz NOT NULL, handler_id varchar(1000) NOT NULL)`,
			[]string{"key={record_key}", "topic={record_type}", "done=completed_at", "attempts=failure_count", "error=failure_reason",
				"next_attempt=next_retry_at"},
			[]string{"nothing will write status"}},
		"an id and a number": {`CREATE TABLE box (id uuid PRIMARY KEY, sequence_number bigserial, topic text, payload text, published_at timestamptz)`,
			[]string{"id=id", "order=sequence_number"}, nil},
		"a time of sending that is never NULL": {`CREATE TABLE box (id bigserial PRIMARY KEY, topic text, payload text, sent_at timestamptz NOT NULL DEFAULT now())`,
			nil, []string{`"sent_at" of table "public"."box" is NOT NULL`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			table := "box"
			if words := strings.Fields(test.ddl); words[2] != "box" {
				table = words[2]
			}
			r, err := Doctor(t.Context(), tableOf(t, test.ddl), table)
			must(t, err)
			m := &r.Mapping
			found := map[string]string{"id": m.ID, "message_id": m.MessageID, "type": m.EventType, "payload": m.Payload,
				"done": m.Done.Column,
				"flag": m.Done.Flag, "key": m.Key, "topic": m.Topic, "created_at": m.CreatedAt, "attempts": m.Failure.Attempts,
				"error":        m.Failure.Error,
				"next_attempt": m.Failure.NextAttempt, "headers": m.Headers, "order": m.Order}
			for _, want := range test.want {
				field, column, _ := strings.Cut(want, "=")
				if found[field] != column {
					t.Errorf("%s is %q, want %q", field, found[field], column)
				}
			}
			said := strings.Join(r.Faults, "\n")
			for _, f := range append(r.Limits, r.Advice...) {
				said += "\n" + f.Text
			}
			for _, want := range test.said {
				if !strings.Contains(said, want) {
					t.Errorf("it doesn't say %q:\n%s", want, said)
				}
			}
			if m.Done.How == DoneDelete {
				t.Error("rows would be deleted")
			}
		})
	}
}
