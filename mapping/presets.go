package mapping

import "slices"

// Preset is a mapping of a well-known table.
type Preset struct {
	Name     string
	Strategy string // the strategy that fits
	About    string
	Mapping  Mapping
}

// FindPreset returns the named preset.
func FindPreset(name string) (Preset, bool) {
	all := Presets()
	i := slices.IndexFunc(all, func(p Preset) bool { return p.Name == name })
	if i < 0 {
		return Preset{}, false
	}
	return all[i], true
}

// Presets returns all presets, the most specific first. Their tables have the names that their authors use; replace
// them as needed.
func Presets() []Preset {
	messages := func(table string) Mapping {
		return Mapping{
			Table: table, ID: "id", Topic: "{topic}", Key: "{key}", EventType: "type",
			Payload: "payload", Headers: "headers", CreatedAt: "created_at",
			Done: Done{How: DoneDelete},
		}
	}
	lease := messages("outbox.outbox_messages")
	lease.Claim = Claim{Until: "available_after"}
	xmin := messages("outbox_messages")
	xmin.Done = Done{}
	xmin.Offsets = Offsets{Table: "outbox_offsets", Topic: "topic", Partition: "partition", Transaction: "transaction_id"}
	serial := messages("outbox_messages")
	serial.Done = Done{}
	serial.Lock = []int64{554738281823524}
	serial.Offsets = Offsets{Table: "outbox_offsets", Topic: "topic", Partition: "partition"}
	total := messages("outbox_messages")
	total.Lock = []int64{-1613257171, -31457281}

	all := []Preset{
		{
			Name: "outbox_events", Strategy: SkipLocked,
			About: "published_at marks, attempt counts, dedup_key is what consumers deduplicate by",
			Mapping: Mapping{
				Table: "outbox_events", ID: "id", MessageID: "dedup_key", Topic: "{aggregate_type}", Key: "{aggregate_id}",
				AggregateType: "aggregate_type", AggregateID: "aggregate_id", EventType: "event_type",
				Payload: "payload", Headers: "headers", CreatedAt: "created_at",
				HeaderColumns: []HeaderColumn{{"dedup_key", "dedup_key"}},
				Done:          Done{How: DoneTimestamp, Column: "published_at"},
				Failure:       Failure{Attempts: "attempt"},
			},
		},
		{
			Name: "outbox_messages_xmin", Strategy: XMin, About: "virtual partitions with offsets, transaction_id of type xid8",
			Mapping: xmin,
		},
		{
			Name: "outbox_messages_serial", Strategy: Serial, About: "virtual partitions with offsets, by id",
			Mapping: serial,
		},
		{
			Name: "outbox_messages_lease", Strategy: Lease, About: "available_after reserves rows, delivered ones are deleted",
			Mapping: lease,
		},
		{
			Name: "outbox_messages_advisory", Strategy: Advisory,
			About:   "one relay at a time by an advisory lock, delivered rows are deleted",
			Mapping: total,
		},
		{
			Name: "outbox_messages", Strategy: SkipLocked, About: "delivered rows are deleted",
			Mapping: messages("outbox_messages"),
		},
		{
			Name: "outbox_event", Strategy: Advisory, About: "published and published_time mark, retry_count counts",
			Mapping: Mapping{
				Table: "outbox_event", ID: "id", MessageID: "idempotency_key", Topic: "{topic}", Key: "{key}",
				AggregateType: "root_entity_type", AggregateID: "root_entity_id", EventType: "event_type",
				Payload: "payload", CreatedAt: "created_time",
				HeaderColumns: []HeaderColumn{{"idempotency_key", "idempotency_key"}},
				Done: Done{How: DoneTimestamp, Column: "published_time",
					AckAt: "ack_time", UpdatedAt: "updated_time", Flag: "published", Partition: "partition_id"},
				Failure: Failure{Attempts: "retry_count"},
			},
		},
		{
			Name: "outbox", Strategy: SkipLocked, About: "processed_at marks, sequence_number counts per aggregate",
			Mapping: Mapping{
				Table: "outbox", ID: "id", Topic: "outbox.event.{aggregate_type}", Key: "{aggregate_id}",
				AggregateType: "aggregate_type", AggregateID: "aggregate_id",
				Payload: "payload", CreatedAt: "created_at",
				HeaderColumns: []HeaderColumn{{"sequence_number", "sequence_number"}},
				Done:          Done{How: DoneTimestamp, Column: "processed_at"},
			},
		},
		{
			Name: "transaction_outbox", Strategy: Lease, About: "status from pending over processing to processed or failed",
			Mapping: Mapping{
				Table: "p2p.transaction_outbox", ID: "id", MessageID: "idempotency_key",
				Topic: "{transaction_type}", Key: "{transaction_ref_id}",
				AggregateID: "transaction_ref_id", EventType: "transaction_type",
				Payload: "payload", CreatedAt: "create_time",
				HeaderColumns: []HeaderColumn{{"idempotency_key", "idempotency_key"}},
				Done:          Done{How: DoneStatus, Column: "status", Waiting: "pending", Value: "processed", At: "processed_time"},
				Failure:       Failure{Attempts: "retry_count", Error: "error_message", FailedValue: "failed"},
				Claim:         Claim{Status: "processing", Since: "last_attempt_time", Counts: true},
			},
		},
		{
			Name: "debezium", Strategy: Advisory, About: "the layout of Debezium's event router; delivered rows are deleted",
			Mapping: Mapping{
				Table: "outboxevent", ID: "id", Topic: "outbox.event.{aggregatetype}", Key: "{aggregateid}",
				AggregateType: "aggregatetype", AggregateID: "aggregateid", EventType: "type",
				Payload: "payload", Done: Done{How: DoneDelete},
			},
		},
	}
	for i := range all {
		all[i].Mapping.RowsMayBeDeleted = true // these tables are outboxes
	}
	return all
}
